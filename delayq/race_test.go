package delayq_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/delayq"
)

// session is one connection of a race, stepped by the test.
type session struct {
	w       *world
	conn    *pgx.Conn
	pending chan error
}

func (w *world) session() *session {
	return &session{w: w, conn: w.db.Conn(), pending: make(chan error, 1)}
}

// run sends statements inside the session's transaction.
func (s *session) run(queue func(*pgx.Batch)) error {
	var b pgx.Batch
	queue(&b)
	return s.conn.SendBatch(s.w.ctx(), &b).Close()
}

// begin starts a transaction and runs statements that wait for nobody.
func (s *session) begin(queue func(*pgx.Batch)) {
	s.w.Helper()
	s.exec("begin isolation level read committed")
	s.w.must(s.run(queue))
}

// beginBlocked starts a transaction and statements, and returns when they have
// come to wait for another session's lock.
func (s *session) beginBlocked(queue func(*pgx.Batch)) {
	s.w.Helper()
	s.exec("begin isolation level read committed")
	go func() { s.pending <- s.run(queue) }()
	s.w.waitUntilBlocked(s.conn.PgConn().PID())
}

// resume waits for what was blocked.
func (s *session) resume() error {
	s.w.Helper()
	select {
	case err := <-s.pending:
		return err
	case <-time.After(20 * time.Second):
		s.w.Fatal("the session is still blocked")
		return nil
	}
}

func (s *session) exec(sql string) {
	s.w.Helper()
	if _, err := s.conn.Exec(s.w.ctx(), sql); err != nil {
		s.w.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) finishing(run *delayq.Run, verdicts ...delayq.Verdict) func(*pgx.Batch) {
	return func(b *pgx.Batch) {
		w.must(w.store.Finish(b, w.queue, []delayq.Finished{{Run: run, Verdicts: verdicts}}))
	}
}

func (w *world) storing(items ...*delayq.Item) func(*pgx.Batch) {
	return func(b *pgx.Batch) { w.store.Put(b, items) }
}

// Race 1, the finisher first: X has removed m1 and k, uncommitted, when Y stores
// m2 behind k. Y waits for k's row, finds it gone and makes it again.
func TestStoringBehindAKeyThatIsBeingRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1, m2 := w.item(delayq.Failed, key("k")), w.item(delayq.Blocked, key("k"))
	w.put(m1)
	run := w.leaseOne()
	x, y := w.session(), w.session()
	x.begin(w.finishing(run, done))
	y.beginBlocked(w.storing(m2))
	x.exec("commit")
	w.must(y.resume())
	y.exec("commit")
	w.checkKeys()
	if diff := cmp.Diff([]uuid.UUID{m2.ID}, ids(w.leaseOne().Items)); diff != "" {
		t.Fatalf("m2 waits for ever (-want +got):\n%s", diff)
	}
}

// Race 1, the same, and X rolls back: k is still leased, and m2 is behind m1.
func TestStoringBehindAKeyWhoseRemovalIsRolledBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1, m2 := w.item(delayq.Failed, key("k")), w.item(delayq.Blocked, key("k"))
	w.put(m1)
	run := w.leaseOne()
	x, y := w.session(), w.session()
	x.begin(w.finishing(run, done))
	y.beginBlocked(w.storing(m2))
	x.exec("rollback")
	w.must(y.resume())
	y.exec("commit")
	w.checkKeys()
	if row := w.keyRow(key("k")); !row.leased {
		t.Fatalf("the key is %+v, want X's lease", row)
	}
	w.must(w.finish(run, done))
	if diff := cmp.Diff([]uuid.UUID{m2.ID}, ids(w.leaseOne().Items)); diff != "" {
		t.Fatalf("after m1 (-want +got):\n%s", diff)
	}
}

// Race 1, the storer first: Y has m2 and k's lock, uncommitted, when X finishes
// m1. X waits, and then sees m2: k must stay.
func TestRemovingAKeyThatIsBeingStoredBehind(t *testing.T) {
	t.Parallel()
	for name, commit := range map[string]bool{"the storer commits": true, "the storer rolls back": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			m1, m2 := w.item(delayq.Failed, key("k")), w.item(delayq.Blocked, key("k"))
			w.put(m1)
			run := w.leaseOne()
			x, y := w.session(), w.session()
			y.begin(w.storing(m2))
			x.beginBlocked(w.finishing(run, done))
			if commit {
				y.exec("commit")
			} else {
				y.exec("rollback")
			}
			w.must(x.resume())
			x.exec("commit")
			w.checkKeys()
			if got := w.keyRow(key("k")).present; got != commit {
				t.Fatalf("k is there: %v, m2 is there: %v", got, commit)
			}
			if commit && len(w.lease()) != 1 {
				t.Fatal("m2 is not ready")
			}
		})
	}
}

