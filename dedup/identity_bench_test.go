package dedup

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

const benchmarkValue = `{"idempotency_key":"0190c3f2-7e1a-7b60-a6a1-2f0f5a3d9c11","tool":"refund","args":{"order":4711,"sum":"12.50","currency":"EUR"},` +
	`"session_id":"s-81","step_index":3,"tenant":"acme","created_at":"2025"}`

// BenchmarkIdentify is the whole way of a record of 200 bytes to its digest and the id that is shown.
func BenchmarkIdentify(b *testing.B) {
	record := idRecord([]byte(benchmarkValue), "content-type", "application/json", "correlation-id", "0190c3f2-7e1a-7b60-a6a1-2f0f5a3d9c11")
	for name, rules := range map[string]Rules{
		"header":   {ID: []Source{Header("correlation-id")}},
		"json":     {ID: []Source{JSON("idempotency_key")}},
		"ignore":   {ID: []Source{Header("correlation-id")}, Fingerprint: Raw().Ignore("created_at", "step_index")},
		"envelope": CommandEnvelope(),
	} {
		b.Run(name, func(b *testing.B) { benchmarkIdentify(b, rules, record) })
	}
}

func benchmarkIdentify(b *testing.B, rules Rules, record *kgo.Record) {
	b.Helper()
	b.ReportAllocs()
	b.SetBytes(int64(len(record.Value)))
	for b.Loop() {
		identity, err := rules.Identify("orders", record, ordersTopicID)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = identity.Digest(), identity.Shown()
	}
}

func BenchmarkDigest(b *testing.B) {
	identity := Identity{Queue: "orders", Tenant: new("acme"), ID: "0190c3f2-7e1a-7b60-a6a1-2f0f5a3d9c11"}
	b.ReportAllocs()
	for b.Loop() {
		_ = identity.Digest()
	}
}

func BenchmarkXML(b *testing.B) {
	record := jsonRecord(`<order no="7"><id>0190c3f2-7e1a-7b60-a6a1-2f0f5a3d9c11</id><line sku="a"/><line sku="b"/></order>`)
	source := XML("/order/id")
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := source.Find(record); err != nil {
			b.Fatal(err)
		}
	}
}
