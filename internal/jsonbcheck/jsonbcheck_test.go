package jsonbcheck_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/claimq/claimq/internal/jsonbcheck"
)

// vectors are texts at the borders of what jsonb takes. They are also the seeds of
// FuzzCheckAgainstServer.
var vectors = []struct {
	name   string
	value  string
	offset int    // of the refusal
	reason string // begins the refusal's reason; "": taken
}{
	{"an object", `{"a":1,"b":[true,false,null],"c":{"d":"e"}}`, 0, ""},
	{"white space everywhere", " \t\r\n{ \"a\" : [ 1 , 2 ] , \"b\" : { } } \n", 0, ""},
	{"a scalar", `"text"`, 0, ""},
	{"a lone zero", `0`, 0, ""},
	{"minus zero", `-0`, 0, ""},
	{"empty containers", `[[],{},[{}]]`, 0, ""},
	{"a repeated key", `{"a":1,"a":2}`, 0, ""},
	{"an empty key", `{"":""}`, 0, ""},
	{"every escape", `"\"\\\/\b\f\n\r\t\u0041\uabCD"`, 0, ""},
	{"a surrogate pair", `"\ud83d\ude00"`, 0, ""},
	{"DEL in a string", "\"\x7f\"", 0, ""},
	{"a noncharacter", "\"\uffff\"", 0, ""},
	{"the last code point", "\"\U0010ffff\"", 0, ""},
	{"the largest power of ten", `1e131071`, 0, ""},
	{"the smallest scale", `1e-16383`, 0, ""},
	{"many digits after the point and a large exponent", "0." + strings.Repeat("1", 16400) + "e17", 0, ""},
	{"a signed exponent", `[1E+2,1e-2]`, 0, ""},
	{"as deep as it goes", strings.Repeat("[", 512) + strings.Repeat("]", 512), 0, ""},
	{"objects as deep as it goes", strings.Repeat(`{"k":`, 512) + "1" + strings.Repeat("}", 512), 0, ""},

	{"nothing", ``, 0, "the text ends"},
	{"white space only", "  \n", 3, "the text ends"},
	{"an open string", `"abc`, 4, "the text ends"},
	{"an open string of eight bytes", `"abcdefgh`, 9, "the text ends"},
	{"an open array", `[1,`, 3, "the text ends"},
	{"an open object", `{"a"`, 4, "the text ends"},
	{"half a word", `tru`, 3, "the text ends"},
	{"a lone minus", `-`, 1, "the text ends"},
	{"a point without digits", `1.`, 2, "the text ends"},
	{"an exponent without digits", `1e+`, 3, "the text ends"},
	{"a backslash at the end", `"\`, 2, "the text ends"},
	{"two values", `1 2`, 2, "something after"},
	{"a comma at the end of an array", `[1,]`, 3, "an unexpected byte"},
	{"a comma at the end of an object", `{"a":1,}`, 7, "an unexpected byte"},
	{"a key that is no string", `{1:2}`, 1, "an unexpected byte"},
	{"a missing colon", `{"a" 1}`, 5, "an unexpected byte"},
	{"a wrong bracket", `[1}`, 2, "an unexpected byte"},
	{"a wrong brace", `{"a":1]`, 6, "an unexpected byte"},
	{"single quotes", `{'a':1}`, 1, "an unexpected byte"},
	{"NaN", `NaN`, 0, "an unexpected byte"},
	{"a byte order mark", "\ufeff{}", 0, "an unexpected byte"},
	{"a NUL byte", "{}\x00", 2, "something after"},
	{"a comment", `/**/1`, 0, "an unexpected byte"},
	{"a leading zero", `01`, 0, "a malformed number"},
	{"a leading zero after a minus", `[-01]`, 2, "a malformed number"},
	{"a leading plus", `+1`, 0, "an unexpected byte"},
	{"a leading point", `.5`, 0, "an unexpected byte"},
	{"hexadecimal", `0x10`, 1, "something after"},
	{"letters after a number", `[1a]`, 2, "an unexpected byte"},
	{"letters after a word", `nullx`, 4, "something after"},
	{"a point without digits in an array", `[1.]`, 3, "a malformed number"},
	{"a control character in a string", "\"a\nb\"", 2, "a control character"},
	{"a NUL byte in a string", "\"abcdefgh\x00\"", 9, "a control character"},
	{"an unknown escape", `"\x41"`, 1, "an escape"},
	{"a short unicode escape", `"\u12"`, 1, "an escape"},
	{"the escape of NUL", `{"a":"\u0000"}`, 6, "the escape of NUL"},
	{"the escape of NUL in a key", `{"\u0000":1}`, 2, "the escape of NUL"},
	{"a high surrogate alone", `"\ud800"`, 1, "half a surrogate"},
	{"a high surrogate before another", `"\ud800\ud800"`, 1, "half a surrogate"},
	{"a high surrogate before a letter", `"\ud800a"`, 1, "half a surrogate"},
	{"a low surrogate alone", `"\udc00"`, 1, "half a surrogate"},
	{"one digit too many before the point", `1e131072`, 0, "a number outside"},
	{"one digit too many after the point", `[1e-16384]`, 1, "a number outside"},
	{"an exponent beyond int64", `1e99999999999999999999`, 0, "a number outside"},
	{"C15: an exponent of 400000", `{"a":1e400000}`, 5, "a number outside"},
	{"one level too deep", strings.Repeat("[", 513) + strings.Repeat("]", 513), 512, "nested"},
	{"C15: bytes C3 28", "\"\xc3\x28\"", 1, "not UTF-8"},
	{"an overlong NUL", "\"\xc0\x80\"", 1, "not UTF-8"},
	{"a surrogate in UTF-8", "\"\xed\xa0\x80\"", 1, "not UTF-8"},
	{"beyond the last code point", "\"\xf4\x90\x80\x80\"", 1, "not UTF-8"},
	{"a cut character", "\"\xe2\x82", 1, "not UTF-8"},
}

func TestCheckVectors(t *testing.T) {
	t.Parallel()
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			err := jsonbcheck.Check([]byte(v.value))
			if v.reason == "" {
				if err != nil {
					t.Errorf("Check refuses %.80q: %v", v.value, err)
				}
				return
			}
			var refused *jsonbcheck.RefusedError
			if !errors.As(err, &refused) {
				t.Fatalf("Check(%.80q) = %v, want a refusal: %s", v.value, err, v.reason)
			}
			if !strings.HasPrefix(refused.Reason, v.reason) || refused.Offset != v.offset {
				t.Errorf("Check(%.80q): %q at byte %d, want %q at byte %d", v.value, refused.Reason, refused.Offset, v.reason, v.offset)
			}
		})
	}
}

func TestCheckRefusesNil(t *testing.T) {
	t.Parallel()
	if err := jsonbcheck.Check(nil); err == nil {
		t.Error("Check(nil) = nil: a value without bytes is no JSON text")
	}
}

func TestCheckBoundsTheLength(t *testing.T) {
	t.Parallel()
	fits := []byte(`"` + strings.Repeat("x", jsonbcheck.MaxBytes-2) + `"`)
	if err := jsonbcheck.Check(fits); err != nil {
		t.Errorf("Check of %d bytes: %v", len(fits), err)
	}
	if err := jsonbcheck.Check(append(fits, ' ')); err == nil {
		t.Errorf("Check of %d bytes = nil, want a refusal", len(fits)+1)
	}
}

// Every place of the eight that skipPlain looks at together.
func TestCheckFindsWhatEndsAStringAtEveryAlignment(t *testing.T) {
	t.Parallel()
	for before := range 24 {
		for _, high := range []string{"x", "é", "\u20ac"} {
			plain := strings.Repeat(high, before)
			for _, tt := range []struct {
				text  string
				taken bool
			}{
				{`"` + plain + `"`, true},
				{`["` + plain + `!#[]","x"]`, true},
				{`"` + plain + "\x1f" + `aaaaaaaaaaaa"`, false},
				{`"` + plain + `\u0000` + `aaaaaaaaaaaa"`, false},
				{`"` + plain + `\"` + `aaaaaaaaaaaa"`, true},
				{`"` + plain + `" "aaaaaaaaaa"`, false},
			} {
				if err := jsonbcheck.Check([]byte(tt.text)); (err == nil) != tt.taken {
					t.Errorf("Check(%q) = %v, want taken %v", tt.text, err, tt.taken)
				}
			}
		}
	}
}

// What encoding/json refuses is no JSON for Postgres either; what it takes and
// Check does not is one of jsonb's own rules.
func TestCheckIsNoLooserThanJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		value := drawText(t)
		err := jsonbcheck.Check(value)
		if err == nil && !json.Valid(value) {
			t.Fatalf("Check takes %q, which is no JSON", value)
		}
		var refused *jsonbcheck.RefusedError
		if errors.As(err, &refused) && json.Valid(value) {
			switch refused.Reason {
			case "the escape of NUL, which Postgres cannot store", "half a surrogate pair", "not UTF-8",
				"a number outside the range of numeric", "nested more than 512 deep":
			default:
				t.Fatalf("Check refuses %q, which is JSON: %v", value, err)
			}
		}
	})
}

// drawText draws a JSON text, often with something done to it.
func drawText(t *rapid.T) []byte {
	piece := rapid.SampledFrom([]string{
		"{", "}", "[", "]", ",", ":", `"a"`, `"\u0000"`, `"\ud800"`, `"\ud83d\ude00"`, "1", "-0.5e3", "1e400000", "1e-16384",
		"true", "null", " ", "\n", "\x00", "\xc3", `"é"`, `\`, `"`, "01", "0", ".", "e", "-", "{}", "[]", `{"a":1}`, `"long text without anything in it"`,
	})
	switch rapid.IntRange(0, 2).Draw(t, "kind") {
	case 0:
		var text []byte
		for _, p := range rapid.SliceOfN(piece, 0, 12).Draw(t, "pieces") {
			text = append(text, p...)
		}
		return text
	case 1:
		text := drawDocument(t, 3)
		if len(text) == 0 {
			return text
		}
		at := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		return append(append(text[:at:at], piece.Draw(t, "inserted")...), text[at:]...)
	default:
		return drawDocument(t, 4)
	}
}

