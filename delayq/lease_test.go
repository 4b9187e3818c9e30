package delayq_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/delayq"
)

// The run of a key ends at its first item that is not due.
func TestLeaseTakesAKeysReadyHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	items := []*delayq.Item{
		w.item(delayq.Failed, key("k")), w.item(delayq.Blocked, key("k")), w.item(delayq.Blocked, key("k")), w.item(delayq.Blocked, key("k")),
	}
	items[2].DueIn = time.Hour
	w.put(items...)
	run := w.leaseOne()
	if diff := cmp.Diff(ids(items[:2]), ids(run.Items)); diff != "" {
		t.Fatalf("run (-want +got):\n%s", diff)
	}
	w.must(w.finish(run, done, done))
	if row := w.keyRow(key("k")); !row.present || row.leased || row.in < 59*time.Minute {
		t.Fatalf("the key is %+v, want it due as its new head is, in an hour", row)
	}
	w.checkKeys()
}

// A key is due as its head is: nothing behind a head in the future is ready.
func TestKeyWithAFutureHeadIsNotReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1 := w.item(delayq.Failed, key("k"))
	m1.DueIn = time.Hour
	w.put(m1)
	w.put(w.item(delayq.Blocked, key("k")))
	if runs := w.lease(); len(runs) != 0 {
		t.Fatalf("the blocked item was handed out before its head")
	}
	in, some, err := w.store.NextDue(w.ctx(), w.db.Pool, w.queue)
	w.must(err)
	if !some || in < 59*time.Minute || in > time.Hour {
		t.Fatalf("next due in %v, %v; want in an hour", in, some)
	}
}

// A key row that says ready while its head is not, as after a hand-made change,
// is brought in line and not handed out.
func TestLeasePutsAWrongKeyRowRight(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1 := w.item(delayq.Failed, key("k"))
	m1.DueIn = time.Hour
	w.put(m1)
	w.exec(`update claimq.delayed_keys set ready_at = now() - interval '1 hour'`)
	w.exec(`insert into claimq.delayed_keys (queue, order_key, ready_at) values ($1, $2, now() - interval '1 hour')`, w.queue, key("nothing"))
	if runs := w.lease(); len(runs) != 0 {
		t.Fatal("an item was handed out before its time")
	}
	w.checkKeys()
}

func TestLeaseIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var items []*delayq.Item
	for _, name := range []string{"a", "b", "c"} {
		for range 4 {
			it := w.item(delayq.Failed, key(name))
			it.Record.Value = make([]byte, 1000)
			items = append(items, it)
		}
	}
	w.put(items...)
	for name, c := range map[string]struct {
		options delayq.LeaseOptions
		runs    []int // sizes
	}{
		"keys":                         {delayq.LeaseOptions{Keys: 2}, []int{4, 4}},
		"items":                        {delayq.LeaseOptions{Items: 6}, []int{2, 2, 2}},
		"fewer items than keys":        {delayq.LeaseOptions{Items: 2}, []int{1, 1}},
		"bytes, breadth first":         {delayq.LeaseOptions{Bytes: 4500}, []int{2, 1, 1}},
		"bytes for less than each key": {delayq.LeaseOptions{Bytes: 2500}, []int{1, 1}},
		"one item is always":           {delayq.LeaseOptions{Bytes: 1}, []int{1}},
	} {
		runs, err := w.store.Lease(w.ctx(), w.db.Pool, w.queue, c.options)
		w.must(err)
		var sizes []int
		for _, run := range runs {
			sizes = append(sizes, len(run.Items))
		}
		if diff := cmp.Diff(c.runs, sorted(sizes)); diff != "" {
			t.Errorf("%s: sizes of the runs (-want +got):\n%s", name, diff)
		}
		w.checkKeys()
		// What was not handed out is ready for others at once.
		rest := w.lease()
		if got := len(runs) + len(rest); got != 3 {
			t.Errorf("%s: %d keys were taken and %d by the next lease, want 3 together", name, len(runs), len(rest))
		}
		for _, run := range append(runs, rest...) {
			w.must(w.finish(run, make([]delayq.Verdict, len(run.Items))...))
		}
	}
	for _, it := range items {
		if got := w.counters(it); got != (counters{Starts: 1, Attempts: 1}) {
			t.Fatalf("after all was given back untouched an item has %+v", got)
		}
	}
}

