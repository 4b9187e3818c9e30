package delayq_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/dlq"
	"github.com/claimq/claimq/internal/pgtest"
	"github.com/claimq/claimq/internal/sqlstate"
)

// world is one test's schema with a queue, a topic and both stores.
type world struct {
	testing.TB
	db      *pgtest.DB
	store   *delayq.Store
	letters *dlq.Store
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
	if w.store, err = delayq.New(delayq.Config{Schema: w.db.Schema}); err != nil {
		t.Fatal(err)
	}
	if w.letters, err = dlq.New(dlq.Config{Schema: w.db.Schema}); err != nil {
		t.Fatal(err)
	}
	w.queue = get[int32](w, `insert into claimq.queues (name, group_name, rule) values ('orders', 'orders', 'header id') returning id`)
	w.topic = get[int32](w, `insert into claimq.topics (topic_id, name) values (gen_random_uuid(), 'orders') returning id`)
	return w
}

// sql puts the test's schema into a text.
func (w *world) sql(text string) string {
	return strings.ReplaceAll(text, "claimq.", w.db.Schema+".")
}

func (w *world) exec(text string, args ...any) {
	w.Helper()
	if _, err := w.db.Pool.Exec(w.ctx(), w.sql(text), args...); err != nil {
		w.Fatalf("%s: %v", text, err)
	}
}

// ctx outlives what rapid does with a test's own context.
func (w *world) ctx() context.Context { return w.context }

// get reads one value.
func get[T any](w *world, text string, args ...any) T {
	w.Helper()
	var value T
	if err := w.db.Pool.QueryRow(w.ctx(), w.sql(text), args...).Scan(&value); err != nil {
		w.Fatalf("%s: %v", text, err)
	}
	return value
}

// key is an order key with a name.
func key(name string) uuid.UUID { return uuid.NewSHA1(uuid.Nil, []byte(name)) }

// item is a message of the order key from the next offset of the topic.
func (w *world) item(kind delayq.Kind, orderKey uuid.UUID) *delayq.Item {
	offset := w.offsets.Add(1) - 1
	it := &delayq.Item{
		Queue: w.queue, Kind: kind, OrderKey: orderKey,
		Claim:  uuid.NullUUID{UUID: uuid.New(), Valid: true},
		Source: &delayq.Source{Topic: w.topic, Partition: 0, Offset: offset, LeaderEpoch: 3},
		Record: &kgo.Record{
			Topic: "orders", Offset: offset, LeaderEpoch: 3, Key: []byte("k"),
			Value: fmt.Appendf(nil, "message %d", offset), Timestamp: time.UnixMilli(1_700_000_000_000),
		},
	}
	if kind == delayq.Failed {
		it.Starts, it.Attempts = 1, 1
	}
	return it
}

// put stores items in a transaction of its own.
func (w *world) put(items ...*delayq.Item) {
	w.Helper()
	w.must(w.commit(func(b *pgx.Batch) { w.store.Put(b, items) }))
}

