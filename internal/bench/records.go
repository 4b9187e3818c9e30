// Package bench measures a queue's throughput and latency beside bare SQL that
// makes the same rows: the logic of `claimq bench`.
package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// IDHeader is the header that holds the id of a benchmark's record.
const IDHeader = "correlation-id"

// Records makes n records of about size bytes, spread over partitions; a part of
// them (0 to 1) repeats the id and the value of an earlier one. It returns them in
// their order and the number of distinct ids. The same seed makes the same records.
func Records(n, partitions, size int, repeats float64, seed uint64) (records []*kgo.Record, distinct int) {
	random := rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // nothing is secret
	padding := strings.Repeat("x", max(size-70, 0))
	records = make([]*kgo.Record, 0, n)
	for i := range n {
		if distinct > 0 && random.Float64() < repeats {
			first := records[random.IntN(i)]
			copied := *first
			records = append(records, &copied)
			continue
		}
		id := fmt.Sprintf("order-%08x-%d", seed, distinct)
		key := "customer-" + strconv.Itoa(random.IntN(5000))
		value := fmt.Sprintf(`{"order":%q,"customer":%q,"total":%d,"note":%q}`, id, key, random.IntN(100_000), padding)
		records = append(records, &kgo.Record{
			Key: []byte(key), Value: []byte(value), Partition: int32(i % partitions), //nolint:gosec // few partitions
			Headers: []kgo.RecordHeader{{Key: IDHeader, Value: []byte(id)}},
		})
		distinct++
	}
	return records, distinct
}

// Preload creates a topic and writes the records to it.
func Preload(ctx context.Context, kafka []kgo.Opt, topic string, partitions int, records []*kgo.Record) error {
	client, err := kgo.NewClient(append(kafka, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.Lz4Compression()))...)
	if err != nil {
		return fmt.Errorf("kafka client: %w", err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(ctx, int32(partitions), 1, nil, topic); err != nil { //nolint:gosec // few
		return fmt.Errorf("create topic %q: %w", topic, err)
	}
	for _, r := range records {
		copied := *r
		copied.Topic = topic
		client.Produce(ctx, &copied, nil)
	}
	if err := client.Flush(ctx); err != nil {
		return fmt.Errorf("write %d records to topic %q: %w", len(records), topic, err)
	}
	return nil
}
