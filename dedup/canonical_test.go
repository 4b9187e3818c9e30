package dedup

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func canonicalText(value string) string {
	text, err := canonicalJSON(nil, []byte(value), nil, nil)
	if err != nil {
		return "error: " + err.Error()
	}
	return string(text)
}

func TestCanonicalJSON(t *testing.T) {
	t.Parallel()
	const notJSON = "error: the value is not valid JSON"
	for _, c := range []struct{ value, want string }{
		{`{"b":1,"a":[2,1]}`, `{"a":[2,1],"b":1}`},
		{" { \"b\" : { \"d\" : 1 , \"c\" : 2 } ,\n\t\"a\" : [ ] , \"\" : { } } \r", `{"":{},"a":[],"b":{"c":2,"d":1}}`},
		{`{"a":1,"a":2}`, `{"a":1,"a":2}`},
		{`{"b":0,"a":2,"a":1}`, `{"a":2,"a":1,"b":0}`},
		{`[1,1.0,10e-1,0.1e1,1E0,100,1e2,0.01e+4]`, `[1,1,1,1,1,1e2,1e2,1e2]`},
		{`[0,-0,0.00,0e99,-0.0e-5]`, `[0,0,0,0,0]`},
		{`[-1.50,120,0.0012,12.34]`, `[-15e-1,12e1,12e-4,1234e-2]`},
		{`[9007199254740993,9007199254740992]`, `[9007199254740993,9007199254740992]`},
		{`[1e400000,1e400001,-1e-400000]`, `[1e400000,1e400001,-1e-400000]`},
		{`[1e000000000000000000000005]`, `[1e5]`},
		{`[1.0e9999999999999999999,0e9999999999999999999,1e1000000000000000000]`, `[1.0e9999999999999999999,0,1e1000000000000000000]`},
		{`[10e999999999999999999]`, `[1e1000000000000000000]`},
		{`["\u0041\/\"\\\b\f\n\r\t\u00e9\u0000"]`, `["A/\"\\\u0008\u000c\u000a\u000d\u0009é\u0000"]`},
		{`["\ud83d\ude00","\uD83D\uDE00","😀"]`, `["😀","😀","😀"]`},
		{`["\ud800","\udfff","\ude00\ud83d","\ud800A"]`, `["\ud800","\udfff","\ude00\ud83d","\ud800A"]`},
		{"[\"\xc3\x28\",\"\xff\"]", "[\"\xc3\x28\",\"\xff\"]"},
		{`null`, `null`},
		{`[true,false,null,"null",""]`, `[true,false,null,"null",""]`},
		{``, notJSON},
		{` `, notJSON},
		{`{`, notJSON},
		{`[`, notJSON},
		{`{"a"}`, notJSON},
		{`{"a":}`, notJSON},
		{`{"a":1,}`, notJSON},
		{`[1,]`, notJSON},
		{`[1 2]`, notJSON},
		{`{a:1}`, notJSON},
		{`01`, notJSON},
		{`+1`, notJSON},
		{`1.`, notJSON},
		{`.5`, notJSON},
		{`1e`, notJSON},
		{`1e+`, notJSON},
		{`-`, notJSON},
		{`NaN`, notJSON},
		{`tru`, notJSON},
		{`nul`, notJSON},
		{`"a`, notJSON},
		{`"\x"`, notJSON},
		{`"\u12"`, notJSON},
		{`"\u12g4"`, notJSON},
		{"\"\n\"", notJSON},
		{`{} {}`, notJSON},
		{`1]`, notJSON},
		{"\xef\xbb\xbf{}", notJSON},
		{`'a'`, notJSON},
		{`{"a":1 "b":2}`, notJSON},
		{`{,}`, notJSON},
		{`[,]`, notJSON},
		{nested(maxDepth), nested(maxDepth)},
		{nested(maxDepth + 1), "error: the value is nested more than 1000 levels deep"},
		{strings.Repeat("[", maxDepth), notJSON},
	} {
		if diff := cmp.Diff(c.want, canonicalText(c.value)); diff != "" {
			t.Errorf("%.200s: -want +got\n%s", c.value, diff)
		}
	}
}