// commit runs what is queued, and COMMIT behind it in the same flight, as a
// worker's last flight does.
func (w *world) commit(queue func(*pgx.Batch)) error {
	w.Helper()
	conn, err := w.db.Pool.Acquire(w.ctx())
	if err != nil {
		w.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(w.ctx(), "begin isolation level read committed"); err != nil {
		w.Fatal(err)
	}
	var b pgx.Batch
	queue(&b)
	b.Queue("commit")
	err = conn.SendBatch(w.ctx(), &b).Close()
	if err != nil {
		if _, rollback := conn.Exec(w.ctx(), "rollback"); rollback != nil {
			w.Fatal(rollback)
		}
	}
	return err
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// lease takes what is ready.
func (w *world) lease() []*delayq.Run {
	w.Helper()
	runs, err := w.store.Lease(w.ctx(), w.db.Pool, w.queue, delayq.LeaseOptions{})
	w.must(err)
	return runs
}

// leaseOne takes what is ready, which must be one key's.
func (w *world) leaseOne() *delayq.Run {
	w.Helper()
	runs := w.lease()
	if len(runs) != 1 {
		w.Fatalf("%d runs were handed out, want 1", len(runs))
	}
	return runs[0]
}

// finish commits verdicts on a run.
func (w *world) finish(run *delayq.Run, verdicts ...delayq.Verdict) error {
	w.Helper()
	return w.commit(func(b *pgx.Batch) {
		w.must(w.store.Finish(b, w.queue, []delayq.Finished{{Run: run, Verdicts: verdicts}}))
	})
}

// expire ends all leases, as the passing of time would.
func (w *world) expire() {
	w.Helper()
	w.exec(`update claimq.delayed_keys set ready_at = clock_timestamp() - interval '1 second' where lease_token is not null`)
}

// makeDue lets the time of everything that waits for it come.
func (w *world) makeDue() {
	w.Helper()
	w.exec(`update claimq.delayed set due_at = '2020-01-01'`)
	w.exec(`update claimq.delayed_keys set ready_at = '2020-01-01'
	         where lease_token is null and ready_at < 'infinity'`)
}

// done and friends are verdicts.
var (
	done      = delayq.Verdict{Outcome: delayq.Done}
	untouched = delayq.Verdict{Outcome: delayq.Untouched}
	dead      = delayq.Verdict{Outcome: delayq.Dead}
	retry     = delayq.Verdict{Outcome: delayq.Retry, After: time.Minute, Class: "*errors.errorString", Message: "no stock"}
)

// wantLeaseLost fails unless err says that the lease is another's.
func (w *world) wantLeaseLost(err error) {
	w.Helper()
	if sqlstate.Code(err) != sqlstate.LeaseLost {
		w.Fatalf("error is %v, want SQLSTATE %s", err, sqlstate.LeaseLost)
	}
}

// keyRow is one row of delayed_keys; present is false when there is none.
type keyRow struct {
	present, leased, infinite bool
	in                        time.Duration
}

func (w *world) keyRow(orderKey uuid.UUID) keyRow {
	w.Helper()
	var r keyRow
	var seconds float64
	err := w.db.Pool.QueryRow(w.ctx(), w.sql(`
		select lease_token is not null, ready_at = 'infinity',
		       case when ready_at < 'infinity' then extract(epoch from ready_at - clock_timestamp())::float8 else 0 end
		  from claimq.delayed_keys where queue = $1 and order_key = $2`), w.queue, orderKey).
		Scan(&r.leased, &r.infinite, &seconds)
	if errors.Is(err, pgx.ErrNoRows) {
		return r
	}
	w.must(err)
	r.present, r.in = true, time.Duration(seconds*float64(time.Second))
	return r
}

// counters are an item's columns that count.
type counters struct{ Starts, Attempts, Crashes, Interrupted int }

func (w *world) counters(it *delayq.Item) counters {
	w.Helper()
	var c counters
	w.must(w.db.Pool.QueryRow(w.ctx(), w.sql(`select starts, attempts, crashes, interrupted from claimq.delayed where id = $1`), it.ID).
		Scan(&c.Starts, &c.Attempts, &c.Crashes, &c.Interrupted))
	return c
}

// ids names the items of a run.
func ids(items []*delayq.Item) []uuid.UUID {
	var list []uuid.UUID
	for _, it := range items {
		list = append(list, it.ID)
	}
	return list
}

// checkKeys fails unless the key rows are exactly what the items and holding
// letters ask for: no item without a row, no row without an item or a hold, and
// rows that nobody leases due as their heads are.
func (w *world) checkKeys() {
	w.Helper()
	if wrong := w.wrongKeys(); wrong != 0 {
		w.Fatalf("%d key rows are not what the items and letters ask for", wrong)
	}
}

func (w *world) wrongKeys() int {
	w.Helper()
	return get[int](w, `
		with heads as (
		     select distinct on (queue, order_key) queue, order_key, order_pos, due_at
		       from claimq.delayed order by queue, order_key, order_pos),
		holds as (
		     select queue, order_key, min(order_pos) as order_pos from claimq.dead_letters
		      where holds_key and state = 'dead' group by queue, order_key),
		want as (
		     select queue, order_key,
		            case when holds.order_pos < coalesce(heads.order_pos, 9223372036854775807) then 'infinity' else heads.due_at end as ready_at
		       from heads full join holds using (queue, order_key))
		select count(*) from want full join claimq.delayed_keys k using (queue, order_key)
		 where want.ready_at is null or k.ready_at is null
		    or (k.lease_token is null and k.ready_at <> want.ready_at)`)
}

// waitUntilBlocked returns when the connection waits for a lock.
func (w *world) waitUntilBlocked(pid uint32) {
	w.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		if get[bool](w, `select exists (select 1 from pg_stat_activity where pid = $1 and wait_event_type = 'Lock')`, int32(pid)) {
			return
		}
	}
	w.Fatalf("backend %d has not come to wait for a lock", pid)
}
