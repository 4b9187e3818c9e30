package dedup

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// The vectors are written out by hand, byte for byte, so that the SQL twin can be held against them.
func TestDigestVectors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		identity Identity
		hashed   string // hex
	}{
		{Identity{Queue: "q", ID: "k"}, "00000001 71 ffffffff ffffffff 00000001 6b"},
		{Identity{Queue: "q", Tenant: new(""), ID: "k"}, "00000001 71 00000000 ffffffff 00000001 6b"},
		{Identity{Queue: "q", Operation: new(""), ID: "k"}, "00000001 71 ffffffff 00000000 00000001 6b"},
		{Identity{Queue: "orders", Tenant: new("é"), Operation: new("pay"), ID: "\xff\x00"}, "00000006 6f7264657273 00000002 c3a9 00000003 706179 00000002 ff00"},
	} {
		hashed, err := hex.DecodeString(strings.ReplaceAll(c.hashed, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		want := sha256.Sum256(hashed)
		if got := c.identity.Digest(); string(got[:]) != string(want[:16]) {
			t.Errorf("%+v: %s, want %x", c.identity, got, want[:16])
		}
	}
	// A digest is stored for as long as ids are remembered: it must not change from release to release.
	if got := (Identity{Queue: "orders", Tenant: new("acme"), ID: "k-1"}).Digest().String(); got != "205cea5e-e854-263f-e689-d9750ab50e1a" {
		t.Errorf("the digest of a known identity became %s", got)
	}
}

func anyIdentity() *rapid.Generator[Identity] {
	part := rapid.StringOfN(rapid.SampledFrom([]rune("ab")), 0, 2, -1)
	return rapid.Custom(func(t *rapid.T) Identity {
		identity := Identity{Queue: part.Draw(t, "queue"), ID: part.Draw(t, "id")}
		if rapid.Bool().Draw(t, "has tenant") {
			identity.Tenant = new(part.Draw(t, "tenant"))
		}
		if rapid.Bool().Draw(t, "has operation") {
			identity.Operation = new(part.Draw(t, "operation"))
		}
		return identity
	})
}

func TestTwoIdentitiesShareADigestOnlyWhenTheyAreEqual(t *testing.T) {
	t.Parallel()
	same := func(a, b *string) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyIdentity().Draw(t, "a"), anyIdentity().Draw(t, "b")
		want := a.Queue == b.Queue && same(a.Tenant, b.Tenant) && same(a.Operation, b.Operation) && a.ID == b.ID
		if got := a.Digest() == b.Digest(); got != want {
			t.Fatalf("digests equal: %v\n%+v\n%+v", got, a, b)
		}
	})
}

func TestDigestTakesNoPartOfTheFingerprint(t *testing.T) {
	t.Parallel()
	a := Identity{Queue: "q", ID: "k"}
	b := a
	b.Fingerprint[0], b.FingerprintVersion, b.FromOffset = 1, 1, true
	if a.Digest() != b.Digest() {
		t.Fatal("a conflict would look like another message")
	}
}

func TestShown(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 64)
	for _, c := range []struct{ id, want string }{
		{"k-1", "k-1"},
		{"", ""},
		{long, long},
		{long + "b", long[:63] + "…"},
		{strings.Repeat("é", 64), strings.Repeat("é", 64)},
		{strings.Repeat("😀", 65), strings.Repeat("😀", 63) + "…"},
		{strings.Repeat("😀", 1000), strings.Repeat("😀", 63) + "…"},
		{"a\x00b", `a\x00b`},
		{"\xff\xfe", `\xff\xfe`},
		{"\xc3(", `\xc3(`},
		{"a\nb\x1b[31m\x7f", `a\x0ab\x1b[31m\x7f`},
		{"\u202etxt", `\u202etxt`},
		{"\u0085", `\u0085`},
		{"\uFFFD", "\uFFFD"},
		{"it's", "it's"},
		{"é'", "é'"},
		{strings.Repeat("a", 61) + "\xff", strings.Repeat("a", 61) + "…"},
		{strings.Repeat("a", 60) + "\xff", strings.Repeat("a", 60) + `\xff`},
		{strings.Repeat("\xff", 17), strings.Repeat(`\xff`, 15) + "…"},
		{strings.Repeat("\xff", 16), strings.Repeat(`\xff`, 16)},
	} {
		if got := (Identity{ID: c.id}).Shown(); got != c.want {
			t.Errorf("%q is shown as %q, want %q", c.id, got, c.want)
		}
	}
}

func TestWhatIsShownIsAlwaysShortAndStorable(t *testing.T) {
	t.Parallel()
	anyID := rapid.OneOf(
		rapid.String(),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 400), func(b []byte) string { return string(b) }),
		rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "é", "😀", "\xff", "\x00", "\xf0\x9f", "\u202e"}), 50, 90), func(s []string) string { return strings.Join(s, "") }),
	)
	rapid.Check(t, func(t *rapid.T) {
		id := anyID.Draw(t, "id")
		shown := (Identity{ID: id}).Shown()
		if utf8.RuneCountInString(shown) > 64 || !utf8.ValidString(shown) || strings.ContainsRune(shown, 0) {
			t.Fatalf("%q is shown as %q", id, shown)
		}
		if id != "" && shown == "" {
			t.Fatalf("%q is not shown", id)
		}
		if utf8.RuneCountInString(id) > 64 && !strings.HasSuffix(shown, "…") {
			t.Fatalf("%q is shortened without a mark: %q", id, shown)
		}
	})
}

func TestDigestAndShownDoNotAllocate(t *testing.T) { //nolint:paralleltest // it counts allocations
	identity := Identity{Queue: "orders", Tenant: new("acme"), Operation: new("pay"), ID: "0190c3f2-7e1a-7b60-a6a1-2f0f5a3d9c11"}
	var kept [16]byte
	if allocations := testing.AllocsPerRun(100, func() { kept = identity.Digest() }); allocations > 0 {
		t.Errorf("Digest allocates %v times", allocations)
	}
	length := 0
	if allocations := testing.AllocsPerRun(100, func() { length = len(identity.Shown()) }); allocations > 0 {
		t.Errorf("Shown allocates %v times", allocations)
	}
	if kept == [16]byte{} || length == 0 {
		t.Error("nothing was computed")
	}
}