// What has been ready longest is taken first, so no key starves.
func TestLeaseTakesTheOldestFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var want, got []uuid.UUID
	for i := range 20 {
		it := w.item(delayq.Failed, uuid.Nil)
		it.DueAt = time.Date(2026, 1, 1+(i*7)%20, 0, 0, 0, 0, time.UTC) // not in the order of storing
		w.put(it)
	}
	want = get[[]uuid.UUID](w, `select array_agg(id order by due_at) from claimq.delayed`)
	for range want {
		runs, err := w.store.Lease(w.ctx(), w.db.Pool, w.queue, delayq.LeaseOptions{Keys: 1})
		w.must(err)
		for _, run := range runs {
			got = append(got, ids(run.Items)...)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("order of leases (-want +got):\n%s", diff)
	}
}

func sorted(sizes []int) []int {
	for i := range sizes {
		for j := i; j > 0 && sizes[j] > sizes[j-1]; j-- {
			sizes[j], sizes[j-1] = sizes[j-1], sizes[j]
		}
	}
	return sizes
}

// The start is in the database before the handler can run.
func TestStartIsDurableBeforeItIsHandedOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1 := w.item(delayq.Failed, key("k"))
	w.put(m1)
	w.leaseOne()
	if got := w.counters(m1); got != (counters{Starts: 2, Attempts: 1}) {
		t.Fatalf("counters %+v, want the start that was handed out", got)
	}
}

func TestFailuresUseAttemptsAndNothingElseDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1 := w.item(delayq.Failed, key("k"))
	w.put(m1)
	steps := []struct {
		name string
		do   func()
		want counters
	}{
		{"the worker is killed", func() { w.leaseOne(); w.expire() }, counters{2, 1, 0, 0}},
		{"that is found by the next lease, and it fails", func() { w.must(w.finish(w.leaseOne(), retry)) }, counters{3, 2, 1, 0}},
		{"the worker is stopped", func() {
			w.makeDue()
			w.must(w.store.Release(w.ctx(), w.db.Pool, []*delayq.Run{w.leaseOne()}, "shutdown"))
		}, counters{4, 2, 1, 1}},
		{"it is handed out and never started", func() { w.must(w.finish(w.leaseOne(), untouched)) }, counters{4, 2, 1, 1}},
		{"its batch is interrupted", func() {
			w.must(w.finish(w.leaseOne(), delayq.Verdict{Outcome: delayq.Interrupted, Message: "partition lost"}))
		}, counters{5, 2, 1, 2}},
		{"killed twice more", func() { w.leaseOne(); w.expire(); w.leaseOne(); w.expire() }, counters{7, 2, 2, 2}},
		{"it fails on another worker", func() { w.must(w.finish(w.leaseOne(), retry)) }, counters{8, 3, 3, 2}},
	}
	for _, step := range steps {
		step.do()
		if got := w.counters(m1); got != step.want {
			t.Fatalf("%s: %+v, want %+v", step.name, got, step.want)
		}
		w.checkKeys()
	}
	w.makeDue()
	run := w.leaseOne()
	if it := run.Items[0]; it.Attempts != 3 || it.Starts != it.Attempts+it.Crashes+it.Interrupted+1 {
		t.Fatalf("starts %d exceed attempts %d by other than crashes %d, interruptions %d and the one that runs", it.Starts, it.Attempts, it.Crashes, it.Interrupted)
	}
	if it := run.Items[0]; it.InterruptedWhy != "partition lost" || it.ErrorMessage != "no stock" {
		t.Fatalf("interrupted by %q, failed by %q", it.InterruptedWhy, it.ErrorMessage)
	}
}

func TestReleasedKeyIsReadyAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(w.item(delayq.Failed, key("a")), w.item(delayq.Failed, key("b")))
	runs := w.lease()
	if again := w.lease(); len(again) != 0 {
		t.Fatalf("%d leased keys were leased again", len(again))
	}
	w.must(w.store.Release(w.ctx(), w.db.Pool, runs, "shutdown"))
	if again := w.lease(); len(again) != 2 {
		t.Fatalf("%d released keys are ready, want 2", len(again))
	}
	w.wantLeaseLost(w.store.Release(w.ctx(), w.db.Pool, runs, "shutdown"))
}

func TestRenewKeepsTheLeaseAndTellsWhichAreLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(w.item(delayq.Failed, key("a")), w.item(delayq.Failed, key("b")))
	runs := w.lease()
	w.expire() // both ends have passed
	lost, err := w.store.Renew(w.ctx(), w.db.Pool, runs[:1], time.Hour)
	w.must(err)
	if len(lost) != 0 {
		t.Fatal("a lease that ended and was not taken is lost")
	}
	taken := w.leaseOne() // another worker finds one ready key
	if taken.OrderKey != runs[1].OrderKey {
		t.Fatal("the renewed lease was taken")
	}
	lost, err = w.store.Renew(w.ctx(), w.db.Pool, runs, 0)
	w.must(err)
	if len(lost) != 1 || lost[0] != runs[1] {
		t.Fatalf("%d leases lost, want the one that was taken", len(lost))
	}
	if lost, err := w.store.Renew(w.ctx(), w.db.Pool, nil, 0); err != nil || len(lost) != 0 {
		t.Fatalf("renewing nothing: %v, %v", lost, err)
	}
	w.must(w.finish(runs[0], done))
	w.must(w.finish(taken, done))
}

