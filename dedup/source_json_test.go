package dedup

import (
	"strings"
	"testing"
)

func TestJSONSource(t *testing.T) {
	t.Parallel()
	id := JSON("id")
	runSourceCases(t, []sourceCase{
		{name: "string", source: id, record: jsonRecord(`{"id":"k-1"}`), want: "k-1"},
		{name: "empty string is found and empty", source: id, record: jsonRecord(`{"id":""}`)},
		{name: "white space is kept", source: id, record: jsonRecord(`{"id":" "}`), want: " "},
		{name: "number", source: id, record: jsonRecord(`{"id":42}`), want: "42"},
		{name: "beyond 2^53", source: id, record: jsonRecord(`{"id":9007199254740993}`), want: "9007199254740993"},
		{name: "digits as they are written", source: id, record: jsonRecord(`{"id": 1.50e+3 }`), want: "1.50e+3"},
		{name: "number too large for a float", source: id, record: jsonRecord(`{"id":1e400000}`), want: "1e400000"},
		{name: "true", source: id, record: jsonRecord(`{"id":true}`), want: "true"},
		{name: "false", source: id, record: jsonRecord(`{"id":false}`), want: "false"},
		{name: "null is not found", source: id, record: jsonRecord(`{"id":null}`), missing: true},
		{name: "absent", source: id, record: jsonRecord(`{"di":1}`), missing: true},
		{name: "null value", source: id, record: idRecord(nil), missing: true},
		{name: "value is the JSON null", source: id, record: jsonRecord(`null`), missing: true},
		{name: "value is a scalar", source: id, record: jsonRecord(`"id"`), missing: true},
		{name: "value is an array", source: id, record: jsonRecord(`[1]`), missing: true},
		{name: "empty value", source: id, record: idRecord([]byte{}), undecodable: "not valid JSON"},
		{name: "white space value", source: id, record: jsonRecord(" \n"), undecodable: "not valid JSON"},
		{name: "cut off", source: id, record: jsonRecord(`{"id":"k-1"`), undecodable: "not valid JSON"},
		{name: "broken behind the id", source: id, record: jsonRecord(`{"id":"k-1",}`), undecodable: "not valid JSON"},
		{name: "text", source: id, record: jsonRecord(`id=1`), undecodable: "not valid JSON"},
		{name: "byte order mark", source: id, record: jsonRecord("\xef\xbb\xbf{\"id\":1}"), undecodable: "not valid JSON"},
		{name: "object", source: id, record: jsonRecord(`{"id":{"a":1}}`), undecodable: "an object"},
		{name: "array", source: id, record: jsonRecord(`{"id":["a"]}`), undecodable: "an array"},
		{name: "escapes", source: id, record: jsonRecord(`{"id":"\u0041\n\/\ud83d\ude00\""}`), want: "A\n/😀\""},
		{name: "NUL", source: id, record: jsonRecord(`{"id":"a\u0000b"}`), want: "a\x00b"},
		{name: "half a surrogate pair", source: id, record: jsonRecord(`{"id":"\ud800"}`), undecodable: "surrogate"},
		{name: "two halves in the wrong order", source: id, record: jsonRecord(`{"id":"\ude00\ud83d"}`), undecodable: "surrogate"},
		{name: "bytes that are not UTF-8", source: id, record: jsonRecord("{\"id\":\"\xc3\x28\"}"), want: "\xc3\x28"},
		{name: "first of repeated members", source: id, record: jsonRecord(`{"id":"a","id":"b"}`), want: "a"},
		{name: "name with escapes in the document", source: id, record: jsonRecord(`{"\u0069d":"k"}`), want: "k"},
		{name: "nested", source: JSON("order.id"), record: jsonRecord(`{"order":{"id":"k"}}`), want: "k"},
		{name: "JSONPath's prefix", source: JSON("$.order.id"), record: jsonRecord(`{"order":{"id":"k"}}`), want: "k"},
		{name: "a name that is $", source: JSON("$.$.id"), record: jsonRecord(`{"$":{"id":"k"},"id":"z"}`), want: "k"},
		{name: "a name that begins with $", source: JSON("_id.$oid"), record: jsonRecord(`{"_id":{"$oid":"k"}}`), want: "k"},
		{name: "element", source: JSON("lines.1.id"), record: jsonRecord(`{"lines":[{"id":"a"},{"id":"b"}]}`), want: "b"},
		{name: "query", source: JSON(`lines.#(kind=="main").id`), record: jsonRecord(`{"lines":[{"id":"a"},{"id":"b","kind":"main"}]}`), want: "b"},
		{name: "dot in a name", source: JSON(`a\.b`), record: jsonRecord(`{"a.b":"k","a":{"b":"z"}}`), want: "k"},
		{name: "JSON within a string", source: JSON(`body|@fromstr|id`), record: jsonRecord(`{"body":"{\"id\":\"k\"}"}`), want: "k"},
		{name: "JSON within a string, twice", source: JSON(`a|@fromstr|b|@fromstr|c`), record: jsonRecord(`{"a":"{\"b\":\"{\\\"c\\\":7}\"}"}`), want: "7"},
		{name: "no JSON within the string", source: JSON(`body|@fromstr|id`), record: jsonRecord(`{"body":"id=1"}`), undecodable: "@fromstr: the value is not valid JSON"},
		{name: "no string to read JSON from", source: JSON(`body|@fromstr|id`), record: jsonRecord(`{"body":{"id":1}}`), undecodable: "@fromstr needs a string"},
		{name: "nothing to read JSON from", source: JSON(`body|@fromstr|id`), record: jsonRecord(`{"body":null}`), missing: true},
		{
			name: "deep nesting hidden in a string", source: JSON(`body|@fromstr|id`),
			record: jsonRecord(`{"body":"` + strings.Repeat(`\u005b`, maxDepth+1) + `"}`), undecodable: "@fromstr: the value is nested more than 1000",
		},
		{name: "whole value", source: JSON("$"), record: jsonRecord(` "k" `), want: "k"},
		{name: "all elements", source: JSON("lines.#.id"), record: jsonRecord(`{"lines":[{"id":"a"}]}`), undecodable: "an array"},
		{name: "nested as deep as is allowed", source: JSON("id"), record: jsonRecord(`{"id":"k","x":` + nested(maxDepth-1) + `}`), want: "k"},
		{name: "nested deeper", source: JSON("id"), record: jsonRecord(`{"id":"k","x":` + nested(maxDepth) + `}`), undecodable: "nested more than 1000"},
		{name: "brackets in strings are no nesting", source: JSON("id"), record: jsonRecord(`{"id":"k","x":"` + strings.Repeat(`[\"{`, 2000) + `"}`), want: "k"},
		{name: "many brackets side by side are no nesting", source: JSON("id"), record: jsonRecord(`{"id":"k","x":[[]` + strings.Repeat(`,[]`, 2000) + `]}`), want: "k"},
	})
}

