package delayq_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/delayq"
)

func TestPutKeepsTheOrderGiven(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	items := make([]*delayq.Item, 300)
	for i := range items {
		items[i] = w.item(delayq.Blocked, key("k"))
	}
	w.put(items...)
	for i, it := range items[1:] {
		if it.OrderPos <= items[i].OrderPos {
			t.Fatalf("item %d has position %d, the one before %d", i+1, it.OrderPos, items[i].OrderPos)
		}
	}
	run := w.leaseOne()
	if diff := cmp.Diff(ids(items), ids(run.Items)); diff != "" {
		t.Fatalf("order (-stored +handed out):\n%s", diff)
	}
	w.checkKeys()
}

func TestPutAgainChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.item(delayq.Failed, key("k"))
	first.DueIn = time.Hour
	w.put(first)
	before := get[string](w, `select string_agg(d::text, '|') from claimq.delayed d`)

	again := *first // the same batch after an unknown COMMIT
	again.ID, again.OrderPos, again.DueIn = uuid.Nil, 0, 0
	repeat := w.item(delayq.Failed, key("elsewhere")) // a repeat of the id from another offset
	repeat.Claim = first.Claim
	twin := w.item(delayq.Failed, key("twin")) // two repeats in one batch
	twinAgain := *twin
	sourceless := *first // the id alone
	sourceless.Source, sourceless.Claim = nil, uuid.NullUUID{}
	w.put(&again, repeat, twin, &twinAgain, &sourceless)

	if again.ID != first.ID {
		t.Errorf("the id of one source is %v and then %v", first.ID, again.ID)
	}
	got := []bool{first.Folded, again.Folded, repeat.Folded, twin.Folded, twinAgain.Folded, sourceless.Folded}
	if diff := cmp.Diff([]bool{false, true, true, false, true, true}, got); diff != "" {
		t.Errorf("folded (-want +got):\n%s", diff)
	}
	if after := get[string](w, `select string_agg(d::text, '|') from claimq.delayed d where order_key = $1`, key("k")); after != before {
		t.Errorf("the item was changed:\n%s\n%s", before, after)
	}
	if w.keyRow(key("elsewhere")).present {
		t.Error("a folded item left a key row without an item")
	}
	w.checkKeys()
}

func TestPutDueTimesAreTheDatabases(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	later, at := w.item(delayq.Failed, uuid.Nil), w.item(delayq.Failed, uuid.Nil)
	later.DueIn = time.Hour
	at.DueAt = time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)
	far := w.item(delayq.Failed, uuid.Nil)
	far.DueIn = 1<<63 - 1
	w.put(later, at, far)
	if off := get[time.Time](w, `select clock_timestamp()`).Sub(later.DueAt.Add(-time.Hour)); off < 0 || off > time.Minute {
		t.Errorf("due %v from an hour after now", off)
	}
	if !at.DueAt.Equal(time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("due at %v", at.DueAt)
	}
	if in := time.Until(far.DueAt); in > delayq.LongestDelay+time.Hour {
		t.Errorf("due in %v, want it bounded", in)
	}
	if runs := w.lease(); len(runs) != 0 {
		t.Fatalf("%d runs of future items were handed out", len(runs))
	}
	w.checkKeys()
}

func TestPutNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var b pgx.Batch
	w.store.Put(&b, nil)
	w.store.Settle(&b, w.queue, nil)
	w.must(w.store.Finish(&b, w.queue, nil))
	if b.Len() != 0 {
		t.Fatalf("%d statements were queued for nothing", b.Len())
	}
}

func TestUnorderedItemsWaitForThemselvesOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m1, m2 := w.item(delayq.Failed, uuid.Nil), w.item(delayq.Failed, uuid.Nil)
	m1.DueIn = time.Hour
	w.put(m1, m2)
	run := w.leaseOne()
	if run.Items[0].ID != m2.ID || run.OrderKey != m2.ID {
		t.Fatalf("%v under %v was handed out, want %v under its own id", run.Items[0].ID, run.OrderKey, m2.ID)
	}
}

// One statement stores items of several queues; each queue has its own keys.
func TestQueuesDoNotShareOrderKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := get[int32](w, `insert into claimq.queues (name, group_name, rule) values ('b', 'b', 'r') returning id`)
	m1, m2 := w.item(delayq.Failed, key("k")), w.item(delayq.Failed, key("k"))
	m1.DueIn, m2.Queue = time.Hour, other
	w.put(m1, m2)
	w.checkKeys()
	if runs := w.lease(); len(runs) != 0 {
		t.Fatal("an item of another queue was handed out")
	}
	runs, err := w.store.Lease(w.ctx(), w.db.Pool, other, delayq.LeaseOptions{})
	w.must(err)
	if len(runs) != 1 || runs[0].Items[0].ID != m2.ID {
		t.Fatalf("%d runs of the other queue", len(runs))
	}
}
