package dlq_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/claimq/claimq/dlq"
)

func TestCauseMasksWhatDiffersFromMessageToMessage(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"":                                       "",
		"no stock":                               "no stock",
		"no stock for order 4711":                "no stock for order #",
		"  no \n\t stock  ":                      "no stock",
		"balance -12.50 below 0":                 "balance # below #",
		"took 1.5s of 1,000ms":                   "took #s of #ms",
		"1e9 is too large":                       "# is too large",
		"order ORD-20260102-77":                  "order ORD##",
		"at 2026-01-02T03:04:05Z":                "at ###T#:#:#Z",
		"dial tcp 10.0.0.7:5432":                 "dial tcp #:#",
		"pointer 0xc000012345":                   "pointer <hex>",
		`bytes \xdeadbeef are bad`:               "bytes <hex> are bad",
		"commit deadbeef01 failed":               "commit <hex> failed",
		"the facade decided":                     "the facade decided",
		"id 8f3k2jx9q":                           "id <id>",
		"id 01ARZ3NDEKTSV4RRFFQ69G5FAV is taken": "id <id> is taken",
		"id 6f1d1c1e-9a55-5d0c-8f3e-3a1f52a0c7d4 is taken":             "id <uuid> is taken",
		"id 6F1D1C1E-9A55-5D0C-8F3E-3A1F52A0C7D4 is taken":             "id <uuid> is taken",
		`duplicate key value violates unique constraint "orders_pkey"`: `duplicate key value violates unique constraint "orders_pkey"`,
		`column "stock" does not exist`:                                `column "stock" does not exist`,
		`customer "user-77" is unknown`:                                `customer "<quoted>" is unknown`,
		`mail 'a@example.org' bounced`:                                 `mail '<quoted>' bounced`,
		"`x1` and \"plain\"":                                           "`<quoted>` and \"plain\"",
		"sha256 mismatch":                                              "sha# mismatch",
		"\x00 and \xff":                                                "<hex> and <hex>",
	} {
		_, got, version := dlq.Cause("q", "exhausted", "class", message)
		if got != want || version != dlq.CauseVersion {
			t.Errorf("%q is masked as %q (version %d), want %q", message, got, version, want)
		}
	}
}

func TestCauseGroupsAndTellsApart(t *testing.T) {
	t.Parallel()
	cause := func(parts ...string) uuid.UUID {
		id, _, _ := dlq.Cause(parts[0], parts[1], parts[2], parts[3])
		return id
	}
	base := cause("q", "exhausted", "class", "order 1 of "+uuid.NewString())
	if got := cause("q", "exhausted", "class", "order 22 of "+uuid.NewString()); got != base {
		t.Error("two messages of one failure have two causes")
	}
	seen := map[uuid.UUID]string{base: "the first"}
	for name, id := range map[string]uuid.UUID{
		"another queue":   cause("q2", "exhausted", "class", "order 1 of x"),
		"another reason":  cause("q", "permanent", "class", "order 1 of x"),
		"another class":   cause("q", "exhausted", "class2", "order 1 of x"),
		"another text":    cause("q", "exhausted", "class", "orders 1 of x"),
		"moved letters":   cause("qe", "xhausted", "class", "order 1 of x"),
		"moved letters 2": cause("q", "exhaustedc", "lass", "order 1 of x"),
	} {
		if other, ok := seen[id]; ok {
			t.Errorf("%s has the cause of %s", name, other)
		}
		seen[id] = name
	}
	// The id is stored and shown to people: it must not change without its version.
	if got := cause("q", "exhausted", "class", "order 1").String(); got != "8adae5e1-e457-5335-9c21-68171c98a3b0" {
		t.Errorf("the cause of a fixed failure is %s", got)
	}
}

// Any two messages that differ in their numbers only have one cause.
func TestCauseIgnoresNumbers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringMatching(`[a-z]{1,8}`), 1, 6).Draw(t, "words")
		fill := func() string {
			var out strings.Builder
			for _, word := range words {
				out.WriteString(word + " " + rapid.StringMatching(`[0-9]{1,18}`).Draw(t, "number") + " ")
			}
			return out.String()
		}
		a, masked, _ := dlq.Cause("q", "r", "c", fill())
		b, other, _ := dlq.Cause("q", "r", "c", fill())
		if a != b {
			t.Fatalf("%q and %q", masked, other)
		}
	})
}

func TestCauseOfAnyBytes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		message := string(rapid.SliceOf(rapid.Byte()).Draw(t, "message"))
		id, masked, _ := dlq.Cause("q", "r", "c", message)
		again, _, _ := dlq.Cause("q", "r", "c", message)
		if id != again || !utf8.ValidString(masked) || strings.ContainsRune(masked, 0) || len(masked) > 8<<10 {
			t.Fatalf("%q is masked as %q", message, masked)
		}
	})
	if _, masked, _ := dlq.Cause("q", "r", "c", strings.Repeat("1 ", 1<<20)); len(masked) > 2<<10 {
		t.Fatalf("a long message is masked in %d bytes", len(masked))
	}
}
