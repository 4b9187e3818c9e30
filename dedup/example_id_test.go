package dedup_test

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dedup"
)

func ExampleHeader() {
	record := &kgo.Record{Headers: []kgo.RecordHeader{{Key: "correlation-id", Value: []byte("k-1")}}}
	id, found, err := dedup.Header("correlation-id").Find(record)
	fmt.Println(id, found, err)
	// Output: k-1 true <nil>
}

func ExampleJSON() {
	source := dedup.JSON("$.order.id")
	for _, value := range []string{`{"order":{"id":9007199254740993}}`, `{"order":{"id":null}}`, `{"order":`} {
		id, found, err := source.Find(&kgo.Record{Topic: "orders", Partition: 3, Offset: 77, Value: []byte(value)})
		fmt.Printf("%q %v %v\n", id, found, err)
	}
	// Output:
	// "9007199254740993" true <nil>
	// "" false <nil>
	// "" false source json:$.order.id cannot read record orders[3]@77: the value is not valid JSON
}

func ExampleXML() {
	value := `<o:order xmlns:o="urn:orders"><o:id> k-1 </o:id></o:order>`
	id, _, err := dedup.XML("normalize-space(//*[local-name()='id'])").Find(&kgo.Record{Value: []byte(value)})
	fmt.Println(id, err)
	// Output: k-1 <nil>
}

func ExampleRecordKey() {
	_, found, _ := dedup.RecordKey().Find(&kgo.Record{})
	id, _, _ := dedup.RecordKey().Find(&kgo.Record{Key: []byte{0xff, 0x01}})
	fmt.Printf("%v %q\n", found, id)
	// Output: false "\xff\x01"
}

func ExampleJoin() {
	source := dedup.Join(dedup.JSON("order"), dedup.JSON("line"))
	for _, value := range []string{`{"order":"1","line":"23"}`, `{"order":"12","line":"3"}`, `{"order":"12"}`} {
		id, found, _ := source.Find(&kgo.Record{Value: []byte(value)})
		fmt.Println(id, found)
	}
	// Output:
	// 1:12:23 true
	// 2:121:3 true
	//  false
}

func ExampleFunc() {
	// A value whose first byte is a version, as a decoder for Avro or Protobuf would look at it.
	source := dedup.Func("order-v1", func(r *kgo.Record) (string, bool, error) {
		if len(r.Value) == 0 || r.Value[0] != 1 {
			return "", false, errors.New("version is not 1")
		}
		return string(r.Value[1:]), true, nil
	})
	id, _, err := source.Find(&kgo.Record{Value: []byte("\x01k-1")})
	fmt.Println(id, err)
	_, _, err = source.Find(&kgo.Record{Topic: "orders", Value: []byte("\x02k-1")})
	fmt.Println(err)
	// Output:
	// k-1 <nil>
	// source func:order-v1 cannot read record orders[0]@0: version is not 1
}

func ExampleCloudEvents() {
	binary := &kgo.Record{Headers: []kgo.RecordHeader{{Key: "ce_id", Value: []byte("7")}, {Key: "ce_source", Value: []byte("/shop")}}}
	structured := &kgo.Record{
		Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/cloudevents+json")}},
		Value:   []byte(`{"specversion":"1.0","id":"7","source":"/shop","type":"order"}`),
	}
	a, _, _ := dedup.CloudEvents().Find(binary)
	b, _, _ := dedup.CloudEvents().Find(structured)
	fmt.Println(a, a == b)
	// Output: 5:/shop1:7 true
}

func ExampleStandardWebhooks() {
	record := &kgo.Record{Headers: []kgo.RecordHeader{{Key: "webhook-id", Value: []byte("msg_2KWPBgLl")}}}
	id, _, _ := dedup.StandardWebhooks().Find(record)
	fmt.Println(id)
	// Output: msg_2KWPBgLl
}

