package delayq_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/claimq/claimq/delayq"
)

// Until it is due a scheduled message holds up nothing of its order key, and when
// it is due it stands behind what waits there.
func TestScheduledItemJoinsItsKeyWhenItIsDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	scheduled := w.item(delayq.Scheduled, key("k"))
	scheduled.DueIn = time.Hour
	w.put(scheduled)
	if w.keyRow(key("k")).present {
		t.Fatal("a message that is not due blocks its order key")
	}
	m1 := w.item(delayq.Failed, key("k"))
	m1.DueIn = time.Hour
	w.put(m1)
	w.exec(`update claimq.delayed set due_at = now() - interval '1 second' where id = $1`, scheduled.ID)
	w.exec(`update claimq.delayed_keys set ready_at = now() - interval '1 second' where order_key = $1`, scheduled.ID)
	if runs := w.lease(); len(runs) != 0 {
		t.Fatal("the scheduled message overtook m1, which failed before it was due")
	}
	w.checkKeys()
	w.makeDue()
	if diff := cmp.Diff([]uuid.UUID{m1.ID, scheduled.ID}, ids(w.leaseOne().Items)); diff != "" {
		t.Fatalf("order (-want +got):\n%s", diff)
	}
}

func TestScheduledItemJoinsAnEmptyKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ordered, free := w.item(delayq.Scheduled, key("k")), w.item(delayq.Scheduled, uuid.Nil)
	w.put(ordered, free)
	got := map[uuid.UUID]bool{}
	for range 2 { // the first poll moves one of them to its key
		for _, run := range w.lease() {
			for _, it := range run.Items {
				got[it.ID] = true
			}
			w.must(w.finish(run, done))
		}
		w.checkKeys()
	}
	if !got[ordered.ID] || !got[free.ID] {
		t.Fatalf("handed out: %v; want both", got)
	}
}
