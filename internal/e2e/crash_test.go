package e2e

import (
	"fmt"
	"testing"
	"time"
)

// Ten times a worker is killed in the middle of a batch while messages flow.
func TestKilledTenTimesInMidBatchNothingIsLostOrDoubled(t *testing.T) {
	t.Parallel()
	for name, byPosition := range map[string]bool{"with claims": false, "by the position alone": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, 4)
			start := func(name string) *process {
				order := s.order(name)
				order.Session = time.Second
				order.Slow, order.ByPosition = 2*time.Millisecond, byPosition
				return worker(t, order)
			}
			const kills = 10
			name := func(i int) string { return fmt.Sprintf("w%d", i) }
			running := []*process{start(name(0)), start(name(1))}
			for i := range kills {
				s.produce(300)
				eventually(t, fmt.Sprintf("worker %d is in a batch, after some", i), func() bool {
					if s.made-s.effects() < 100 { // else all might be done when it comes to work
						s.produce(300)
					}
					return s.by(name(i)) > 0 && s.inBatch(name(i))
				})
				running[0].kill()
				running = append(running[1:], start(name(i+2)))
			}
			s.produce(300)
			s.waitDone()
			s.waitPositions()
			for _, p := range running {
				p.stop()
			}
			s.check()
		})
	}
}

// One lane is far ahead of another one of its partition when the process dies: the
// position must not have passed what the slow one had in hand, and what the quick
// one has done is not done again.
func TestLanesThatFinishOutOfOrderAcrossAKill(t *testing.T) {
	t.Parallel()
	s := newShop(t, 1)
	order := s.order("first")
	order.Concurrency, order.Stuck = 2, []string{"m0"}
	first := worker(t, order)
	eventually(t, "it owns the partition", func() bool { return s.owns(first) == 1 })
	s.produce(1) // alone in its batch
	eventually(t, "the first message is in hand", func() bool { return s.inBatch("first") })
	s.produce(199)
	eventually(t, "the other lane has done a key's messages", func() bool { return s.effects() >= 18 })
	if position := s.positions(); position != 0 {
		t.Errorf("the position is %d while offset 0 is in hand", position)
	}
	done := s.by("first")
	first.kill()
	second := worker(t, s.order("second"))
	s.waitDone()
	s.waitPositions()
	s.check()
	if n := s.by("first"); n < done {
		t.Errorf("the first worker had made %d effects, and now there are %d", done, n)
	}
	second.stop()
}