func ExampleCommandEnvelope() {
	rules := dedup.CommandEnvelope()
	first, _ := rules.Identify("commands", &kgo.Record{Value: []byte(`{"idempotency_key":"k-1","tool":"refund","args":{"id":7,"sum":10},"step_index":3}`)}, [16]byte{})
	resumed, _ := rules.Identify("commands", &kgo.Record{Value: []byte(`{"tool":"refund","idempotency_key":"k-1","args":{"sum":10,"id":7},"step_index":4}`)}, [16]byte{})
	fmt.Println(first.ID, *first.Operation, first.Digest() == resumed.Digest(), first.Fingerprint == resumed.Fingerprint)
	// Output: k-1 refund true true
}

func ExampleEnvelope() {
	id, _, err := dedup.Envelope().Find(&kgo.Record{Value: []byte(`{"idempotency_key":"k-1","tool":"refund","args":{}}`)})
	fmt.Println(id, err)
	// Output: k-1 <nil>
}

func ExampleTopic() {
	// One id may appear once in each topic of the queue.
	rules := dedup.Rules{ID: []dedup.Source{dedup.RecordKey()}, Operation: []dedup.Source{dedup.Topic()}}
	order, _ := rules.Identify("shop", &kgo.Record{Topic: "orders", Key: []byte("7")}, [16]byte{})
	refund, _ := rules.Identify("shop", &kgo.Record{Topic: "refunds", Key: []byte("7")}, [16]byte{})
	fmt.Println(order.Digest() == refund.Digest())
	// Output: false
}

func ExampleConst() {
	// Records that name no tenant belong to the one that was there before there were tenants.
	rules := dedup.Rules{ID: []dedup.Source{dedup.RecordKey()}, Tenant: []dedup.Source{dedup.Header("tenant"), dedup.Const("legacy")}}
	identity, _ := rules.Identify("shop", &kgo.Record{Key: []byte("7")}, [16]byte{})
	fmt.Println(*identity.Tenant)
	// Output: legacy
}

func ExampleParseSource() {
	source, err := dedup.ParseSource("join(header:tenant, json:order.id)")
	fmt.Println(source, err)
	_, err = dedup.ParseSource("heder:tenant")
	fmt.Println(err)
	// Output:
	// join(header:tenant,json:$.order.id) <nil>
	// source "heder:tenant": unknown kind "heder"; did you mean "header"? the kinds are header, json, xml, key, effect, join, cloudevents, standard-webhooks, envelope, topic, const
}

func ExampleRules_Identify() {
	rules := dedup.Rules{
		ID:     []dedup.Source{dedup.Header("idempotency-key"), dedup.JSON("id")},
		Tenant: []dedup.Source{dedup.Header("tenant")},
	}
	record := &kgo.Record{
		Topic:   "orders",
		Value:   []byte(`{"id":"k-1"}`),
		Headers: []kgo.RecordHeader{{Key: "tenant", Value: []byte("acme")}},
	}
	identity, err := rules.Identify("orders", record, [16]byte{})
	fmt.Println(identity.Digest(), identity.Shown(), err)
	// Output: 205cea5e-e854-263f-e689-d9750ab50e1a k-1 <nil>
}

func ExampleFingerprint_Ignore() {
	first := []byte(`{"sku":"a","count":1,"sent_at":"10:00"}`)
	again := []byte(`{"count":1,"sku":"a","sent_at":"10:05"}`)
	rule := dedup.Raw().Ignore("sent_at")
	a, _ := rule.Sum(first)
	b, _ := rule.Sum(again)
	fmt.Println(rule, a == b)
	// Output: raw ignore(sent_at) true
}

func ExampleDiffFields() {
	fmt.Println(dedup.DiffFields([]byte(`{"sku":"a","lines":[{"n":1}]}`), []byte(`{"lines":[{"n":2}],"sku":"a","note":""}`)))
	// Output: [lines.0.n note]
}