// Race 1 at first sight of a key: two storers make its row.
func TestTwoStorersOfANewKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1, m2 := w.item(delayq.Failed, key("k")), w.item(delayq.Failed, key("k"))
	m1.DueIn = time.Hour
	x, y := w.session(), w.session()
	x.begin(w.storing(m1))
	y.beginBlocked(w.storing(m2))
	x.exec("commit")
	w.must(y.resume())
	y.exec("commit")
	w.checkKeys()
	if row := w.keyRow(key("k")); row.in < 59*time.Minute {
		t.Fatalf("the key is %+v, want it due as m1 is, in an hour", row)
	}
}

// Race 1 with a lease: what is stored behind a leased key leaves its row to the
// holder, and a poll skips a key that is being stored behind.
func TestPollSkipsAKeyThatIsBeingStoredBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(w.item(delayq.Failed, key("k")))
	y := w.session()
	y.begin(w.storing(w.item(delayq.Blocked, key("k"))))
	if runs := w.lease(); len(runs) != 0 {
		t.Fatal("the poll took a key whose newest item it cannot see yet")
	}
	if in, some, err := w.store.NextDue(w.ctx(), w.db.Pool, w.queue); err != nil || !some || in != 0 {
		t.Fatalf("next due in %v, %v (%v); want at once, for another poll", in, some, err)
	}
	y.exec("commit")
	if run := w.leaseOne(); len(run.Items) != 2 {
		t.Fatalf("%d items, want both", len(run.Items))
	}
}

// Race 2: X's lease has run out and Y has the key when X finishes.
func TestLateFinisherIsRefused(t *testing.T) {
	t.Parallel()
	for name, verdict := range map[string]delayq.Verdict{
		"done": done, "retry": retry, "dead": dead, "untouched": untouched, "interrupted": {Outcome: delayq.Interrupted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			m1 := w.item(delayq.Failed, key("k"))
			w.put(m1)
			x := w.leaseOne()
			w.expire()
			y := w.leaseOne()
			before := get[string](w, `select string_agg(d::text, '|') from claimq.delayed d`)
			w.wantLeaseLost(w.commit(func(b *pgx.Batch) {
				b.Queue(w.sql(`insert into claimq.audit (who, why, action) values ('x', 'late', 'business write')`))
				w.finishing(x, verdict)(b)
			}))
			if n := get[int](w, `select count(*) from claimq.audit`); n != 0 {
				t.Fatal("the COMMIT behind the refused finish was executed")
			}
			if after := get[string](w, `select string_agg(d::text, '|') from claimq.delayed d`); after != before {
				t.Fatalf("the item was changed:\n%s\n%s", before, after)
			}
			w.must(w.finish(y, done))
			w.wantLeaseLost(w.finish(x, verdict)) // and after Y has finished
			w.checkKeys()
		})
	}
}

// Race 2, the other way round: X's lease has run out, but X is in its last flight
// when Y polls. Y takes nothing.
func TestPollDuringALateFinish(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(w.item(delayq.Failed, key("k")))
	run := w.leaseOne()
	w.expire()
	x := w.session()
	x.begin(w.finishing(run, retry))
	if runs := w.lease(); len(runs) != 0 {
		t.Fatal("the poll took a key in the middle of its holder's last flight")
	}
	x.exec("commit")
	if runs := w.lease(); len(runs) != 0 {
		t.Fatal("the key is ready before the retry is due")
	}
	w.checkKeys()
}

// Race 2 in the middle: Y leases between the end of X's lease and X's check. X
// waits for Y's commit and is then refused.
func TestFinishBlockedByALeaseIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1 := w.item(delayq.Failed, key("k"))
	w.put(m1)
	run := w.leaseOne()
	w.expire()
	x, y := w.session(), w.session()
	y.begin(func(b *pgx.Batch) { // what Lease does, stopped before its COMMIT
		b.Queue(w.sql(`update claimq.delayed_keys set lease_token = gen_random_uuid(), ready_at = now() + interval '1 minute' where order_key = $1`), key("k"))
	})
	x.beginBlocked(w.finishing(run, done))
	y.exec("commit")
	w.wantLeaseLost(x.resume())
	x.exec("rollback")
	if got := w.counters(m1); got != (counters{Starts: 2, Attempts: 1}) {
		t.Fatalf("the refused finish left %+v", got)
	}
}

