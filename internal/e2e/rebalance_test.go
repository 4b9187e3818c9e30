package e2e

import (
	"testing"
	"time"
)

// A third worker joins and leaves while two work, with a handler that is slower
// than the time that a rebalance leaves.
func TestARebalanceInMidBatchLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	for name, byPosition := range map[string]bool{"with claims": false, "by the position alone": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, 6)
			start := func(name string) *process {
				order := s.order(name)
				order.Slow, order.ByPosition = 4*time.Millisecond, byPosition
				order.Revoke = 50 * time.Millisecond // most batches are rolled back
				return worker(t, order)
			}
			s.produce(3000)
			first, second := start("first"), start("second")
			eventually(t, "both work", func() bool { return s.by("first") > 100 && s.by("second") > 100 })
			third := start("third")
			// A quick machine is through with what is there before the third has joined.
			busy := func(holds func() bool) func() bool {
				return func() bool {
					if s.made-s.effects() < 1000 {
						s.produce(500)
					}
					return holds()
				}
			}
			eventually(t, "the third works too", busy(func() bool { return s.by("third") > 100 }))
			eventually(t, "the third is in a batch", busy(func() bool { return s.inBatch("third") }))
			third.stop()
			if left := s.made - s.effects(); left == 0 {
				t.Error("all was done before the third left: the rebalance was not in mid-work")
			}
			s.produce(200)
			s.waitDone()
			s.waitPositions()
			first.stop()
			second.stop()
			s.check()
		})
	}
}

// A member that is frozen past its session loses its partitions. When it wakes it
// is in the middle of a batch and believes that it owns them.
func TestAMemberFrozenPastItsSessionAndWokenDoublesNothing(t *testing.T) {
	t.Parallel()
	for name, byPosition := range map[string]bool{"with claims": false, "by the position alone": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, 4)
			start := func(name string) *process {
				order := s.order(name)
				order.Slow, order.ByPosition = 20*time.Millisecond, byPosition
				if !byPosition {
					order.Handler = 2 * time.Second // the frozen transaction's ids are free soon
				}
				return worker(t, order)
			}
			frozen, other := start("frozen"), start("other")
			eventually(t, "each owns two partitions", func() bool { return s.owns(frozen) == 2 && s.owns(other) == 2 })
			s.produce(300)
			eventually(t, "the one is in a batch", func() bool { return s.by("frozen") > 0 && s.inBatch("frozen") })
			frozen.freeze()
			eventually(t, "the other has taken over", func() bool { return s.owns(other) == 4 })
			s.waitDone()
			joins := other.joins()
			frozen.thaw()
			eventually(t, "the woken one has its share again", func() bool { return s.owns(frozen) == 2 && s.owns(other) == 2 })
			s.waitStable(2)
			s.produce(300)
			s.waitDone()
			s.waitPositions()
			s.check()
			if n := other.joins() - joins; n > 2 {
				t.Errorf("%d rebalances after the waking, want at most 2", n)
			}
			frozen.stop()
			other.stop()
		})
	}
}
