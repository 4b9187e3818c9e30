package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/kafkatest"
)

// The whole way under change: messages with repeats flow while three workers join,
// leave in order and are killed at random. In the end each id has one row, in order
// per key, and one effect on the topic.
func TestThePipelineWhileMembersComeAndGo(t *testing.T) {
	t.Parallel()
	r := random(t)
	s := newShop(t, 6)
	effects := kafkatest.Topic(t, 3)
	startRelayIn(t, s.db.Pool, s.brokers, s.db.Schema)

	const members, steps = 3, 12
	running := make([]*process, members)
	started := 0
	start := func(i int) {
		order := s.order(fmt.Sprintf("member-%d", started))
		started++
		order.Session, order.Slow, order.Effects = time.Second, time.Millisecond, effects
		running[i] = worker(t, order)
	}
	for i := range members {
		start(i)
	}
	for range steps {
		s.produceWithRepeats(r, 500+r.IntN(1000))
		from := r.IntN(800)
		eventually(t, "most of it is done", func() bool { return s.effects() >= s.made-from })
		switch i := r.IntN(members); {
		case running[i] == nil:
			start(i)
		case r.IntN(2) == 0:
			running[i].kill()
			running[i] = nil
		default:
			running[i].stop()
			running[i] = nil
		}
		if running[0] == nil && running[1] == nil && running[2] == nil {
			start(r.IntN(members))
		}
	}
	if running[0] == nil {
		start(0)
	}
	s.waitDone()
	s.waitPositions()
	s.check()
	eventually(t, "all effects are published", func() bool { return len(published(t, s.brokers, effects)) == s.made })
	for id, copies := range published(t, s.brokers, effects) {
		if len(copies) != 1 {
			t.Errorf("the effect of %s was published under %d ids", id, len(copies))
		}
	}
	for _, p := range running {
		if p != nil {
			p.stop()
		}
	}
}

// produceWithRepeats is produce with every fifth message followed by a repeat of it
// or of one before it.
func (s *shop) produceWithRepeats(r *rand.Rand, n int) {
	s.t.Helper()
	records := make([]*kgo.Record, 0, n+n/5+1)
	for i := s.made; i < s.made+n; i++ {
		records = append(records, message(s.topic, i))
		if i%5 == 0 {
			records = append(records, message(s.topic, max(i-r.IntN(300), 0)))
		}
	}
	if err := s.producer.ProduceSync(s.t.Context(), records...).FirstErr(); err != nil {
		s.t.Fatal(err)
	}
	s.made += n
}
