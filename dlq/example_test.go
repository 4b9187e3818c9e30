package dlq_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dlq"
)

func ExampleCause() {
	one, masked, _ := dlq.Cause("orders", "exhausted", "*errors.errorString", "order 4711: no stock of SKU 8f3k2jx9q")
	other, _, _ := dlq.Cause("orders", "exhausted", "*errors.errorString", "order 4712: no stock of SKU 1p9z7aa02")
	fmt.Println(masked)
	fmt.Println("one cause:", one == other)
	// Output:
	// order #: no stock of SKU <id>
	// one cause: true
}

// A letter is stored, and fed to the dead-letter topic, in the transaction that
// decides about its message.
func ExampleStore_Put() {
	store, err := dlq.New(dlq.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	letter := &dlq.Letter{
		Queue: 1, QueueName: "orders", Reason: dlq.Permanent,
		ErrorClass: "validation", ErrorMessage: errors.New("amount is negative").Error(),
		Starts: 1, Attempts: 1,
		Source: &dlq.Source{Topic: 1, Partition: 3, Offset: 42},
		Record: &kgo.Record{Topic: "orders-in", Key: []byte("order-7"), Value: []byte(`{"amount":-1}`), Timestamp: time.UnixMilli(0)},
	}
	var last pgx.Batch
	store.Put(&last, []*dlq.Letter{letter})
	record, err := letter.Feed("orders-dead", dlq.FeedOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	// … outbox.Add(record), the position, COMMIT.
	fmt.Printf("%s %s\n", record.Key, record.Value)
	for _, h := range record.Headers[1:8] {
		fmt.Printf("%s: %s\n", h.Key, h.Value)
	}
	// Output:
	// order-7 {"amount":-1}
	// claimq-reason: permanent
	// claimq-queue: orders
	// claimq-round: 1
	// claimq-original-topic: orders-in
	// claimq-original-partition: 3
	// claimq-original-offset: 42
	// claimq-original-timestamp: 1970-01-01T00:00:00.000Z
}

func ExampleSourceID() {
	source := dlq.Source{Topic: 1, Partition: 3, Offset: 42}
	again := source
	fmt.Println(dlq.SourceID(1, source) == dlq.SourceID(1, again))
	fmt.Println(dlq.SourceID(1, source) == uuid.Nil)
	// Output:
	// true
	// false
}
