package delayq_test

import (
	"testing"
	"time"

	"github.com/claimq/claimq/delayq"
)

// A key that every batch stores behind does not get a new version of its row for
// each of them: it would be the one row that a whole partition updates.
func TestStoringBehindAHotKeyWritesNoNewVersionOfIt(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*world){
		"waiting": func(w *world) {
			m1 := w.item(delayq.Failed, key("k"))
			m1.DueIn = time.Hour
			w.put(m1)
		},
		"ready":  func(w *world) { w.put(w.item(delayq.Failed, key("k"))) },
		"leased": func(w *world) { w.put(w.item(delayq.Failed, key("k"))); w.leaseOne() },
		"its lease has ended": func(w *world) {
			w.put(w.item(delayq.Failed, key("k")))
			w.leaseOne()
			w.expire()
		},
		"held by a letter": func(w *world) {
			w.exec(`insert into claimq.dead_letters (id, queue, reason, cause, cause_version, order_key, holds_key, record_topic, record_at)
			        values (gen_random_uuid(), $1, 'exhausted', gen_random_uuid(), 1, $2, true, 'orders', now())`, w.queue, key("k"))
			w.put(w.item(delayq.Blocked, key("k")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			prepare(w)
			version := func() string { return get[string](w, `select ctid || ' ' || xmin from claimq.delayed_keys`) }
			before := version()
			for range 50 {
				w.put(w.item(delayq.Blocked, key("k")), w.item(delayq.Blocked, key("k")))
			}
			if after := version(); after != before {
				t.Fatalf("the key row's version was %s and is %s after 50 batches", before, after)
			}
			w.checkKeys()
		})
	}
}

// A repeat of a waiting message does not touch its item.
func TestRepeatsWriteNoNewVersionOfTheItem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1 := w.item(delayq.Failed, key("k"))
	w.put(m1)
	version := func() string { return get[string](w, `select ctid || ' ' || xmin from claimq.delayed`) }
	before := version()
	for range 20 {
		repeat := w.item(delayq.Blocked, key("k"))
		repeat.Claim = m1.Claim
		w.put(repeat)
	}
	if after := version(); after != before {
		t.Fatalf("the item's version was %s and is %s after 20 repeats", before, after)
	}
}

// An idle poll and NextDue write nothing at all.
func TestAnIdlePollWritesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1 := w.item(delayq.Failed, key("k"))
	m1.DueIn = time.Hour
	w.put(m1)
	spy := &settingsSpy{Conn: w.db.Conn()}
	runs, err := w.store.Lease(w.ctx(), spy, w.queue, delayq.LeaseOptions{})
	w.must(err)
	if len(runs) != 0 || spy.wrote || spy.isolation == "" {
		t.Fatalf("%d runs; a transaction id was used: %v", len(runs), spy.wrote)
	}
}
