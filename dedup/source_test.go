package dedup

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
)

// sourceCase is one record and what a source finds in it.
type sourceCase struct {
	name   string
	source Source
	record *kgo.Record

	want        string
	missing     bool
	undecodable string // a part of the error's text
}

// idRecord makes a record at orders[3]@77 with a value and headers given as name, value, name, value.
func idRecord(value []byte, headers ...string) *kgo.Record {
	r := &kgo.Record{Topic: "orders", Partition: 3, Offset: 77, Value: value}
	for i := 0; i < len(headers); i += 2 {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: headers[i], Value: []byte(headers[i+1])})
	}
	return r
}

func jsonRecord(value string) *kgo.Record { return idRecord([]byte(value)) }

func runSourceCases(t *testing.T, cases []sourceCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			value, found, err := c.source.Find(c.record)
			if c.undecodable != "" {
				wantUndecodable(t, err, c.source, c.undecodable)
				if found || value != "" {
					t.Fatalf("found %q (%v) beside the error", value, found)
				}
				return
			}
			if err != nil {
				t.Fatalf("error: %v", err)
			}
			if found == c.missing || value != c.want {
				t.Fatalf("found %q (%v), want %q (%v)", value, found, c.want, !c.missing)
			}
		})
	}
}

func wantUndecodable(t *testing.T, err error, source Source, part string) {
	t.Helper()
	var undecodable *UndecodableError
	if !errors.As(err, &undecodable) {
		t.Fatalf("error is %T (%v), want *UndecodableError", err, err)
	}
	if undecodable.Source != source.String() || undecodable.Topic != "orders" || undecodable.Partition != 3 || undecodable.Offset != 77 {
		t.Fatalf("error does not name source and record: %+v", undecodable)
	}
	for _, want := range []string{part, "orders[3]@77", source.String()} {
		if !strings.Contains(err.Error(), want) {
			t.Fatalf("error %q does not say %q", err, want)
		}
	}
}

func nullHeader(r *kgo.Record, name string) *kgo.Record {
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: name})
	return r
}

func TestHeaderSource(t *testing.T) {
	t.Parallel()
	id := Header("correlation-id")
	runSourceCases(t, []sourceCase{
		{name: "present", source: id, record: idRecord(nil, "a", "1", "correlation-id", "k-1"), want: "k-1"},
		{name: "absent", source: id, record: idRecord(nil, "a", "1"), missing: true},
		{name: "no headers at all", source: id, record: idRecord(nil), missing: true},
		{name: "empty is found and empty", source: id, record: idRecord(nil, "correlation-id", "")},
		{name: "null is not found", source: id, record: nullHeader(idRecord(nil), "correlation-id"), missing: true},
		{name: "white space is kept", source: id, record: idRecord(nil, "correlation-id", " k\t"), want: " k\t"},
		{name: "another case is another name", source: id, record: idRecord(nil, "Correlation-Id", "k"), missing: true},
		{name: "last of several", source: id, record: idRecord(nil, "correlation-id", "old", "correlation-id", "new", "z", ""), want: "new"},
		{name: "last decides though empty", source: id, record: idRecord(nil, "correlation-id", "old", "correlation-id", "")},
		{name: "last decides though null", source: id, record: nullHeader(idRecord(nil, "correlation-id", "old"), "correlation-id"), missing: true},
		{name: "bytes that are not UTF-8", source: id, record: idRecord(nil, "correlation-id", "\xc3\x28\x00"), want: "\xc3\x28\x00"},
	})
}

func TestStandardWebhooksSource(t *testing.T) {
	t.Parallel()
	runSourceCases(t, []sourceCase{
		{
			name: "webhook-id", source: StandardWebhooks(),
			record: idRecord([]byte(`{}`), "webhook-id", "msg_2KWPBgLlAfxdpx2AI54pPJ85f4W", "webhook-timestamp", "1674087231"),
			want:   "msg_2KWPBgLlAfxdpx2AI54pPJ85f4W",
		},
		{name: "absent", source: StandardWebhooks(), record: idRecord([]byte(`{"webhook-id":"x"}`)), missing: true},
	})
}

