package delayq_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/dlq"
)

// CASES C16: m1 of key k fails and waits; m2 of k and m3 of j arrive.
func TestOrderOfAKeyAcrossARetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1, m2, m3 := w.item(delayq.Failed, key("k")), w.item(delayq.Blocked, key("k")), w.item(delayq.Failed, key("j"))
	m1.DueIn = time.Hour
	w.put(m1)
	w.put(m2, m3)
	var order []uuid.UUID
	step := func() {
		for _, run := range w.lease() {
			order = append(order, ids(run.Items)...)
			verdicts := make([]delayq.Verdict, len(run.Items))
			for i := range verdicts {
				verdicts[i] = done
			}
			w.must(w.finish(run, verdicts...))
		}
	}
	step()
	w.makeDue()
	step()
	if diff := cmp.Diff([]uuid.UUID{m3.ID, m1.ID, m2.ID}, order); diff != "" {
		t.Fatalf("order of effects (-want +got):\n%s", diff)
	}
}

// Both of a key's messages fail: two items, and the second waits for the first
// also when its own delay is over before.
func TestTwoFailuresOfAKeyAreTwoItems(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1, m2 := w.item(delayq.Failed, key("k")), w.item(delayq.Blocked, key("k"))
	w.put(m1, m2)
	run := w.leaseOne()
	w.must(w.finish(run, retry, untouched))
	if n := get[int](w, `select count(*) from claimq.delayed`); n != 2 {
		t.Fatalf("%d items, want 2", n)
	}
	if runs := w.lease(); len(runs) != 0 {
		t.Fatal("m2 was handed out while m1 waits")
	}
	if got := w.counters(m2); got != (counters{}) {
		t.Fatalf("m2 was never started, its counters are %+v", got)
	}
	w.checkKeys()
}

func TestFinishManyRunsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var all []*delayq.Item
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		all = append(all, w.item(delayq.Failed, key(name)), w.item(delayq.Blocked, key(name)))
	}
	w.put(all...)
	verdicts := map[uuid.UUID][]delayq.Verdict{
		key("a"): {done, done},
		key("b"): {retry, untouched},
		key("c"): {dead, done},
		key("d"): {done, dead},
		key("e"): {done, {Outcome: delayq.Interrupted, Message: "shutdown"}},
	}
	var finished []delayq.Finished
	for _, run := range w.lease() {
		finished = append(finished, delayq.Finished{Run: run, Verdicts: verdicts[run.OrderKey]})
	}
	var b pgx.Batch
	w.must(w.store.Finish(&b, w.queue, finished))
	if b.Len() > 7 {
		t.Errorf("%d statements for %d runs, want a fixed number", b.Len(), len(finished))
	}
	w.must(w.commit(func(b *pgx.Batch) { w.must(w.store.Finish(b, w.queue, finished)) }))
	left := get[[]uuid.UUID](w, `select array_agg(id order by order_pos) from claimq.delayed`)
	if diff := cmp.Diff([]uuid.UUID{all[2].ID, all[3].ID, all[9].ID}, left); diff != "" {
		t.Fatalf("what is left (-want +got):\n%s", diff)
	}
	if got := w.counters(all[2]); got != (counters{Starts: 2, Attempts: 2}) {
		t.Errorf("the one that failed again has %+v", got)
	}
	if got := w.counters(all[9]); got != (counters{Starts: 1, Interrupted: 1}) {
		t.Errorf("the one that was interrupted has %+v", got)
	}
	w.checkKeys()
}

func TestFinishRefusesVerdictsThatBreakTheOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put(w.item(delayq.Failed, key("k")), w.item(delayq.Blocked, key("k")))
	run := w.leaseOne()
	elsewhere := *run
	elsewhere.Queue++
	for name, f := range map[string]delayq.Finished{
		"one is missing":           {Run: run, Verdicts: []delayq.Verdict{done}},
		"one too many":             {Run: run, Verdicts: []delayq.Verdict{done, done, done}},
		"done behind a retry":      {Run: run, Verdicts: []delayq.Verdict{retry, done}},
		"retry behind a retry":     {Run: run, Verdicts: []delayq.Verdict{retry, retry}},
		"dead behind an untouched": {Run: run, Verdicts: []delayq.Verdict{untouched, dead}},
		"no outcome there is":      {Run: run, Verdicts: []delayq.Verdict{done, {Outcome: 99}}},
		"another queue's":          {Run: &elsewhere, Verdicts: []delayq.Verdict{done, done}},
	} {
		var b pgx.Batch
		var wrong *delayq.VerdictError
		if err := w.store.Finish(&b, w.queue, []delayq.Finished{f}); !errors.As(err, &wrong) || wrong.OrderKey != key("k") {
			t.Errorf("%s: error %v, want a *VerdictError", name, err)
		}
		if b.Len() != 0 {
			t.Errorf("%s: %d statements were queued all the same", name, b.Len())
		}
	}
	w.must(w.finish(run, done, retry))
}

// A verdict whose delay was forgotten does not spin.
func TestRetryWithoutADelayStillWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1 := w.item(delayq.Failed, key("k"))
	w.put(m1)
	w.must(w.finish(w.leaseOne(), delayq.Verdict{Outcome: delayq.Retry, After: -time.Hour}))
	if !get[bool](w, `select due_at > failed_at from claimq.delayed`) {
		t.Fatal("the item is due before it failed")
	}
}