// nested is an array in an array, and so on, depth deep.
func nested(depth int) string {
	return strings.Repeat("[", depth) + strings.Repeat("]", depth)
}

func TestAValueOfOpeningBracketsDoesNotEndTheProcess(t *testing.T) {
	t.Parallel()
	hostile := jsonRecord(strings.Repeat("[", 20<<20))
	for _, source := range []Source{JSON("id"), Envelope()} {
		_, _, err := source.Find(hostile)
		wantUndecodable(t, err, source, "nested more than 1000")
	}
	_, version := Raw().Ignore("a").Sum(hostile.Value)
	if version == 0 {
		t.Fatal("no fingerprint")
	}
}

func TestJSONPathsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"":              "empty",
		"lines[0].id":   "lines.0",
		"$.lines[*]":    "lines.0",
		"[a,b]":         "brackets",
		"{a}":           "brackets",
		"..0.id":        "a name is missing",
		"a..b":          "a name is missing",
		"a.":            "a name is missing",
		".a":            "a name is missing",
		"!\"x\"":        "constant",
		"lines.#":       "counts elements",
		"a|@fromstr":    "between two bars",
		"a.@fromstr.b":  "between two bars",
		"a|@fromstr|":   "a part of it is",
		`a.#(b=="c`:     "not closed",
		`a.#(b=="c).id`: "not closed",
	} {
		err := Rules{ID: []Source{JSON(path)}}.Validate()
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "Rules.ID[0]") {
			t.Errorf("path %q: error %v, want one of Rules.ID[0] that says %q", path, err, want)
		}
	}
	for _, path := range []string{"id", "$", "$.a", `a\[0\]`, `a.#(b[0]=="(").id`, `a.#(b==")").id`, "a.0.b", "@timestamp", `a\#`, "a|@fromstr|b"} {
		if err := (Rules{ID: []Source{JSON(path)}}).Validate(); err != nil {
			t.Errorf("path %q: %v", path, err)
		}
	}
}

func TestEnvelopeSource(t *testing.T) {
	t.Parallel()
	runSourceCases(t, []sourceCase{
		{name: "key", source: Envelope(), record: jsonRecord(`{"idempotency_key":"k\u0041","tool":"t"}`), want: "kA"},
		{name: "empty key", source: Envelope(), record: jsonRecord(`{"idempotency_key":""}`)},
		{name: "null key", source: Envelope(), record: jsonRecord(`{"idempotency_key":null}`), missing: true},
		{name: "absent key", source: Envelope(), record: jsonRecord(`{}`), missing: true},
		{name: "null value", source: Envelope(), record: idRecord(nil), missing: true},
		{name: "number", source: Envelope(), record: jsonRecord(`{"idempotency_key":1}`), undecodable: "not a string"},
		{name: "array", source: Envelope(), record: jsonRecord(`[{"idempotency_key":"k"}]`), undecodable: "not a JSON object"},
		{name: "text", source: Envelope(), record: jsonRecord(`hello`), undecodable: "not valid JSON"},
		{name: "half a surrogate pair", source: Envelope(), record: jsonRecord(`{"idempotency_key":"\udfff"}`), undecodable: "surrogate"},
	})
}