func TestRecordKeySource(t *testing.T) {
	t.Parallel()
	keyed := func(key []byte) *kgo.Record { return &kgo.Record{Key: key} }
	runSourceCases(t, []sourceCase{
		{name: "null", source: RecordKey(), record: keyed(nil), missing: true},
		{name: "empty", source: RecordKey(), record: keyed([]byte{})},
		{name: "text", source: RecordKey(), record: keyed([]byte("order-1")), want: "order-1"},
		{name: "not UTF-8", source: RecordKey(), record: keyed([]byte{0xff, 0}), want: "\xff\x00"},
		{name: "not UTF-8 either, and another", source: RecordKey(), record: keyed([]byte{0xfe, 0}), want: "\xfe\x00"},
	})
}

func TestTopicAndConstSource(t *testing.T) {
	t.Parallel()
	runSourceCases(t, []sourceCase{
		{name: "topic", source: Topic(), record: idRecord(nil), want: "orders"},
		{name: "const", source: Const("acme"), record: idRecord(nil), want: "acme"},
	})
}

func TestFuncSource(t *testing.T) {
	t.Parallel()
	decode := func(r *kgo.Record) (string, bool, error) {
		switch string(r.Value) {
		case "":
			return "", false, nil
		case "broken":
			return "half", true, errors.New("schema 7 is not known")
		case "panic":
			panic("index out of range")
		}
		return "avro:" + string(r.Value), true, nil
	}
	source := Func("order-avro", decode)
	runSourceCases(t, []sourceCase{
		{name: "found", source: source, record: jsonRecord("x"), want: "avro:x"},
		{name: "not found", source: source, record: jsonRecord(""), missing: true},
		{name: "error", source: source, record: jsonRecord("broken"), undecodable: "schema 7 is not known"},
		{name: "panic is the record's fault and not the end of the process", source: source, record: jsonRecord("panic"), undecodable: "index out of range"},
	})
}

func TestJoinSource(t *testing.T) {
	t.Parallel()
	join := Join(Header("a"), Header("b"))
	runSourceCases(t, []sourceCase{
		{name: "two parts", source: join, record: idRecord(nil, "a", "a", "b", "bc"), want: "1:a2:bc"},
		{name: "the same text, cut elsewhere", source: join, record: idRecord(nil, "a", "ab", "b", "c"), want: "2:ab1:c"},
		{name: "a part that looks like a length", source: join, record: idRecord(nil, "a", "1:x", "b", "y"), want: "3:1:x1:y"},
		{name: "lengths are bytes", source: join, record: idRecord(nil, "a", "é", "b", "\xff"), want: "2:é1:\xff"},
		{name: "a part is absent", source: join, record: idRecord(nil, "a", "x"), missing: true},
		{name: "a part is empty", source: join, record: idRecord(nil, "a", "x", "b", ""), missing: true},
		{name: "a part is null", source: join, record: nullHeader(idRecord(nil, "a", "x"), "b"), missing: true},
		{
			name: "joins in joins stay apart", source: Join(Join(Header("a"), Header("b")), Header("c")),
			record: idRecord(nil, "a", "1", "b", "2", "c", "3"), want: "6:1:11:21:3",
		},
	})
	t.Run("a part that cannot be read", func(t *testing.T) {
		t.Parallel()
		_, found, err := Join(Header("a"), JSON("id")).Find(idRecord([]byte("{"), "a", "x"))
		if found {
			t.Fatal("found half an id")
		}
		wantUndecodable(t, err, JSON("id"), "not valid JSON")
	})
}

func TestJoinKeepsItsPartsWhenTheCallerChangesThem(t *testing.T) {
	t.Parallel()
	parts := []Source{Header("a"), Header("b")}
	join := Join(parts...)
	parts[0] = Header("z")
	if diff := cmp.Diff("join(header:a,header:b)", join.String()); diff != "" {
		t.Fatal(diff)
	}
}

func TestFindLeavesTheRecordAlone(t *testing.T) {
	t.Parallel()
	value := []byte(`{"id":"k-1","n":1}`)
	record := idRecord(value, "a", "x")
	for _, source := range []Source{JSON("id"), Header("a"), CloudEvents(), Envelope(), RecordKey(), XML("/a")} {
		found, _, _ := source.Find(record)
		if string(value) != `{"id":"k-1","n":1}` || len(record.Headers) != 1 {
			t.Fatalf("%s changed the record", source)
		}
		_ = found
	}
	// The text that was found must not follow the record's buffer, which the client may use again.
	id, _, err := JSON("id").Find(record)
	if err != nil {
		t.Fatal(err)
	}
	copy(value, `{"id":"XXX"`)
	if id != "k-1" {
		t.Fatalf("the id changed to %q with the buffer", id)
	}
}
