package dedup

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestParsePath(t *testing.T) {
	t.Parallel()
	name := func(text string) pathStep { return pathStep{name: text} }
	anyStep := pathStep{any: true}
	for _, c := range []struct {
		path  string
		steps []pathStep
		text  string
	}{
		{"a", []pathStep{name("a")}, "a"},
		{"$.a.b", []pathStep{name("a"), name("b")}, "a.b"},
		{"lines.*.0", []pathStep{name("lines"), anyStep, name("0")}, "lines.*.0"},
		{`a\.b.c`, []pathStep{name("a.b"), name("c")}, `a\.b.c`},
		{`\*.\?`, []pathStep{name("*"), name("?")}, `\*.\?`},
		{`\a`, []pathStep{name("a")}, "a"},
		{`a\\b`, []pathStep{name(`a\\b`)}, `a\\b`},
		{`a"b`, []pathStep{name(`a\"b`)}, `a"b`},
		{"@timestamp", []pathStep{name("@timestamp")}, "@timestamp"},
		{"a b.é", []pathStep{name("a b"), name("é")}, "a b.é"},
		{"\n", []pathStep{name(`\u000a`)}, "\n"},
		{"$", []pathStep{name("$")}, "$"},
		{"$.$.a", []pathStep{name("$"), name("a")}, `\$.a`},
		{`\$.a`, []pathStep{name("$"), name("a")}, `\$.a`},
		{"\xff", []pathStep{name("\xff")}, "\xff"},
	} {
		steps, err := parsePath(c.path)
		if err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		if diff := cmp.Diff(c.steps, steps, cmp.AllowUnexported(pathStep{})); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.path, diff)
		}
		if text := pathText(steps); text != c.text {
			t.Errorf("%s is shown as %s, want %s", c.path, text, c.text)
		}
		again, err := parsePath(pathText(steps))
		if err != nil || !cmp.Equal(steps, again, cmp.AllowUnexported(pathStep{})) {
			t.Errorf("%s is shown as %s, which reads otherwise (%v)", c.path, pathText(steps), err)
		}
	}
}

// The automaton that paths are made into answers as asking each path by itself does.
func TestPathNodeCoversWhatOneOfItsPathsCovers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		paths := anyPaths(t, 1)
		_, node, err := parsePaths(paths)
		if err != nil {
			t.Fatal(err)
		}
		place := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "0", "1"}), 1, 5).Draw(t, "place")
		got := false
		for _, name := range place {
			if strings.ContainsAny(name, "01") {
				node = node.at(int(name[0] - '0'))
			} else {
				node = node.named([]byte(name))
			}
			if node != nil && node.end {
				got = true
				break
			}
		}
		if want := covered(paths, place); got != want {
			t.Fatalf("%q covers %q: %v, want %v", paths, place, got, want)
		}
	})
}

func anyPaths(t *rapid.T, least int) []string {
	step := rapid.SampledFrom([]string{"a", "b", "0", "1", "*"})
	path := rapid.Map(rapid.SliceOfN(step, 1, 4), func(steps []string) string { return strings.Join(steps, ".") })
	return rapid.SliceOfN(path, least, 5).Draw(t, "paths")
}

// covered reports whether one of the paths leads to the place or to something around it.
func covered(paths, place []string) bool {
	for _, path := range paths {
		steps := strings.Split(path, ".")
		matches := len(steps) <= len(place)
		for i := 0; matches && i < len(steps); i++ {
			matches = steps[i] == "*" || steps[i] == place[i]
		}
		if matches {
			return true
		}
	}
	return false
}

// What is ignored is gone: the canonical text is that of a value from which every covered part was taken out by hand.
func TestIgnoringPathsIsTheSameAsTakingThemOut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		paths := anyPaths(t, 1)
		v := anyJSON(3).Draw(t, "value")
		_, ignored, err := parsePaths(paths)
		if err != nil {
			t.Fatal(err)
		}
		text := spelling(t, v)
		got, err := canonicalJSON(nil, []byte(text), nil, ignored)
		if want := canonicalText(spelling(t, v.takeOut(paths, nil))); err != nil || string(got) != want {
			t.Fatalf("%s without %q is %s (%v), want %s", text, paths, got, err, want)
		}
	})
}

// takeOut returns the value, which is at place, without the parts that paths cover.
func (v jsonValue) takeOut(paths, place []string) jsonValue {
	rest := v
	rest.names, rest.elements = nil, nil
	for i, element := range v.elements {
		name := itoa(i)
		if v.kind == "object" {
			name = v.names[i]
		}
		at := append(append([]string(nil), place...), name)
		if covered(paths, at) {
			continue
		}
		if v.kind == "object" {
			rest.names = append(rest.names, name)
		}
		rest.elements = append(rest.elements, element.takeOut(paths, at))
	}
	return rest
}

// A change outside the chosen paths is not seen, and one inside is.
func TestFieldsSeesWhatItsPathsCoverAndNothingElse(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		paths := anyPaths(t, 1)
		place := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 1, 3).Draw(t, "place")
		beside := rapid.SampledFrom([]string{`"a":1`, `"b":1`, `"c":1`}).Draw(t, "beside")
		// One leaf at place, of which only the digit changes, in objects that may hold something beside it.
		value := func(leaf string) string {
			text := leaf
			for _, name := range slices.Backward(place) {
				text = `{"` + name + `":` + text + `,` + beside + `}`
			}
			return text
		}
		rule := Fields(paths...)
		if same := sum(rule, value("7")) == sum(rule, value("8")); same == covered(paths, place) {
			t.Fatalf("%s: a change at %q in %s is seen: %v", rule, place, value("7"), !same)
		}
	})
}

func TestRulesAreSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	rules := Rules{
		ID:          []Source{Header("absent"), JSON("id")},
		Tenant:      []Source{Join(Header("a"), JSON("t")), Const("none")},
		Fingerprint: Fields("args.*.x").Ignore("args.0"),
	}
	record := jsonRecord(`{"id":"k","t":1,"args":[{"x":1},{"x":2},{"y":3}]}`)
	want := identify(t, rules, record)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for range 200 {
				got, err := rules.Identify("orders", record, ordersTopicID)
				if err != nil || got.Fingerprint != want.Fingerprint || got.Digest() != want.Digest() {
					t.Errorf("%+v (%v), want %+v", got, err, want)
					return
				}
			}
		})
	}
	workers.Wait()
}
