package consumer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dedup"
)

func sqlMessage(value string) *Message {
	return &Message{
		Record:   &kgo.Record{Topic: "orders", Partition: 3, Offset: 7, Value: []byte(value), Timestamp: time.UnixMilli(1_700_000_000_123)},
		Identity: dedup.Identity{Queue: "q", ID: "id-" + value},
	}
}

func validateSQL(t *testing.T, s SQLStatement, m *Message) error {
	t.Helper()
	h, err := SQL(s)
	if err != nil {
		t.Fatalf("SQL: %v", err)
	}
	return h.validate(m)
}

func TestSQLRefusesMessagesThatAreNotWhatItAsksFor(t *testing.T) {
	t.Parallel()
	with := func(change func(m *Message)) *Message {
		m := sqlMessage(`{"a":1}`)
		change(m)
		return m
	}
	value := func(text string) *Message {
		return with(func(m *Message) { m.Record.Value = []byte(text) })
	}
	for _, tt := range []struct {
		name, param string
		message     *Message
		problem     string // "": the message is fine
	}{
		{"JSON", "value", value(`{"a":1}`), ""},
		{"a tombstone", "value", with(func(m *Message) { m.Record.Value = nil }), ""},
		{"an empty value", "value", value(""), "the message's value is not storable as jsonb: the text ends too early at byte 0"},
		{"no JSON", "value", value("a"), "not storable as jsonb"},
		{"the escape of NUL", "value", value(`{"a":"\u0000"}`), "the escape of NUL"},
		{"half a surrogate pair", "value", value(`"\ud800"`), "half a surrogate pair"},
		{"a number beyond numeric", "value", value(`1e400000`), "outside the range of numeric"},
		{"no JSON and only the bytes are asked for", "raw", value("\x00\xc3\x28"), ""},
		{"text", "text", value("grüße"), ""},
		{"an empty text", "text", value(""), ""},
		{"text with NUL", "text", value("a\x00b"), "the message's value is not storable as text"},
		{"text that is not UTF-8", "text", value("\xc3\x28"), "the message's value is not storable as text"},
		{"a null text", "text", with(func(m *Message) { m.Record.Value = nil }), ""},
		{"an id with NUL", "id", with(func(m *Message) { m.Identity.ID = "a\x00" }), "the message's id is not storable as text"},
		{"an id with NUL that is not asked for", "claim", with(func(m *Message) { m.Identity.ID = "a\x00" }), ""},
		{"a key that is not UTF-8", "key_text", with(func(m *Message) { m.Record.Key = []byte{0xff} }), "the message's key is not storable as text"},
		{"a key that is not UTF-8 as bytes", "key", with(func(m *Message) { m.Record.Key = []byte{0xff} }), ""},
		{"a time in nanoseconds for milliseconds", "time", with(func(m *Message) { m.Record.Timestamp = time.UnixMilli(1_700_000_000_000_000_000) }), "the message's time is"},
		{"no time", "time", with(func(m *Message) { m.Record.Timestamp = time.UnixMilli(-1) }), ""},
		{"headers of any kind", "headers", with(func(m *Message) {
			m.Record.Headers = []kgo.RecordHeader{{Key: "\xff", Value: []byte{0}}}
		}), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := validateSQL(t, SQLStatement{Statement: "select @" + tt.param, Each: true}, tt.message)
			plural := findParam(tt.param, true).plural
			inBatch := validateSQL(t, SQLStatement{Statement: "select @" + plural}, tt.message)
			if fmt.Sprint(err) != fmt.Sprint(inBatch) {
				t.Errorf("the two forms differ: Each says %v, the batch form %v", err, inBatch)
			}
			if tt.problem == "" {
				if err != nil {
					t.Errorf("the message is refused: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.problem) {
				t.Fatalf("the refusal is %v, want it to hold %q", err, tt.problem)
			}
			var verdict *verdictError
			if !errors.As(err, &verdict) || !verdict.permanent {
				t.Errorf("%v is not permanent: no attempt can cure it", err)
			}
			var classed ClassedError
			if !errors.As(err, &classed) || classed.ErrorClass() != "undecodable" {
				t.Errorf("%v has not the class undecodable", err)
			}
		})
	}
}

func TestSQLHeadersObject(t *testing.T) {
	t.Parallel()
	m := sqlMessage("1")
	m.Record.Headers = []kgo.RecordHeader{
		{Key: "trace", Value: []byte("first")},
		{Key: "trace", Value: []byte("last")},
		{Key: "null", Value: nil},
		{Key: "empty", Value: []byte{}},
		{Key: "binary", Value: []byte{0xc3, 0x28}},
		{Key: "nul", Value: []byte("a\x00b")},
		{Key: "html", Value: []byte(`<a href="x">&\`)},
		{Key: "bad\xff", Value: []byte("left out")},
		{Key: "nul\x00", Value: []byte("left out")},
		{Key: "", Value: []byte("no name")},
		{Key: "gone", Value: []byte("x")},
		{Key: "gone", Value: nil},
	}
	text := func(s string) *string { return &s }
	want := map[string]*string{
		"trace": text("last"), "null": nil, "empty": text(""), "binary": nil, "nul": nil,
		"html": text(`<a href="x">&\`), "": text("no name"), "gone": nil,
	}
	var got map[string]*string
	if err := json.Unmarshal(headersObject(m), &got); err != nil {
		t.Fatalf("the object is no JSON: %v", err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the headers (-want +got):\n%s", diff)
	}
	m.Record.Headers = nil
	if got := string(headersObject(m)); got != "{}" {
		t.Errorf("no headers are %s, want {}", got)
	}
}

// The documentation of SQLStatement lists what the code has.
func TestSQLParametersHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, p := range sqlParams {
		for _, name := range []string{p.name, p.plural} {
			if seen[name] {
				t.Errorf("two parameters are named %s", name)
			}
			seen[name] = true
		}
	}
}
