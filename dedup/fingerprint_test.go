package dedup

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func sum(f Fingerprint, value string) uuid.UUID {
	fingerprint, _ := f.Sum([]byte(value))
	return fingerprint
}

func TestRawFingerprintIsTheFirstHalfOfTheSHA256(t *testing.T) {
	t.Parallel()
	digest := sha256.Sum256([]byte(`{"a":1}`))
	fingerprint, version := Raw().Sum([]byte(`{"a":1}`))
	if hex.EncodeToString(fingerprint[:]) != hex.EncodeToString(digest[:16]) || version != 1 {
		t.Fatalf("%s, version %d", fingerprint, version)
	}
	if zero := (Fingerprint{}); zero.String() != "raw" || sum(zero, "x") != sum(Raw(), "x") {
		t.Fatal("the zero Fingerprint is not Raw")
	}
}

func TestNullAndEmptyValuesHaveDifferentFingerprints(t *testing.T) {
	t.Parallel()
	for _, f := range []Fingerprint{Raw(), Raw().Ignore("t"), Fields("a")} {
		null, version := f.Sum(nil)
		empty, emptyVersion := f.Sum([]byte{})
		if null == empty || version != emptyVersion || version == 0 {
			t.Errorf("%s: null %s, empty %s, versions %d, %d", f, null, empty, version, emptyVersion)
		}
		if null == sum(f, "null") || empty == sum(f, `""`) {
			t.Errorf("%s: null or empty is taken for JSON", f)
		}
	}
}

func TestNoneMakesNoFingerprint(t *testing.T) {
	t.Parallel()
	if fingerprint, version := None().Sum([]byte("x")); fingerprint != uuid.Nil || version != 0 {
		t.Fatalf("%s, version %d", fingerprint, version)
	}
}