func TestNextDueAndDepths(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, some, err := w.store.NextDue(w.ctx(), w.db.Pool, w.queue); err != nil || some {
		t.Fatalf("an empty queue has something due (%v)", err)
	}
	depth := func() delayq.Depth {
		d, err := w.store.Depths(w.ctx(), w.db.Pool, w.queue)
		w.must(err)
		d.Oldest = time.Time{}
		return d
	}
	if diff := cmp.Diff(delayq.Depth{}, depth()); diff != "" {
		t.Fatalf("an empty queue: %s", diff)
	}
	delayed, later := w.item(delayq.Failed, key("delayed")), w.item(delayq.Scheduled, key("delayed"))
	delayed.DueIn, later.DueIn = time.Minute, time.Hour
	w.put(delayed, w.item(delayq.Blocked, key("delayed")), later, w.item(delayq.Failed, uuid.Nil))
	if diff := cmp.Diff(delayq.Depth{Ready: 1, Delayed: 1, Blocked: 1, Scheduled: 1}, depth()); diff != "" {
		t.Fatalf("depths (-want +got):\n%s", diff)
	}
	if in, some, err := w.store.NextDue(w.ctx(), w.db.Pool, w.queue); err != nil || !some || in != 0 {
		t.Fatalf("something is ready, next due in %v, %v (%v)", in, some, err)
	}
	run := w.leaseOne()
	if diff := cmp.Diff(delayq.Depth{Running: 1, Delayed: 1, Blocked: 1, Scheduled: 1}, depth()); diff != "" {
		t.Fatalf("depths while one is handed out (-want +got):\n%s", diff)
	}
	w.expire()
	if diff := cmp.Diff(delayq.Depth{Ready: 1, Delayed: 1, Blocked: 1, Scheduled: 1}, depth()); diff != "" {
		t.Fatalf("depths after its worker has gone (-want +got):\n%s", diff)
	}
	w.must(w.finish(run, done))
	d, err := w.store.Depths(w.ctx(), w.db.Pool, w.queue)
	w.must(err)
	if since := time.Since(d.Oldest); since < 0 || since > time.Minute {
		t.Fatalf("the oldest item is of %v", d.Oldest)
	}
}

// Lease says its isolation level and that its COMMIT is synchronous: the defaults
// of a role or database cannot turn its statements' snapshots into one, nor hand
// out starts that a crash of the server forgets.
func TestLeaseSaysWhatTransactionItNeeds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(w.item(delayq.Failed, key("k")))
	conn := w.db.Conn()
	for _, setting := range []string{`set default_transaction_isolation = 'repeatable read'`, `set synchronous_commit = off`} {
		if _, err := conn.Exec(w.ctx(), setting); err != nil {
			t.Fatal(err)
		}
	}
	spy := &settingsSpy{Conn: conn}
	runs, err := w.store.Lease(w.ctx(), spy, w.queue, delayq.LeaseOptions{})
	w.must(err)
	if len(runs) != 1 || spy.isolation != "read committed" || spy.synchronous != "on" {
		t.Fatalf("%d runs under isolation %q with synchronous_commit %q", len(runs), spy.isolation, spy.synchronous)
	}
}

// settingsSpy asks a transaction for its settings just before it commits.
type settingsSpy struct {
	*pgx.Conn
	isolation, synchronous string
	wrote                  bool // a transaction id was used
}

func (s *settingsSpy) BeginTx(ctx context.Context, o pgx.TxOptions) (pgx.Tx, error) {
	tx, err := s.Conn.BeginTx(ctx, o)
	return &spiedTx{Tx: tx, spy: s}, err
}

type spiedTx struct {
	pgx.Tx
	spy *settingsSpy
}

func (t *spiedTx) Commit(ctx context.Context) error {
	row := t.QueryRow(ctx, `select current_setting('transaction_isolation'), current_setting('synchronous_commit'),
		pg_current_xact_id_if_assigned() is not null`)
	if err := row.Scan(&t.spy.isolation, &t.spy.synchronous, &t.spy.wrote); err != nil {
		return err
	}
	return t.Tx.Commit(ctx)
}