func TestCanonicalJSONOfAPart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		selected, ignored []string
		value, want       string
	}{
		{nil, []string{"b"}, `{"b":1,"a":2,"c":3}`, `{"a":2,"c":3}`},
		{nil, []string{"0", "2"}, `[1,2,3,4]`, `[2,4]`},
		{nil, []string{"*"}, `[1,2]`, `[]`},
		{nil, []string{"*"}, `{"a":1}`, `{}`},
		{nil, []string{`\*`}, `{"*":1,"a":2}`, `{"a":2}`},
		{nil, []string{"a.b"}, `{"a":[{"b":1}],"b":1}`, `{"a":[{"b":1}],"b":1}`},
		{[]string{"b", "a.c"}, nil, `{"c":0,"b":[1,{"x":1}],"a":{"d":1,"c":2}}`, `{"a":{"c":2},"b":[1,{"x":1}]}`},
		{[]string{"l.*.x"}, nil, `{"l":[0,{"x":1},{"y":1},{"x":2}]}`, `{"l":[1:{"x":1},3:{"x":2}]}`},
		{[]string{"l.10"}, nil, `{"l":[0,1,2,3,4,5,6,7,8,9,10]}`, `{"l":[10:1e1]}`},
		{[]string{`\*`}, nil, `{"*":1,"a":2}`, `{"*":1}`},
		{[]string{"a"}, nil, `[1,{"a":1}]`, ``},
		{[]string{"a"}, []string{"a.t", "b"}, `{"b":1,"a":{"t":1,"u":2}}`, `{"a":{"u":2}}`},
	} {
		_, selected, errSelected := parsePaths(c.selected)
		_, ignored, errIgnored := parsePaths(c.ignored)
		if errSelected != nil || errIgnored != nil {
			t.Fatal(errSelected, errIgnored)
		}
		if len(c.selected) == 0 {
			selected = nil
		}
		got, err := canonicalJSON(nil, []byte(c.value), selected, ignored)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s (%v), want %s", c.value, got, err, c.want)
		}
	}
}

func TestManyMembersOfOneNameKeepTheirOrder(t *testing.T) {
	t.Parallel()
	var mixed, sorted []string
	for i := range 200 {
		member := `"` + string("badc"[i*37%4]) + `":"` + itoa(i) + `"`
		mixed, sorted = append(mixed, member), append(sorted, member)
	}
	slices.SortStableFunc(sorted, func(a, b string) int { return strings.Compare(a[:3], b[:3]) })
	if got, want := canonicalText("{"+strings.Join(mixed, ",")+"}"), "{"+strings.Join(sorted, ",")+"}"; got != want {
		t.Fatal(cmp.Diff(want, got))
	}
}

func TestCanonicalJSONAppendsNothingWhenItFails(t *testing.T) {
	t.Parallel()
	out, err := canonicalJSON([]byte("J"), []byte(`{"a":1`), nil, nil)
	if err == nil || string(out) != "J" {
		t.Fatalf("%q, %v", out, err)
	}
}

// jsonValue is a JSON value for tests: a value that a generator draws, and the spellings of which are all to have one canonical text.
type jsonValue struct {
	kind     string // object, array, string, number, word
	text     string // the string itself, the number's digits, the word
	zeros    int    // for a number: the power of ten
	names    []string
	elements []jsonValue
}

