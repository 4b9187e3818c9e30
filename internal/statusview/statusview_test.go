package statusview_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/pgtest"
	"github.com/claimq/claimq/internal/statusview"
)

type fixture struct {
	*pgtest.DB
	t *testing.T
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{DB: pgtest.New(t), t: t}
	f.exec(`insert into claimq.queues (name, group_name, rule, config, owner_team, owner_contact) values
		('orders', 'orders', 'r', '{"claims": "id"}', 'shop', '#shop'), ('refunds', 'refunds', 'r', '{"claims": "none"}', '', '')`)
	return f
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.Pool.Exec(f.t.Context(), pgschema.Schema(f.Schema).SQL(sql), args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

func (f *fixture) read(name string) []statusview.Queue {
	f.t.Helper()
	view, err := statusview.Read(f.t.Context(), f.Pool, pgschema.Schema(f.Schema), name)
	if err != nil {
		f.t.Fatalf("Read: %v", err)
	}
	return view.Queues
}

func (f *fixture) one(name string) statusview.Queue {
	f.t.Helper()
	queues := f.read(name)
	if len(queues) != 1 {
		f.t.Fatalf("Read(%q) has %d queues, want one", name, len(queues))
	}
	return queues[0]
}

// item stores n items of an order key; the key is a digit.
func (f *fixture) items(queue int, key string, n int) {
	f.t.Helper()
	f.exec(`insert into claimq.delayed (id, queue, kind, order_key, due_at, record_topic, record_at)
		select gen_random_uuid(), $1, 'failed', $2::uuid, now(), 't', now() from generate_series(1, $3)`, queue, orderKey(key), n)
}

func (f *fixture) key(queue int, key, readyAt string, leased bool) {
	f.t.Helper()
	f.exec(`insert into claimq.delayed_keys (queue, order_key, ready_at, lease_token)
		values ($1, $2::uuid, case when $3 = 'infinity' then 'infinity' else now() + $3::interval end, case when $4 then gen_random_uuid() end)`, queue, orderKey(key), readyAt, leased)
}

func orderKey(digit string) string { return "00000000-0000-0000-0000-00000000000" + digit }

func (f *fixture) worker(instance string, seenAgo string, queues []string, stats string) {
	f.t.Helper()
	f.exec(`insert into claimq.workers (instance, queues, host, version, seen_at, stats) values ($1, $2, 'h', 'v', now() - $3::interval, $4)`, instance, queues, seenAgo, stats)
}

func TestReadOfAnEmptySchema(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	view, err := statusview.Read(t.Context(), db.Pool, pgschema.Schema(db.Schema), "")
	if err != nil || view.Queues == nil || len(view.Queues) != 0 {
		t.Errorf("Read = %+v, %v, want an empty list", view, err)
	}
}

func TestReadOfIdleQueues(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	queues := f.read("")
	if len(queues) != 2 {
		t.Fatalf("Read has %d queues, want 2", len(queues))
	}
	if since := queues[0].RememberedSince; since == nil || time.Since(*since).Abs() > time.Minute {
		t.Errorf("a queue made just now remembers since %v", since)
	}
	queues[0].RememberedSince = nil
	want := []statusview.Queue{
		{Name: "orders", State: statusview.Stopped, Team: "shop", Contact: "#shop"},
		{Name: "refunds", State: statusview.Stopped}, // claims nothing: remembers nothing
	}
	if diff := cmp.Diff(want, queues); diff != "" {
		t.Errorf("Read (-want +got):\n%s", diff)
	}
	if got := f.read("nosuch"); len(got) != 0 {
		t.Errorf("Read of a queue that there is not = %+v", got)
	}
}

func TestReadCountsWhatWaitsByKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.items(1, "1", 3) // ready, two behind it
	f.key(1, "1", "-1 second", false)
	f.items(1, "2", 1) // waits for its next attempt
	f.key(1, "2", "1 hour", false)
	f.items(1, "3", 4) // being handled, three behind it
	f.key(1, "3", "45 seconds", true)
	f.items(1, "4", 2) // a lease that ended is ready
	f.key(1, "4", "-1 second", true)
	f.items(1, "5", 5) // held by a dead letter
	f.key(1, "5", "infinity", false)
	f.items(2, "1", 7) // another queue
	f.key(2, "1", "1 hour", false)
	q := f.one("orders")
	got := []int64{q.Ready, q.Scheduled, q.InProgress, q.Blocked}
	want := []int64{2, 1, 1, 2 + 3 + 1 + 5}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ready, scheduled, in progress, blocked (-want +got):\n%s", diff)
	}
	if q := f.one("refunds"); q.Scheduled != 1 || q.Blocked != 6 {
		t.Errorf("the other queue has %d scheduled and %d blocked, want 1 and 6", q.Scheduled, q.Blocked)
	}
}

