package nearest_test

import (
	"strings"
	"testing"

	"github.com/claimq/claimq/internal/nearest"
)

func TestTheClosestNameIsFound(t *testing.T) {
	t.Parallel()
	names := []string{"retention", "retry", "routes", "repeats"}
	for text, want := range map[string]string{
		"retry":    "retry",
		"rety":     "retry",
		"retries":  "retry",
		"route":    "routes",
		"repeat":   "repeats",
		"":         "retry", // five insertions, the fewest
		"Retetion": "retention",
		"étry":     "retry",
	} {
		if got := nearest.Of(text, names); got != want {
			t.Errorf("Of(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestTheFirstOfEquallyCloseNamesWins(t *testing.T) {
	t.Parallel()
	if got := nearest.Of("b", []string{"a", "c"}); got != "a" {
		t.Errorf("Of = %q, want the first", got)
	}
}

func TestNoCandidatesGiveNothing(t *testing.T) {
	t.Parallel()
	if got := nearest.Of("retry", nil); got != "" {
		t.Errorf("Of with no candidates = %q", got)
	}
}

func TestALongTextIsCutBeforeItIsCompared(t *testing.T) {
	t.Parallel()
	long := "retry" + strings.Repeat("y", 10<<20)
	if got := nearest.Of(long, []string{"a", strings.Repeat("y", 60)}); got != strings.Repeat("y", 60) {
		t.Errorf("Of = %q", got)
	}
}