// A replayed letter stays a replay through its retries: what becomes of it is the
// replay's account.
func TestReplayStaysAReplayThroughRetries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1 := w.item(delayq.Replay, key("k"))
	w.put(m1, w.item(delayq.Blocked, key("b")))
	for _, run := range w.lease() {
		w.must(w.finish(run, retry))
	}
	kinds := get[[]string](w, `select array_agg(kind::text order by order_pos) from claimq.delayed`)
	if diff := cmp.Diff([]string{"replay", "failed"}, kinds); diff != "" {
		t.Fatalf("kinds (-want +got):\n%s", diff)
	}
}

// The item goes and the letter comes in one transaction, in either order of the
// statements, and the letter holds its key when it is to.
func TestDeathHoldsTheKeyUntilItIsSettled(t *testing.T) {
	t.Parallel()
	for name, letterFirst := range map[string]bool{"letter first": true, "finish first": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			m1, m2 := w.item(delayq.Failed, key("k")), w.item(delayq.Blocked, key("k"))
			w.put(m1, m2)
			run := w.leaseOne()
			letter := letterOf(run.Items[0])
			letter.HoldsKey = true
			w.must(w.commit(func(b *pgx.Batch) {
				if letterFirst {
					w.letters.Put(b, []*dlq.Letter{letter})
				}
				w.must(w.store.Finish(b, w.queue, []delayq.Finished{{Run: run, Verdicts: []delayq.Verdict{dead, untouched}}}))
				if !letterFirst {
					w.letters.Put(b, []*dlq.Letter{letter})
				}
			}))
			w.checkKeys()
			if row := w.keyRow(key("k")); !row.infinite || row.leased {
				t.Fatalf("the key is %+v, want it held", row)
			}
			if letter.OrderPos != m1.OrderPos {
				t.Errorf("the letter's position is %d, the item's was %d", letter.OrderPos, m1.OrderPos)
			}
			m3 := w.item(delayq.Blocked, key("k"))
			w.put(m3)
			if row := w.keyRow(key("k")); !row.infinite {
				t.Fatal("storing behind the held key made it ready")
			}
			if depth, err := w.store.Depths(w.ctx(), w.db.Pool, w.queue); err != nil || depth.Blocked != 2 || depth.HeldKeys != 1 {
				t.Fatalf("depths %+v (%v), want two blocked behind one held key", depth, err)
			}
			if _, some, err := w.store.NextDue(w.ctx(), w.db.Pool, w.queue); err != nil || some {
				t.Fatalf("something is due behind a held key (%v)", err)
			}
			w.must(w.commit(func(b *pgx.Batch) { w.letters.Resolve(b, []uuid.UUID{letter.ID}) }))
			w.checkKeys()
			if diff := cmp.Diff([]uuid.UUID{m2.ID, m3.ID}, ids(w.leaseOne().Items)); diff != "" {
				t.Fatalf("after it was resolved (-want +got):\n%s", diff)
			}
		})
	}
}

// A message that dies on the direct path holds a key that nothing waits under yet.
func TestDeathOnTheDirectPathHoldsItsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	letter := letterOf(w.item(delayq.Failed, key("k")))
	letter.HoldsKey = true
	w.must(w.commit(func(b *pgx.Batch) { w.letters.Put(b, []*dlq.Letter{letter}) }))
	if row := w.keyRow(key("k")); !row.infinite {
		t.Fatalf("the key is %+v, want it held", row)
	}
	w.put(w.item(delayq.Blocked, key("k")))
	if runs := w.lease(); len(runs) != 0 {
		t.Fatal("a message behind the letter was handed out")
	}
	w.checkKeys()

	// An operator's decision is settled by Settle, in its transaction.
	w.must(w.commit(func(b *pgx.Batch) {
		b.Queue(w.sql(`update claimq.dead_letters set state = 'discarded', settled_at = now() where id = $1`), letter.ID)
		w.store.Settle(b, w.queue, []uuid.UUID{key("k")})
	}))
	w.checkKeys()
	w.must(w.finish(w.leaseOne(), done))
	if w.keyRow(key("k")).present {
		t.Fatal("the key stays without an item")
	}
}

// A letter that is replayed goes back to its place, before what waited behind it.
func TestReplayGoesBackToItsPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1, m2 := w.item(delayq.Failed, key("k")), w.item(delayq.Blocked, key("k"))
	w.put(m1, m2)
	run := w.leaseOne()
	letter := letterOf(run.Items[0])
	letter.HoldsKey = true
	w.must(w.commit(func(b *pgx.Batch) {
		w.must(w.store.Finish(b, w.queue, []delayq.Finished{{Run: run, Verdicts: []delayq.Verdict{dead, untouched}}}))
		w.letters.Put(b, []*dlq.Letter{letter})
	}))
	replay := *m1
	replay.Kind, replay.OrderPos, replay.DueAt, replay.Starts, replay.Attempts = delayq.Replay, letter.OrderPos, time.Time{}, 0, 0
	w.must(w.commit(func(b *pgx.Batch) {
		b.Queue(w.sql(`update claimq.dead_letters set state = 'replaying' where id = $1`), letter.ID)
		w.store.Put(b, []*delayq.Item{&replay})
	}))
	w.checkKeys()
	if diff := cmp.Diff([]uuid.UUID{m1.ID, m2.ID}, ids(w.leaseOne().Items)); diff != "" {
		t.Fatalf("order after the replay was put (-want +got):\n%s", diff)
	}
}

// letterOf is the letter of an item that has died.
func letterOf(it *delayq.Item) *dlq.Letter {
	source := dlq.Source(*it.Source)
	return &dlq.Letter{
		ID: it.ID, Queue: it.Queue, QueueName: "orders", Reason: dlq.Exhausted,
		OrderKey: it.OrderKey, OrderPos: it.OrderPos, Claim: it.Claim, Source: &source, Record: it.Record,
		Starts: it.Starts, Attempts: it.Attempts,
	}
}
