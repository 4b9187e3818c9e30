package outbox

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/pgtest"
)

// a stage is a test's own outbox, Kafka, and what reads from it.
type stage struct {
	t      testing.TB
	db     *pgtest.DB
	kafka  *kfake.Cluster
	outbox *Outbox
}

func newStage(t testing.TB, partitions int, topics ...string) *stage {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(int32(partitions), topics...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	db := pgtest.New(t)
	return &stage{t: t, db: db, kafka: cluster, outbox: newOutbox(t, db, 0)}
}

func (s *stage) sql(text string) string { return pgschema.Schema(s.db.Schema).SQL(text) }

func (s *stage) exec(text string, args ...any) {
	s.t.Helper()
	if _, err := s.db.Pool.Exec(s.t.Context(), s.sql(text), args...); err != nil {
		s.t.Fatalf("%s: %v", text, err)
	}
}

// one reads a single value.
func one[T any](s *stage, text string, args ...any) T {
	s.t.Helper()
	var v T
	if err := s.db.Pool.QueryRow(s.t.Context(), s.sql(text), args...).Scan(&v); err != nil {
		s.t.Fatalf("%s: %v", text, err)
	}
	return v
}

func (s *stage) options() []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(s.kafka.ListenAddrs()...),
		// Faults that look into records see them plain.
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.MetadataMinAge(20 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }),
	}
}

// relay makes a relay that is stopped at the end of the test.
func (s *stage) relay(config RelayConfig) *Relay {
	s.t.Helper()
	config.Schema = s.db.Schema
	if testing.Verbose() {
		config.Logger = slog.New(slog.NewTextHandler(s.t.Output(), nil))
	}
	r, err := NewRelay(s.db.Pool, s.options(), config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		for _, slice := range r.slices {
			if r.runs == nil {
				slice.discard()
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := r.Stop(ctx); err != nil {
			s.t.Errorf("stop the relay: %v", err)
		}
	})
	return r
}

// add commits one record with an id of its own and returns the id.
func (s *stage) add(topic, key, value string) uuid.UUID {
	s.t.Helper()
	e := keyed(topic, key, value)
	inTx(s.t, s.db, func(ctx context.Context, tx pgx.Tx) error { return s.outbox.Add(ctx, tx, e) })
	return e.ID
}

// keyed is an effect with an id of its own; the key "" stands for null.
func keyed(topic, key, value string) Effect {
	e := Effect{ID: uuid.New(), Topic: topic, Value: []byte(value)}
	if key != "" {
		e.Key = []byte(key)
	}
	return e
}

// round does one round of the relay and fails the test if that fails.
func (s *stage) round(r *Relay) result {
	s.t.Helper()
	did, err := r.runOnce(s.t.Context())
	if err != nil {
		s.t.Fatalf("a round of the relay: %v", err)
	}
	return did
}

// drain does rounds until one finds nothing to do.
func (s *stage) drain(r *Relay) {
	s.t.Helper()
	for range 10_000 {
		if did := s.round(r); did.published+did.setAside+did.retried == 0 {
			return
		}
	}
	s.t.Fatal("the relay finds work without end")
}

// topicReader collects what stands in topics, partition by partition.
type topicReader struct {
	mu      sync.Mutex
	records []*kgo.Record
	changed chan struct{}
}

// reader starts to read topics from their beginning.
func (s *stage) reader(topics ...string) *topicReader {
	s.t.Helper()
	client, err := kgo.NewClient(append(s.options(), kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond),
		kgo.MetadataMaxAge(200*time.Millisecond), kgo.UnknownTopicRetries(-1))...)
	if err != nil {
		s.t.Fatal(err)
	}
	r := &topicReader{changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			fetches := client.PollFetches(ctx)
			if ctx.Err() != nil {
				return
			}
			r.mu.Lock()
			r.records = append(r.records, fetches.Records()...)
			r.mu.Unlock()
			select {
			case r.changed <- struct{}{}:
			default:
			}
		}
	}()
	s.t.Cleanup(func() {
		cancel()
		<-done
		client.Close()
	})
	return r
}

// all returns the records so far, in the order of reading: that of each partition.
func (r *topicReader) all() []*kgo.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.records)
}

// values returns the values of all records so far.
func (r *topicReader) values() []string {
	var list []string
	for _, record := range r.all() {
		list = append(list, string(record.Value))
	}
	return list
}

// firsts returns the values of the first copies by id header, in order.
func (r *topicReader) firsts() []string {
	seen := map[string]bool{}
	var list []string
	for _, record := range r.all() {
		if id := idOf(record); !seen[id] {
			seen[id] = true
			list = append(list, string(record.Value))
		}
	}
	return list
}

func idOf(record *kgo.Record) string {
	for _, h := range record.Headers {
		if h.Key == HeaderID {
			return string(h.Value)
		}
	}
	return ""
}

// until waits until the condition on the records holds.
func (r *topicReader) until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	for !holds() {
		select {
		case <-r.changed:
		case <-deadline.C:
			t.Fatalf("not within 30 s: %s; read so far: %.20q", what, r.values())
		}
	}
}

// untilCount waits for n records.
func (r *topicReader) untilCount(t testing.TB, n int) {
	t.Helper()
	r.until(t, fmt.Sprintf("%d records", n), func() bool { return len(r.all()) >= n })
}

// eventually polls a condition that has no signal.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
		<-tick.C
	}
}

// readAll reads a topic from its beginning to its present end.
func (s *stage) readAll(t interface{ Fatal(args ...any) }, topic string) []*kgo.Record {
	client, err := kgo.NewClient(append(s.options(), kgo.ConsumeTopics(topic), kgo.FetchMaxWait(20*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	var records []*kgo.Record
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			records = append(records, record)
			if record.Offset+1 >= left[record.Partition] {
				delete(left, record.Partition)
			}
		})
	}
	return records
}

// readUntilPublished waits until topic t holds n records.
func (s *stage) readUntilPublished(n int) {
	s.t.Helper()
	s.reader("t").untilCount(s.t, n)
}