func TestReadCountsOpenLetters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for i, state := range []string{"dead", "dead", "replaying", "resolved", "discarded", "erased"} {
		f.exec(`insert into claimq.dead_letters (id, queue, state, reason, cause, cause_version, order_key, record_topic, record_at, topic, partition, "offset", settled_at)
			values (gen_random_uuid(), 1, $1::claimq.letter_state, 'poison', gen_random_uuid(), 1, gen_random_uuid(), 't', now(), null, null, null,
			        case when $2 > 2 then now() end)`, state, i)
	}
	if q := f.one("orders"); q.Broken != 2 || q.Replaying != 1 {
		t.Errorf("broken %d, replaying %d, want 2 and 1", q.Broken, q.Replaying)
	}
}

func TestReadAddsUpTheWorkersThatAreHeardOf(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.worker("a", "1 second", []string{"orders"}, `{"orders": {"processed_hour": 300, "handler_ms_avg": 2, "lag": 10, "fenced": 1}}`)
	f.worker("b", "2 seconds", []string{"orders", "refunds"}, `{"orders": {"processed_hour": 100, "handler_ms_avg": 6, "lag": 5, "fenced": 0}, "refunds": {"lag": 7}}`)
	f.worker("silent", "1 minute", []string{"orders"}, `{"orders": {"processed_hour": 9000, "handler_ms_avg": 900, "lag": 900, "fenced": 9}}`)
	q := f.one("orders")
	if q.State != statusview.Running || q.Workers != 2 || q.Silent != 1 {
		t.Errorf("state %s with %d workers and %d silent ones, want running, 2, 1", q.State, q.Workers, q.Silent)
	}
	if q.ProcessedHour == nil || q.AverageMS == nil || q.Lag == nil || q.Fenced == nil {
		t.Fatalf("figures are missing: %+v", q)
	}
	if *q.ProcessedHour != 400 || *q.AverageMS != 3 || *q.Lag != 15 || *q.Fenced != 1 {
		t.Errorf("processed %d, average %v ms, lag %d, fenced %d, want 400, 3, 15, 1", *q.ProcessedHour, *q.AverageMS, *q.Lag, *q.Fenced)
	}
	q = f.one("refunds")
	if q.Workers != 1 || q.Lag == nil || *q.Lag != 7 || q.ProcessedHour != nil || q.AverageMS != nil || q.Fenced != nil {
		t.Errorf("a worker that tells its lag only gives %+v", q)
	}
}

func TestReadTellsTheStates(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.worker("frozen", "1 minute", []string{"orders"}, `{}`)
	if q := f.one("orders"); q.State != statusview.NoWorker {
		t.Errorf("with a silent worker the state is %q, want no worker", q.State)
	}
	f.worker("alive", "0 seconds", []string{"orders"}, `{}`)
	f.exec(`update claimq.queues set paused_at = now(), paused_by = 'ada', paused_why = 'the target is down' where name = 'orders'`)
	q := f.one("orders")
	if q.State != statusview.Paused || q.PausedBy != "ada" || q.PausedWhy != "the target is down" || q.PausedAt == nil {
		t.Errorf("a paused queue is %+v", q)
	}
}

func TestReadTellsTheNewestPosition(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`insert into claimq.positions (slot, id, queue, topics, partitions, epochs, offsets, leader_epochs, written_at) values
		(0, gen_random_uuid(), 1, '{1,1}', '{0,1}', '{1,1}', '{5,6}', '{0,0}', now() - interval '2 hours'),
		(1, gen_random_uuid(), 1, '{1}', '{1}', '{1}', '{9}', '{0}', now() - interval '1 hour')`)
	q := f.one("orders")
	if q.Partitions != 2 || q.PositionAt == nil || (time.Since(*q.PositionAt)-time.Hour).Abs() > time.Minute {
		t.Errorf("%d partitions, the newest position of %v, want 2, an hour ago", q.Partitions, q.PositionAt)
	}
}