// C31, and the small traps beside it.
func TestFingerprintVectors(t *testing.T) {
	t.Parallel()
	canonical := Raw().Ignore("trace_id", "meta.sent_at", "lines.*.retry")
	for _, c := range []struct {
		name  string
		rule  Fingerprint
		a, b  string
		equal bool
	}{
		{"reordered fields", canonical, `{"a":1,"b":{"c":1,"d":2}}`, `{"b":{"d":2,"c":1},"a":1}`, true},
		{"reordered fields, raw", Raw(), `{"a":1,"b":2}`, `{"b":2,"a":1}`, false},
		{"white space", canonical, `{"a":1}`, "{ \"a\" : 1 }\n", true},
		{"array order", canonical, `[1,2]`, `[2,1]`, false},
		{"number and string", canonical, `{"a":1}`, `{"a":"1"}`, false},
		{"beyond 2^53", canonical, `{"a":9007199254740993}`, `{"a":9007199254740992}`, false},
		{"beyond 2^53, equal", canonical, `{"a":9007199254740993}`, `{"a":9007199254740993.0}`, true},
		{"beyond a float64", canonical, `{"a":1e400000}`, `{"a":1e400001}`, false},
		{"below a float64", canonical, `{"a":1e-400000}`, `{"a":0}`, false},
		{"one number, spelled otherwise", canonical, `[1,10]`, `[1.0,1e1]`, true},
		{"absent and null", canonical, `{}`, `{"a":null}`, false},
		{"absent and empty", canonical, `{}`, `{"a":""}`, false},
		{"false and null", canonical, `{"a":false}`, `{"a":null}`, false},
		{"repeated member", canonical, `{"a":1,"a":2}`, `{"a":2}`, false},
		{"repeated member, other order", canonical, `{"a":1,"a":2}`, `{"a":2,"a":1}`, false},
		{"repeated member, once less", canonical, `{"a":1,"a":1}`, `{"a":1}`, false},
		{"bytes that are not UTF-8", canonical, "{\"a\":\"\xc3\x28\"}", "{\"a\":\"\xe3\x28\"}", false},
		{"not UTF-8 and U+FFFD", canonical, "{\"a\":\"\xff\"}", "{\"a\":\"\uFFFD\"}", false},
		{"halves of surrogate pairs", canonical, `{"a":"\ud800"}`, `{"a":"\ud801"}`, false},
		{"half of a pair and U+FFFD", canonical, `{"a":"\ud800"}`, `{"a":"\ufffd"}`, false},
		{"half of a pair and its escape as text", canonical, `{"a":"\ud800"}`, `{"a":"\\ud800"}`, false},
		{"half of a pair and its bytes", canonical, `{"a":"\ud800"}`, "{\"a\":\"\xed\xa0\x80\"}", false},
		{"NUL and its escape as text", canonical, `{"a":"\u0000"}`, `{"a":"\\u0000"}`, false},
		{"NUL and nothing", canonical, `{"a":"\u0000"}`, `{"a":""}`, false},
		{"escape and character", canonical, `{"a":"\u00e9"}`, `{"a":"é"}`, true},
		{"composed and decomposed", canonical, `{"a":"\u00e9"}`, `{"a":"e\u0301"}`, false},
		{"empty object and empty array", canonical, `{"a":{}}`, `{"a":[]}`, false},
		{"nested otherwise", canonical, `[[1],2]`, `[[1,2]]`, false},
		{"not JSON, equal", canonical, "id=1", "id=1", true},
		{"not JSON", canonical, "id=1", "id=2", false},
		{"bytes that begin like a canonical text", canonical, `1`, `J1`, false},
		{"bytes and a text", canonical, "R1", "1", false},
		{"ignored", canonical, `{"a":1,"trace_id":"x","meta":{"sent_at":1}}`, `{"a":1,"trace_id":"y","meta":{"sent_at":2}}`, true},
		{"ignored and absent", canonical, `{"a":1,"trace_id":"x"}`, `{"a":1}`, true},
		{"ignored first of several members", canonical, `{"trace_id":"x","zz":1}`, `{"zz":1}`, true},
		{"of the ignored's name, elsewhere", canonical, `{"a":{"trace_id":1}}`, `{"a":{"trace_id":2}}`, false},
		{"beside the ignored", canonical, `{"meta":{"sent_at":1,"v":1}}`, `{"meta":{"sent_at":1,"v":2}}`, false},
		{"ignored in every element", canonical, `{"lines":[{"sku":1,"retry":0},{"sku":2}]}`, `{"lines":[{"sku":1},{"sku":2,"retry":3}]}`, true},
		{"elements beside the ignored", canonical, `{"lines":[{"sku":1}]}`, `{"lines":[{"sku":1},{"sku":1}]}`, false},
		{"ignored twice in one object", canonical, `{"trace_id":1,"trace_id":2}`, `{}`, true},
		{"ignored name with an escape in the document", canonical, `{"\u0074race_id":1}`, `{}`, true},
		{"chosen", Fields("args"), `{"args":{"x":1},"step":1}`, `{"step":2,"args":{"x":1.0}}`, true},
		{"chosen differs", Fields("args"), `{"args":{"x":1}}`, `{"args":{"x":2}}`, false},
		{"chosen absent and null", Fields("args"), `{"args":null}`, `{}`, false},
		{"chosen absent twice", Fields("args"), `{"step":1}`, `[]`, true},
		{"chosen below what is no object", Fields("a.b"), `{"a":5}`, `{"a":{}}`, true},
		{"chosen member and chosen element", Fields("a.0"), `{"a":{"0":1}}`, `{"a":[1]}`, false},
		{"chosen element", Fields("a.1"), `{"a":[0,1]}`, `{"a":[9,1,2]}`, true},
		{"chosen element elsewhere", Fields("a.0", "a.1"), `{"a":[1]}`, `{"a":[0,1]}`, false},
		{"chosen in every element", Fields("a.*.sku"), `{"a":[{"sku":1,"n":1},{"sku":2}]}`, `{"a":[{"sku":1},{"n":5,"sku":2}]}`, true},
		{"chosen in every element, elsewhere", Fields("a.*.sku"), `{"a":[{"sku":1},{}]}`, `{"a":[{},{"sku":1}]}`, false},
		{"every member", Fields("*.v"), `{"a":{"v":1,"w":1},"b":{"v":2}}`, `{"b":{"v":2},"a":{"w":2,"v":1}}`, true},
		{"every member, under another name", Fields("*.v"), `{"a":{"v":1}}`, `{"b":{"v":1}}`, false},
		{"a name and every name", Fields("*.v", "a.w"), `{"a":{"v":1,"w":1}}`, `{"a":{"v":2,"w":1}}`, false},
		{"a path within a path", Fields("a", "a.b"), `{"a":{"b":1,"c":1}}`, `{"a":{"b":1,"c":2}}`, false},
		{"chosen without the ignored", Fields("args").Ignore("args.trace"), `{"args":{"x":1,"trace":1}}`, `{"args":{"trace":2,"x":1}}`, true},
		{"chosen values change places", Fields("a", "b"), `{"a":1,"b":2}`, `{"a":2,"b":1}`, false},
		{"one chosen is absent", Fields("a", "b"), `{"a":1}`, `{"b":1}`, false},
		{"too deep to be canonical", canonical, nested(1001), nested(1001), true},
		{"too deep, spelled otherwise", canonical, nested(1001), " " + nested(1001), false},
		{"none", None(), `1`, `2`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if err := c.rule.check(); err != nil {
				t.Fatal(err)
			}
			if got := sum(c.rule, c.a) == sum(c.rule, c.b); got != c.equal {
				t.Fatalf("equal: %v, want %v", got, c.equal)
			}
		})
	}
}