func drawDocument(t *rapid.T, depth int) []byte {
	kind := rapid.IntRange(0, 5).Draw(t, "type")
	if depth == 0 {
		kind %= 4
	}
	var v any
	switch kind {
	case 0:
		v = rapid.String().Draw(t, "string")
	case 1:
		v = rapid.Float64().Draw(t, "number")
	case 2:
		v = rapid.Int64().Draw(t, "integer")
	case 3:
		v = rapid.SampledFrom([]any{nil, true, false}).Draw(t, "word")
	case 4:
		var list []json.RawMessage
		for range rapid.IntRange(0, 4).Draw(t, "elements") {
			list = append(list, drawDocument(t, depth-1))
		}
		v = list
	default:
		object := map[string]json.RawMessage{}
		for range rapid.IntRange(0, 4).Draw(t, "members") {
			object[rapid.String().Draw(t, "key")] = drawDocument(t, depth-1)
		}
		v = object
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("make a document: %v", err)
	}
	return text
}

func TestCheckDoesNotAllocateForGoodValues(t *testing.T) { //nolint:paralleltest // testing.AllocsPerRun counts for the whole process
	value := []byte(`{"order":"o-1","lines":[{"sku":"a","qty":1.5}],"note":"\u00e9"}`)
	if n := testing.AllocsPerRun(100, func() { _ = jsonbcheck.Check(value) }); n != 0 {
		t.Errorf("Check allocates %v times for a good value, want none", n)
	}
}

func BenchmarkCheck(b *testing.B) {
	order := []byte(`{"order_id":"ord-000000123","customer":{"id":"c-42","name":"Ada Lovelace","email":"ada@example.org"},` +
		`"lines":[{"sku":"SKU-1","qty":2,"price":19.99},{"sku":"SKU-77","qty":1,"price":5.00}],"note":"leave it at the door, please","created_at":"2026-01-02T03:04:05Z"}`)
	for _, bench := range []struct {
		name  string
		value []byte
	}{
		{"order", order},
		{"text", []byte(`"` + strings.Repeat("plain text ", 1000) + `"`)},
		{"numbers", []byte("[" + strings.Repeat("12345.678,", 1000) + "1]")},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(int64(len(bench.value)))
			b.ReportAllocs()
			for b.Loop() {
				if err := jsonbcheck.Check(bench.value); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
