package pgtext

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestStorable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text     string
		maxBytes int
		want     string
	}{
		{"fine", 100, "fine"},
		{"", 100, ""},
		{"line\nline\té😀\uFFFD", 100, "line\nline\té😀\uFFFD"},
		{"a\x00b", 100, `a\x00b`},
		{"\xc3\x28", 100, `\xc3(`},
		{"\xed\xa0\x80", 100, `\xed\xa0\x80`},
		{"\xf0\x9f\x98", 100, `\xf0\x9f\x98`},
		{"0123456789", 10, "0123456789"},
		{"0123456789a", 10, "0123456789"},
		{strings.Repeat("a", 21), 20, "aaaaa …[truncated]"},
		{strings.Repeat("é", 11), 20, "éé …[truncated]"},
		{"abcd" + strings.Repeat("é", 11), 20, "abcd …[truncated]"},
		{"ab" + strings.Repeat("\x00", 10), 20, "ab …[truncated]"},
		{strings.Repeat("\x00", 5), 20, strings.Repeat(`\x00`, 5)},
		{strings.Repeat("\x00", 6), 20, `\x00 …[truncated]`},
		{strings.Repeat("a", 100), len(truncated), truncated},
		{"ééé", 5, "éé"},
		{"éé", 1, ""},
		{"a", 0, ""},
		{"a", -1, ""},
		{"", -1, ""},
	} {
		if got := Storable(c.text, c.maxBytes); got != c.want {
			t.Errorf("Storable(%q, %d) = %q, want %q", c.text, c.maxBytes, got, c.want)
		}
	}
}

func TestWhatIsStorableIsStorableAndBounded(t *testing.T) {
	t.Parallel()
	anyText := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
	rapid.Check(t, func(t *rapid.T) {
		text, maxBytes := anyText.Draw(t, "text"), rapid.IntRange(0, 80).Draw(t, "maxBytes")
		got := Storable(text, maxBytes)
		if len(got) > maxBytes || !utf8.ValidString(got) || strings.IndexByte(got, 0) >= 0 {
			t.Fatalf("Storable(%q, %d) = %q", text, maxBytes, got)
		}
		if again := Storable(got, maxBytes); again != got {
			t.Fatalf("a second pass changes %q to %q", got, again)
		}
		whole := Storable(text, 4*len(text))
		if cut, marked := strings.CutSuffix(got, truncated); len(whole) > maxBytes && !strings.HasPrefix(whole, cut) && !strings.HasPrefix(whole, got) {
			t.Fatalf("%q (marked: %v) is not the beginning of %q", got, marked, whole)
		}
		if len(whole) <= maxBytes && got != whole {
			t.Fatalf("%q is cut though it fits: %q", text, got)
		}
	})
}

func TestAHugeTextIsCut(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("a", 8<<20)
	if got := Storable(text, 1024); len(got) != 1024 || !strings.HasSuffix(got, truncated) {
		t.Fatalf("%d bytes, ending in %q", len(got), got[len(got)-20:])
	}
}
