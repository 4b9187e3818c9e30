package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/dlq"
	"github.com/claimq/claimq/internal/kafkatest"
	"github.com/claimq/claimq/outbox"
)

// seedVariable repeats a random test with the seed that it has printed.
const seedVariable = "CLAIMQ_TEST_SEED"

// random is a source of chance whose seed is in the test's log.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
	}
	t.Logf("%s=%d repeats this", seedVariable, seed)
	return rand.New(rand.NewPCG(seed, seed))
}

// randomRecord has whatever a record can have.
func randomRecord(r *rand.Rand) *kgo.Record {
	record := &kgo.Record{Key: randomBytes(r, 40), Value: randomBytes(r, 3000), Timestamp: time.Now().Add(-time.Duration(r.Int64N(int64(24 * time.Hour))))}
	for range r.IntN(5) {
		// Few names, so that they repeat; empty and binary ones are allowed too.
		name := []string{"", "a", "A", "id2", "trace\x00parent", "\xff\xfe", "ключ"}[r.IntN(7)]
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: name, Value: randomBytes(r, 60)})
	}
	return record
}

// randomBytes are null, empty, text, or any bytes.
func randomBytes(r *rand.Rand, most int) []byte {
	switch r.IntN(5) {
	case 0:
		return nil
	case 1:
		return []byte{}
	case 2:
		return []byte(strings.Repeat(`{"a":"\u0000"}`, 1+r.IntN(3)))
	default:
		b := make([]byte, 1+r.IntN(most))
		for i := range b {
			b[i] = byte(r.UintN(256))
		}
		return b
	}
}

// A plain record is what has to survive.
type plainRecord struct {
	Key, Value []byte
	Headers    []kgo.RecordHeader
}

func plain(r *kgo.Record, drop func(name string) bool) plainRecord {
	p := plainRecord{Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		if !drop(h.Key) {
			p.Headers = append(p.Headers, h)
		}
	}
	return p
}

// Random records go through the consumer, a handler that fails once, the delay
// queue, the handler again and the outbox; and others, which never work, into
// dead letters and onto the dead-letter topic. Each byte, null against empty, the
// order and the repeats of headers: all are as they were.
func TestEveryRecordSurvivesByteForByte(t *testing.T) {
	t.Parallel()
	r := random(t)
	s := newShop(t, 3)
	effects, dead := kafkatest.Topic(t, 2), kafkatest.Topic(t, 1)
	const records = 300
	produced := make([]*kgo.Record, records)
	for i := range produced {
		produced[i] = randomRecord(r)
		produced[i].Partition = int32(r.IntN(3))
	}
	kafkatest.Produce(t, s.topic, produced...)

	deadly := func(m *kgo.Record) bool { return m.Offset%2 == 1 }
	start(t, s.db.Pool, s.brokers, consumer.Config{
		Queue: s.topic, Topics: []string{s.topic}, Schema: s.db.Schema, Start: consumer.StartEarliest(),
		// An id is not in them, but where they stand is one.
		Rules: dedup.Rules{ID: []dedup.Source{dedup.Header("no-such-header")}, OnMissing: dedup.MissingOffset},
		Handler: consumer.One(func(_ context.Context, _ pgx.Tx, m *consumer.Message) error {
			if m.Attempt == 1 || deadly(m.Record) {
				return errors.New("the error's text \x00 \xff is no text either: " + string(m.Record.Value[:min(20, len(m.Record.Value))]))
			}
			return m.Emit(outbox.Effect{
				Name: "copy", Topic: effects, Key: m.Record.Key, Value: m.Record.Value,
				Headers: append(slices.Clip(m.Record.Headers), place(m.Record)),
			})
		}),
		Retry:           delayq.Policy{MaxAttempts: 2, InitialDelay: 50 * time.Millisecond},
		Order:           consumer.OrderNone,
		DeadLetterTopic: dead,
		Logger:          quiet(),
	})
	startRelayIn(t, s.db.Pool, s.brokers, s.db.Schema)

	want := map[string]plainRecord{}
	deaths := 0
	for _, record := range produced {
		want[string(place(record).Value)] = plain(record, func(string) bool { return false })
		if deadly(record) {
			deaths++
		}
	}
	fromEffects := kafkatest.Fetch(t, s.brokers, effects, records-deaths)
	fromDead := kafkatest.Fetch(t, s.brokers, dead, deaths)
	for _, record := range fromEffects {
		at := last(record, placeHeader)
		compare(t, "effect", at, want, plain(record, func(name string) bool {
			return name == placeHeader || name == outbox.HeaderID || name == "correlation-id" || name == "causation-id"
		}))
	}
	for _, record := range fromDead {
		at := last(record, dlq.HeaderOriginalPartition) + "/" + last(record, dlq.HeaderOriginalOffset)
		compare(t, "dead letter on its topic", at, want, plain(record, func(name string) bool {
			return strings.HasPrefix(name, dlq.HeaderPrefix) || name == outbox.HeaderID || name == "correlation-id" || name == "causation-id"
		}))
	}
	if len(want) > 0 {
		t.Errorf("%d records came out nowhere", len(want))
	}
	if n := s.ask(`select count(*) from SCHEMA.dead_letters where state = 'dead'`); n != deaths {
		t.Errorf("%d dead letters, want %d", n, deaths)
	}
}

const placeHeader = "where-it-stood"

// place is a header that tells a record's partition and offset.
func place(r *kgo.Record) kgo.RecordHeader {
	return kgo.RecordHeader{Key: placeHeader, Value: []byte(fmt.Sprintf("%d/%d", r.Partition, r.Offset))}
}

func last(r *kgo.Record, name string) (value string) {
	for _, h := range r.Headers {
		if h.Key == name {
			value = string(h.Value)
		}
	}
	return value
}

// compare takes the record at a place out of want and compares it.
func compare(t *testing.T, what, at string, want map[string]plainRecord, got plainRecord) {
	t.Helper()
	expected, ok := want[at]
	if !ok {
		t.Errorf("%s: nothing, or nothing any more, was expected from %q", what, at)
		return
	}
	delete(want, at)
	exactly := cmp.Comparer(func(a, b []byte) bool { return (a == nil) == (b == nil) && bytes.Equal(a, b) })
	if diff := cmp.Diff(expected, got, exactly); diff != "" {
		t.Errorf("%s from %s (-want +got):\n%s", what, at, diff)
	}
}
