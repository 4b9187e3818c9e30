package dedup

import "testing"

func TestCloudEventsSource(t *testing.T) {
	t.Parallel()
	const event = `{"specversion":"1.0","id":"A234-1234","source":"/mycontext","type":"com.example.someevent"}`
	const identity = "10:/mycontext9:A234-1234"
	structured := func(value string) []string {
		return []string{"content-type", "application/cloudevents+json; charset=UTF-8", "x", value}
	}
	source := CloudEvents()
	runSourceCases(t, []sourceCase{
		{
			name: "binary", source: source,
			record: idRecord([]byte("\x00avro"), "content-type", "avro/binary", "ce_specversion", "1.0", "ce_id", "A234-1234", "ce_source", "/mycontext"),
			want:   identity,
		},
		{name: "binary without content-type", source: source, record: idRecord(nil, "ce_id", "A234-1234", "ce_source", "/mycontext"), want: identity},
		{name: "structured is the same event", source: source, record: idRecord([]byte(event), structured("")...), want: identity},
		{
			name: "structured wins over headers that were left behind", source: source,
			record: idRecord([]byte(event), append(structured(""), "ce_id", "other", "ce_source", "other")...), want: identity,
		},
		{name: "media type in another case", source: source, record: idRecord([]byte(event), "content-type", "Application/CloudEvents+JSON"), want: identity},
		{name: "another source, the same id", source: source, record: idRecord(nil, "ce_id", "A234-1234", "ce_source", "/other"), want: "6:/other9:A234-1234"},
		{name: "cut elsewhere", source: source, record: idRecord(nil, "ce_id", "b", "ce_source", "/mycontext9:A234-1234"), want: "21:/mycontext9:A234-12341:b"},
		{name: "no CloudEvent", source: source, record: idRecord([]byte(event), "content-type", "application/json"), missing: true},
		{name: "no headers", source: source, record: idRecord([]byte(event)), missing: true},
		{name: "binary without id", source: source, record: idRecord(nil, "ce_source", "/mycontext"), undecodable: "lacks one"},
		{name: "binary without source", source: source, record: idRecord(nil, "ce_id", "1"), undecodable: "lacks one"},
		{name: "binary with an empty id", source: source, record: idRecord(nil, "ce_id", "", "ce_source", "/mycontext"), undecodable: "lacks one"},
		{name: "structured without source", source: source, record: idRecord([]byte(`{"id":"1"}`), structured("")...), undecodable: "lacks one"},
		{name: "structured with an object for an id", source: source, record: idRecord([]byte(`{"id":{},"source":"s"}`), structured("")...), undecodable: "id: the path leads to an object"},
		{name: "structured with an array for a source", source: source, record: idRecord([]byte(`{"id":"1","source":[]}`), structured("")...), undecodable: "source: the path leads to an array"},
		{name: "structured and not JSON", source: source, record: idRecord([]byte(`<event/>`), structured("")...), undecodable: "not valid JSON"},
		{name: "structured and null", source: source, record: idRecord(nil, structured("")...), missing: true},
		{name: "batch", source: source, record: idRecord([]byte(`[]`), "content-type", "application/cloudevents-batch+json"), undecodable: "no single CloudEvent in JSON"},
		{name: "another format", source: source, record: idRecord([]byte(`x`), "content-type", "application/cloudevents+avro"), undecodable: "no single CloudEvent in JSON"},
	})
}