func anyJSON(depth int) *rapid.Generator[jsonValue] {
	return rapid.Custom(func(t *rapid.T) jsonValue {
		kinds := []string{"string", "number", "word"}
		if depth > 0 {
			kinds = append(kinds, "object", "array", "object")
		}
		v := jsonValue{kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
		switch v.kind {
		case "string":
			v.text = rapid.StringOfN(rapid.SampledFrom([]rune("ab\"\\/\x00\n\u2028é😀")), 0, 4, -1).Draw(t, "string")
		case "number":
			v.text = rapid.SampledFrom([]string{"1", "2", "12", "9007199254740993", "9007199254740992", "-3"}).Draw(t, "digits")
			v.zeros = rapid.SampledFrom([]int{0, 0, 1, -1, 3, -2, 400000}).Draw(t, "zeros")
		case "word":
			v.text = rapid.SampledFrom([]string{"null", "true", "false"}).Draw(t, "word")
		case "object":
			v.names = rapid.SliceOfN(rapid.StringOfN(rapid.SampledFrom([]rune("ab\"é")), 0, 2, -1), 0, 4).Draw(t, "names")
			v.elements = rapid.SliceOfN(anyJSON(depth-1), len(v.names), len(v.names)).Draw(t, "members")
		case "array":
			v.elements = rapid.SliceOfN(anyJSON(depth-1), 0, 3).Draw(t, "elements")
		}
		return v
	})
}

// spell writes a value in one of its spellings: other white space, other escapes, other order of members with different names, another form of numbers.
func (v jsonValue) spell(t *rapid.T, out *strings.Builder) {
	space := func() { out.WriteString(rapid.SampledFrom([]string{"", "", " ", "\n\t"}).Draw(t, "space")) }
	space()
	switch v.kind {
	case "object":
		out.WriteByte('{')
		for i, member := range v.shuffle(t) {
			if i > 0 {
				out.WriteByte(',')
			}
			space()
			spellString(t, v.names[member], out)
			space()
			out.WriteByte(':')
			v.elements[member].spell(t, out)
		}
		out.WriteByte('}')
	case "array":
		out.WriteByte('[')
		for i, element := range v.elements {
			if i > 0 {
				out.WriteByte(',')
			}
			element.spell(t, out)
		}
		out.WriteByte(']')
	case "string":
		spellString(t, v.text, out)
	case "number":
		spellNumber(t, v.text, v.zeros, out)
	default:
		out.WriteString(v.text)
	}
	space()
}

// shuffle returns the members in another order, in which those of one name keep theirs.
func (v jsonValue) shuffle(t *rapid.T) []int {
	order := make([]int, len(v.names))
	for i := range order {
		order[i] = i
	}
	for i := len(order) - 1; i > 0; i-- {
		j := rapid.IntRange(i-1, i).Draw(t, "swap")
		if v.names[order[i]] != v.names[order[j]] {
			order[i], order[j] = order[j], order[i]
		}
	}
	return order
}

func spellString(t *rapid.T, text string, out *strings.Builder) {
	out.WriteByte('"')
	for _, r := range text {
		plain, _ := json.Marshal(string(r))
		spelling := strings.Trim(string(plain), `"`)
		if r == '"' {
			spelling = `\"`
		}
		if r != '😀' && rapid.Bool().Draw(t, "escape") {
			const digits = "0123456789ABCDEF"
			spelling = `\u` + string([]byte{digits[r>>12], digits[r>>8&15], digits[r>>4&15], digits[r&15]})
		} else if r == '😀' && rapid.Bool().Draw(t, "pair") {
			spelling = `\uD83d\ude00`
		}
		out.WriteString(spelling)
	}
	out.WriteByte('"')
}

func spellNumber(t *rapid.T, digits string, zeros int, out *strings.Builder) {
	out.WriteString(digits)
	switch rapid.IntRange(0, 3).Draw(t, "spelling") {
	case 0: // 12e3 as 12.00e3
		out.WriteString(".00e" + itoa(zeros))
	case 1: // as 120e2
		out.WriteString("0e" + itoa(zeros-1))
	case 2: // as 12E+3
		if zeros >= 0 {
			out.WriteString("E+" + itoa(zeros))
			return
		}
		out.WriteString("E" + itoa(zeros))
	default:
		if zeros != 0 {
			out.WriteString("e" + itoa(zeros))
		}
	}
}

func itoa(n int) string { return string(appendDecimal(nil, n)) }

func spelling(t *rapid.T, v jsonValue) string {
	var out strings.Builder
	v.spell(t, &out)
	return out.String()
}

func TestEverySpellingOfAValueHasOneCanonicalText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := anyJSON(3).Draw(t, "value")
		a, b := spelling(t, v), spelling(t, v)
		if !json.Valid([]byte(a)) {
			t.Fatalf("the test writes bad JSON: %q", a)
		}
		if canonicalText(a) != canonicalText(b) {
			t.Fatalf("one value, two texts:\n%s\n%s\n%s\n%s", a, b, canonicalText(a), canonicalText(b))
		}
		if again := canonicalText(canonicalText(a)); again != canonicalText(a) {
			t.Fatalf("the canonical text changes when it is read: %s, %s", canonicalText(a), again)
		}
		if !json.Valid([]byte(canonicalText(a))) {
			t.Fatalf("the canonical text is no JSON: %s", canonicalText(a))
		}
	})
}

func TestTwoValuesShareACanonicalTextOnlyWhenTheyAreEqual(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		// Few names, digits and depth, so that values are often equal, or nearly so.
		a, b := spelling(t, anyJSON(2).Draw(t, "a")), spelling(t, anyJSON(2).Draw(t, "b"))
		wantSameAsOracle(t, a, b)
	})
}

// fataler is what *testing.T and *rapid.T have in common here.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// wantSameAsOracle compares canonicalJSON with an oracle that shares no code with it.
func wantSameAsOracle(t fataler, a, b string) {
	t.Helper()
	textA, errA := canonicalJSON(nil, []byte(a), nil, nil)
	textB, errB := canonicalJSON(nil, []byte(b), nil, nil)
	if errA != nil || errB != nil {
		return
	}
	same := string(textA) == string(textB)
	if want := oracle(a) == oracle(b); same != want {
		t.Fatalf("canonical texts equal: %v, values equal: %v\n%q\n%q\n%s\n%s", same, want, a, b, textA, textB)
	}
}