// An operator who takes an item of a leased key without taking the lease: the
// worker's finish is refused all the same.
func TestFinishOfAnItemThatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1, m2 := w.item(delayq.Failed, key("k")), w.item(delayq.Blocked, key("k"))
	w.put(m1, m2)
	run := w.leaseOne()
	w.exec(`delete from claimq.delayed where id = $1`, m2.ID)
	w.wantLeaseLost(w.finish(run, done, done))
	if n := get[int](w, `select count(*) from claimq.delayed`); n != 1 {
		t.Fatalf("%d items, want m1", n)
	}
}

// Race 3: a crash between Lease and Finish (CASES C14, C17).
func TestCrashIsCountedByTheNextLeaseAndUsesNoAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1, m2 := w.item(delayq.Failed, key("k")), w.item(delayq.Blocked, key("k"))
	w.put(m1, m2)
	w.leaseOne()
	if runs := w.lease(); len(runs) != 0 {
		t.Fatal("a leased key was handed out again")
	}
	in, some, err := w.store.NextDue(w.ctx(), w.db.Pool, w.queue)
	w.must(err)
	if !some || in <= 0 || in > delayq.DefaultLeaseFor {
		t.Fatalf("next due in %v, want the lease's end", in)
	}
	w.expire()
	run := w.leaseOne()
	if it := run.Items[0]; it.Crashes != 1 || it.Attempts != 1 || it.Starts != 3 {
		t.Fatalf("starts %d, attempts %d, crashes %d; want 3, 1, 1", it.Starts, it.Attempts, it.Crashes)
	}
	w.must(w.finish(run, done, untouched))
	if got := w.counters(m2); got != (counters{Starts: 1, Crashes: 1}) {
		t.Fatalf("m2 was handed out once under the lease that ended: %+v", got)
	}
	// A finished start is no crash.
	w.must(w.finish(w.leaseOne(), retry))
	w.makeDue()
	if it := w.leaseOne().Items[0]; it.Crashes != 1 || it.Attempts != 1 {
		t.Fatalf("crashes %d, attempts %d; want 1, 1", it.Crashes, it.Attempts)
	}
}

// Race 4: pollers meet. Each key is with one of them.
func TestPollersShareTheKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var items []*delayq.Item
	for range 200 {
		items = append(items, w.item(delayq.Failed, uuid.Nil))
	}
	w.put(items...)
	type taken struct {
		runs []*delayq.Run
		err  error
	}
	results := make(chan taken)
	const pollers = 4
	for range pollers {
		go func() {
			var all taken
			for range 20 {
				runs, err := w.store.Lease(w.ctx(), w.db.Pool, w.queue, delayq.LeaseOptions{Keys: 10})
				if err != nil {
					all.err = err
					break
				}
				all.runs = append(all.runs, runs...)
			}
			results <- all
		}()
	}
	handed := map[uuid.UUID]int{}
	for range pollers {
		all := <-results
		w.must(all.err)
		for _, run := range all.runs {
			handed[run.OrderKey]++
		}
	}
	for _, run := range w.lease() {
		handed[run.OrderKey]++
	}
	for id, n := range handed {
		if n != 1 {
			t.Fatalf("item %v was handed out %d times", id, n)
		}
	}
	if len(handed) != len(items) {
		t.Fatalf("%d keys were handed out of %d", len(handed), len(items))
	}
}

// Race 4, stepped: the second poller reads the key before the first commits.
func TestSecondPollerJudgesALeasedKeyAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(w.item(delayq.Failed, key("k")))
	x := w.session()
	x.begin(func(b *pgx.Batch) {
		b.Queue(w.sql(`select 1 from claimq.delayed_keys where order_key = $1 for update`), key("k"))
	})
	if runs := w.lease(); len(runs) != 0 {
		t.Fatal("a key that another poller is taking was taken")
	}
	x.exec("rollback")
	w.leaseOne()
}

// Two transactions that need the same keys, named in opposite orders, take them in
// one order (CASES C13's kind).
func TestStorersOfManyKeysDoNotDeadlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var names []uuid.UUID
	for i := range 26 {
		names = append(names, key(string(rune('a'+i))))
	}
	results := make(chan error)
	for direction := range 2 {
		go func() {
			for range 30 {
				var items []*delayq.Item
				for i := range names {
					if direction == 1 {
						i = len(names) - 1 - i
					}
					items = append(items, w.item(delayq.Failed, names[i]))
				}
				if err := w.commit(w.storing(items...)); err != nil {
					results <- err
					return
				}
			}
			results <- nil
		}()
	}
	w.must(<-results)
	w.must(<-results)
	w.checkKeys()
}
