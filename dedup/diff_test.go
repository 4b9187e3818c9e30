package dedup

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestDiffFields(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		a, b string
		want []string
	}{
		{"equal", `{"a":1}`, `{"a":1}`, nil},
		{"equal, spelled otherwise", `{"a":1,"b":2}`, `{"b":2.0,"a":1}`, nil},
		{"a member", `{"a":1,"b":{"c":1,"d":2}}`, `{"a":1,"b":{"c":3,"d":2}}`, []string{"b.c"}},
		{"members that are missing on either side", `{"a":1,"c":1}`, `{"b":1,"c":1}`, []string{"a", "b"}},
		{"absent and null", `{"a":null}`, `{}`, []string{"a"}},
		{"elements", `{"l":[1,2,{"x":1}]}`, `{"l":[1,3,{"x":2},4]}`, []string{"l.1", "l.2.x", "l.3"}},
		{"another kind", `{"a":{"b":1}}`, `{"a":[1]}`, []string{"a"}},
		{"beyond 2^53", `{"n":9007199254740993}`, `{"n":9007199254740992}`, []string{"n"}},
		{"halves of surrogate pairs", `{"s":"\ud800"}`, `{"s":"\ud801"}`, []string{"s"}},
		{"not UTF-8", "{\"s\":\"\xff\"}", "{\"s\":\"\xfe\"}", []string{"s"}},
		{"names that need escapes", `{"a.b":1,"*":1,"c\\d":1}`, `{"a.b":2,"*":2,"c\\d":2}`, []string{`\*`, `a\.b`, `c\\d`}},
		{"repeated members", `{"a":1,"a":2}`, `{"a":1,"a":3}`, []string{"a"}},
		{"a prefix of another name", `{"a":1,"a!":1,"ab":1}`, `{"a":1,"a!":2,"ab":2}`, []string{"a!", "ab"}},
		{"a prefix of another name that sorts behind it", `{"a":1,"a!":1}`, `{"a":1}`, []string{"a!"}},
		{"the empty name", `{"":1}`, `{"":2}`, []string{`""`}},
		{"scalars", `1`, `2`, []string{"$"}},
		{"not JSON", `{"a":1}`, `{"a":1`, []string{"$"}},
		{"bytes", "\x00", "\x01", []string{"$"}},
		{"a name that Postgres cannot store", `{"\u0000":1}`, `{"\u0000":2}`, []string{`\x00`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, DiffFields([]byte(c.a), []byte(c.b))); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if diff := cmp.Diff(c.want, DiffFields([]byte(c.b), []byte(c.a))); diff != "" {
				t.Errorf("the other way round: -want +got\n%s", diff)
			}
		})
	}
}

func TestDiffFieldsTellsNullFromEmpty(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff([]string{"$"}, DiffFields(nil, []byte{})); diff != "" {
		t.Fatal(diff)
	}
	if paths := DiffFields(nil, nil); paths != nil {
		t.Fatal(paths)
	}
}

func TestDiffFieldsIsBounded(t *testing.T) {
	t.Parallel()
	members := func(n, value int) []byte {
		values := map[string]int{}
		for i := range n {
			values[fmt.Sprintf("m%04d", i)] = value
		}
		text, err := json.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if paths := DiffFields(members(20, 1), members(20, 2)); len(paths) != 20 || paths[19] != "m0019" {
		t.Fatalf("%q", paths)
	}
	if paths := DiffFields(members(5000, 1), members(5000, 2)); len(paths) != 21 || paths[20] != "…" || paths[19] != "m0019" {
		t.Fatalf("%q", paths)
	}
	name := strings.Repeat("é", 5000)
	if paths := DiffFields([]byte(`{"`+name+`":1}`), []byte(`{}`)); len(paths) != 1 || len(paths[0]) > 200 || !strings.HasSuffix(paths[0], "…[truncated]") {
		t.Fatalf("%q", paths)
	}
}

func TestDiffFieldsIsEmptyExactlyForEqualPayloads(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := spelling(t, anyJSON(2).Draw(t, "a")), spelling(t, anyJSON(2).Draw(t, "b"))
		paths := DiffFields([]byte(a), []byte(b))
		if (len(paths) == 0) != (canonicalText(a) == canonicalText(b)) {
			t.Fatalf("%q\n%s\n%s", paths, a, b)
		}
		for _, path := range paths {
			if path == "" || !utf8.ValidString(path) || strings.ContainsRune(path, 0) {
				t.Fatalf("path %q", path)
			}
		}
	})
}

// A path that is shown can be copied into the configuration, and then the difference is gone.
func TestWhatDiffFieldsShowsCanBeIgnored(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringOfN(rapid.SampledFrom([]rune(`ab.*\"#?[$é'`)), 1, 3, -1), 1, 4, rapid.ID[string])
		object := func(label string) string {
			values := map[string]any{}
			for _, name := range names.Draw(t, label) {
				values[name] = map[string]int{name: rapid.IntRange(0, 1).Draw(t, "value")}
			}
			text, err := json.Marshal(values)
			if err != nil {
				t.Fatal(err)
			}
			return string(text)
		}
		a, b := object("a"), object("b")
		rule := Raw().Ignore(DiffFields([]byte(a), []byte(b))...)
		if err := rule.check(); err != nil {
			t.Fatalf("%s, %s: %v", a, b, err)
		}
		if a != b && sum(rule, a) != sum(rule, b) {
			t.Fatalf("%s still differs\n%s\n%s", rule, a, b)
		}
	})
}