func TestFingerprintsOfOneRuleHaveOneVersion(t *testing.T) {
	t.Parallel()
	rule := Raw().Ignore("a")
	_, jsonVersion := rule.Sum([]byte(`{}`))
	_, bytesVersion := rule.Sum([]byte("\xff"))
	if jsonVersion != bytesVersion {
		t.Fatalf("versions %d and %d: a conflict between JSON and other bytes would not be seen", jsonVersion, bytesVersion)
	}
}

func TestFingerprintVersionFollowsTheRule(t *testing.T) {
	t.Parallel()
	versions := map[int16]string{}
	for _, f := range []Fingerprint{None(), Raw(), Raw().Ignore("a"), Raw().Ignore("b"), Raw().Ignore("a", "b"), Fields("a"), Fields("a").Ignore("b"), Fields("a", "b")} {
		if other, taken := versions[f.Version()]; taken || f.Version() < 0 {
			t.Errorf("%s has version %d, as %s has", f, f.Version(), other)
		}
		versions[f.Version()] = f.String()
	}
	for _, same := range [][2]Fingerprint{
		{Fields("a", "b"), Fields("b", "$.a", "a")},
		{Raw().Ignore("a").Ignore("b"), Raw().Ignore("b", "a")},
		{Raw().Ignore(), Raw()},
		{Fields("a").Ignore("b"), Fields("a").Ignore("b", "b")},
	} {
		if same[0].Version() != same[1].Version() || same[0].String() != same[1].String() {
			t.Errorf("%s and %s differ", same[0], same[1])
		}
	}
	// What is stored must be readable by the next release: versions are data.
	if v := Fields("args").Version(); v != 8324 {
		t.Errorf("the version of fields(args) became %d", v)
	}
}

func TestParseFingerprint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"raw", "raw"},
		{"none", "none"},
		{"fields(a,b.c)", "fields(a,b.c)"},
		{"fields( $.b.c , a )", "fields(a,b.c)"},
		{"raw ignore(t)", "raw ignore(t)"},
		{"raw  ignore(t, u)", "raw ignore(t,u)"},
		{"fields(a) ignore(a.t)", "fields(a) ignore(a.t)"},
		{`fields("a,b",a\.b,*.c)`, `fields(*.c,"a,b",a\.b)`},
	} {
		f, err := ParseFingerprint(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		if f.String() != c.want {
			t.Errorf("%s is shown as %s, want %s", c.text, f, c.want)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"", "unknown kind"},
		{"row", `did you mean "raw"?`},
		{"field(a)", `did you mean "fields"?`},
		{"fields", "in parentheses"},
		{"fields()", "it is empty"},
		{"fields(a", "closing parenthesis"},
		{"fields(a)x", "only ignore"},
		{"raw ignore", "in parentheses"},
		{"raw ignore(a) b", "left over"},
		{"raw(a)", "only ignore"},
		{"none ignore(a)", "nothing to ignore"},
		{"fields(a[0])", "lines.0"},
		{"fields(a..b)", "a name is missing"},
		{"raw ignore(a*)", "whole name"},
		{"fields(a#)", "no meaning"},
	} {
		if _, err := ParseFingerprint(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want one that says %q", c.text, err, c.want)
		}
	}
}

func TestFingerprintPathsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	many := make([]string, 65)
	for i := range many {
		many[i] = "a" + itoa(i)
	}
	mixed := make([]string, 40) // *.*.a.*.* with the name at each place: as many sets as there are subsets
	for i := range mixed {
		mixed[i] = strings.Repeat("*.", i) + "a" + strings.Repeat(".*", len(mixed)-i)
	}
	for want, f := range map[string]Fingerprint{
		"in too many ways":        Fields(mixed...),
		"no path is given":        Fields(),
		"nothing to ignore":       None().Ignore("a"),
		"at most 64":              Raw().Ignore(many...),
		"longer than 1000":        Fields(strings.Repeat("a", 1001)),
		"ends with a backslash":   Fields(`a\`),
		"it is empty":             Fields("$."),
		`path "a?": '?' has no m`: Fields("a?"),
	} {
		err := Rules{ID: []Source{Header("a")}, Fingerprint: f}.Validate()
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "Rules.Fingerprint") {
			t.Errorf("error %v, want one of Rules.Fingerprint that says %q", err, want)
		}
	}
}

func anyFingerprint() *rapid.Generator[Fingerprint] {
	paths := rapid.SliceOfN(rapid.StringMatching(`([a-z@,"() ]|\\[.*\\a?#\[]){1,3}(\.(\*|[a-z0-9é]{1,3}|\\\*)){0,3}`), 1, 4)
	return rapid.Custom(func(t *rapid.T) Fingerprint {
		f := rapid.SampledFrom([]Fingerprint{Raw(), None()}).Draw(t, "kind")
		if rapid.Bool().Draw(t, "fields") {
			f = Fields(paths.Draw(t, "paths")...)
		}
		if f.String() != "none" && rapid.Bool().Draw(t, "ignore") {
			f = f.Ignore(paths.Draw(t, "ignored")...)
		}
		return f
	})
}

func TestEveryFingerprintReadsAsItIsWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := anyFingerprint().Draw(t, "fingerprint")
		if err := f.check(); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		again, err := ParseFingerprint(f.String())
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		if again.String() != f.String() || again.Version() != f.Version() {
			t.Fatalf("%s is read as %s", f, again)
		}
	})
}

// What Fields chooses and what Ignore leaves out are two views of one thing: a value from which the members are really gone.
func TestIgnoreIsTheSameAsLeavingOut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := anyJSON(3).Draw(t, "value")
		without := v.without("a")
		if sum(Raw().Ignore("a"), spelling(t, v)) != sum(Raw().Ignore("a"), spelling(t, without)) {
			t.Fatalf("ignored and left out differ: %s, %s", spelling(t, v), spelling(t, without))
		}
		if v.kind == "object" && len(without.names) == len(v.names) {
			a, b := spelling(t, v), spelling(t, v)
			if sum(Raw().Ignore("a"), a) != sum(Raw().Ignore("zz"), b) {
				// Different rules, so different versions; what they hash is the same text.
				t.Fatalf("nothing is ignored in %s, and still it differs", a)
			}
		}
	})
}

// without returns the value without its members of a name.
func (v jsonValue) without(name string) jsonValue {
	if v.kind != "object" {
		return v
	}
	rest := jsonValue{kind: v.kind}
	for i, n := range v.names {
		if n != name {
			rest.names = append(rest.names, n)
			rest.elements = append(rest.elements, v.elements[i])
		}
	}
	return rest
}

func FuzzFingerprint(f *testing.F) {
	for _, seed := range [][2]string{
		{`{"a":1,"b":2}`, `{"b":2,"a":1}`},
		{`{"a":1,"a":2}`, `{"a":2,"a":1}`},
		{`[9007199254740993]`, `[9007199254740992]`},
		{`[1e400000]`, `[10e399999]`},
		{`["\ud800"]`, "[\"\xed\xa0\x80\"]"},
		{`["\ud83d\ude00"]`, `["😀"]`},
		{"[\"\xc3\x28\"]", `["\u00c3("]`},
		{`["\u0000"]`, `["\\u0000"]`},
		{`[0.10]`, `[1e-1]`},
		{`{"":{"":[]}}`, `{"":{"":{}}}`},
		{nested(40), nested(41)},
		{`null`, ``},
		{`[-0]`, `[0]`},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]))
	}
	rule := Raw().Ignore("ignored")
	f.Fuzz(func(t *testing.T, a, b []byte) {
		for _, value := range [][]byte{a, b} {
			_, err := canonicalJSON(nil, value, nil, nil)
			if valid := json.Valid(value); err == nil && !valid || valid && err != nil && !errors.Is(err, errTooDeep) {
				t.Fatalf("%q: error %v, encoding/json says valid: %v", value, err, valid)
			}
			if (checkJSON(value) == nil) != (err == nil) {
				t.Fatalf("%q: canonicalJSON %v, checkJSON %v", value, err, checkJSON(value))
			}
			if err == nil && canonicalText(canonicalText(string(value))) != canonicalText(string(value)) {
				t.Fatalf("%q: the canonical text changes when it is read", value)
			}
		}
		if same := sum(Raw(), string(a)) == sum(Raw(), string(b)); same != (string(a) == string(b)) {
			t.Fatalf("raw: %q and %q", a, b)
		}
		if checkJSON(a) != nil || checkJSON(b) != nil {
			if same := sum(rule, string(a)) == sum(rule, string(b)); same != (string(a) == string(b)) {
				t.Fatalf("not JSON: %q and %q", a, b)
			}
			return
		}
		if oracleKnows(string(a)) && oracleKnows(string(b)) {
			wantSameAsOracle(t, string(a), string(b))
		}
	})
}
