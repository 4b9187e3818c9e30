package dlq_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dlq"
	"github.com/claimq/claimq/internal/pgtest"
)

// world is one test's schema with a queue, a topic and a store.
type world struct {
	testing.TB
	db      *pgtest.DB
	store   *dlq.Store
	queue   int32
	topic   int32
	offsets atomic.Int64
	context context.Context // ends what hangs
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, db: pgtest.New(t)}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	w.context = ctx
	var err error
	if w.store, err = dlq.New(dlq.Config{Schema: w.db.Schema}); err != nil {
		t.Fatal(err)
	}
	w.queue = get[int32](w, `insert into claimq.queues (name, group_name, rule) values ('orders', 'orders', 'header id') returning id`)
	w.topic = get[int32](w, `insert into claimq.topics (topic_id, name) values (gen_random_uuid(), 'orders') returning id`)
	return w
}

// sql puts the test's schema into a text.
func (w *world) sql(text string) string { return strings.ReplaceAll(text, "claimq.", w.db.Schema+".") }

func (w *world) ctx() context.Context { return w.context }

func (w *world) exec(text string, args ...any) {
	w.Helper()
	if _, err := w.db.Pool.Exec(w.ctx(), w.sql(text), args...); err != nil {
		w.Fatalf("%s: %v", text, err)
	}
}

func get[T any](w *world, text string, args ...any) T {
	w.Helper()
	var value T
	if err := w.db.Pool.QueryRow(w.ctx(), w.sql(text), args...).Scan(&value); err != nil {
		w.Fatalf("%s: %v", text, err)
	}
	return value
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// commit runs what is queued in one transaction.
func (w *world) commit(queue func(*pgx.Batch)) {
	w.Helper()
	w.must(pgx.BeginTxFunc(w.ctx(), w.db.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var b pgx.Batch
		queue(&b)
		return tx.SendBatch(w.ctx(), &b).Close()
	}))
}

func (w *world) put(letters ...*dlq.Letter) {
	w.Helper()
	w.commit(func(b *pgx.Batch) { w.store.Put(b, letters) })
}

func (w *world) list(f dlq.Filter) []*dlq.Letter {
	w.Helper()
	letters, err := w.store.List(w.ctx(), w.db.Pool, f)
	w.must(err)
	return letters
}

// letter is a message that died, from the next offset of the topic.
func (w *world) letter() *dlq.Letter {
	offset := w.offsets.Add(1) - 1
	return &dlq.Letter{
		Queue: w.queue, QueueName: "orders", Reason: dlq.Exhausted,
		ErrorClass: "*errors.errorString", ErrorMessage: fmt.Sprintf("no stock for order %d", offset),
		Starts: 3, Attempts: 3,
		Claim:  uuid.NullUUID{UUID: uuid.New(), Valid: true},
		Source: &dlq.Source{Topic: w.topic, Partition: 0, Offset: offset, LeaderEpoch: 3},
		Record: &kgo.Record{
			Topic: "orders", Offset: offset, LeaderEpoch: 3, Key: []byte("k"),
			Value: fmt.Appendf(nil, "message %d", offset), Timestamp: time.UnixMilli(1_700_000_000_123),
		},
	}
}

// sameRecord compares records byte for byte; nil and empty differ.
var sameRecord = cmp.Options{
	cmp.Comparer(func(a, b kgo.RecordAttrs) bool { return a == b }),
	cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) }),
	cmpopts.IgnoreFields(kgo.Record{}, "Context"),
}
