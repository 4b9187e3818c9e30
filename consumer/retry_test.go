package consumer_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/delayq"
)

// C16: m1(k) fails, m2(k) and m3(j) arrive.
func TestOrderAcrossAFailure(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		order   consumer.Order
		blocked int
		first   []string // before the failed message works
		effects []string
	}{
		{consumer.OrderKey, 2, []string{"m3"}, []string{"m3", "m1", "m2", "m4"}},
		{consumer.OrderPartition, 3, []string{}, []string{"m1", "m2", "m3", "m4"}},
		{consumer.OrderNone, 0, []string{"m2", "m3", "m4"}, []string{"m2", "m3", "m4", "m1"}},
	} {
		t.Run(test.order.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.Order, c.Retry = test.order, delayq.Policy{InitialDelay: 20 * time.Millisecond, Factor: 1, MaxAttempts: 1000}
			works := make(chan struct{})
			c.Handler = r.when(works)
			r.produce(message(0, "m1", "k", "fails"))
			r.start(c)
			eventually(t, "m1 has failed", func() bool { return r.outcome("delayed") >= 1 })
			// One after the other: in which order several run at once is not said.
			r.produce(message(0, "m2", "k", ""))
			eventually(t, "m2 is behind it or done", func() bool { return r.position(0) == 2 })
			r.produce(message(0, "m3", "j", ""))
			eventually(t, "m3 is done or behind it", func() bool { return r.position(0) == 3 })
			r.produce(message(0, "m4", "k", ""))
			eventually(t, "m4 is behind it or done", func() bool { return r.position(0) == 4 })
			r.outcomes(map[string]int{"blocked": test.blocked}) // counted after the COMMIT that shows the position
			if diff := cmp.Diff(test.first, r.ids()); diff != "" {
				t.Errorf("effects before (-want +got):\n%s", diff)
			}
			close(works)
			eventually(t, "the delay queue is empty", func() bool { return r.count(`select count(*) from %s.delayed`) == 0 })
			if diff := cmp.Diff(test.effects, r.ids()); diff != "" {
				t.Errorf("effects (-want +got):\n%s", diff)
			}
			// A key that is drained is back on the direct path.
			r.produce(message(0, "m5", "k", ""))
			eventually(t, "m5 is done", func() bool { return r.count(`select count(*) from %s.effects`) == 5 })
			if n := r.outcome("blocked"); n != test.blocked {
				t.Errorf("m5 was blocked behind nothing")
			}
		})
	}
}

func TestTwoFailuresOfOneKeyAreTwoItems(t *testing.T) {
	t.Parallel()
	for _, order := range []consumer.Order{consumer.OrderKey, consumer.OrderNone} {
		t.Run(order.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.Order, c.Retry, c.Handler = order, never, r.kinds()["one"]
			r.produce(message(0, "m1", "k", "fails"), message(0, "m2", "k", "fails"))
			r.start(c)
			eventually(t, "both are stored", func() bool { return r.position(0) == 2 })
			if n := r.count(`select count(distinct id) from %s.delayed`); n != 2 {
				t.Errorf("%d items, want 2", n)
			}
		})
	}
}

// With Continue a dead letter lets go of what is behind it, with Block it holds it.
func TestADeadLetterHoldsItsKeyOnlyWhenTold(t *testing.T) {
	t.Parallel()
	for _, onDead := range []consumer.OnDead{consumer.Continue, consumer.Block} {
		t.Run(onDead.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.OnDead, c.Retry, c.Handler = onDead, soon, r.kinds()["one"]
			r.produce(message(0, "m1", "k", "fails"), message(0, "m2", "k", "works"), message(0, "m3", "j", "works"))
			r.start(c)
			r.outcomes(map[string]int{"dead": 1})
			r.produce(message(0, "m4", "k", "works"), message(0, "m5", "j", "works"))
			if onDead == consumer.Continue {
				eventually(t, "all others are done", func() bool { return r.count(`select count(*) from %s.effects`) == 4 })
				return
			}
			eventually(t, "the other key goes on", func() bool { return r.position(0) == 5 && r.count(`select count(*) from %s.effects`) >= 2 })
			r.once("m3", "m5")
			if n := r.count(`select count(*) from %s.delayed`); n != 2 {
				t.Errorf("%d items wait behind the letter, want 2", n)
			}
		})
	}
}

// C17: attempts are counted across workers and restarts; what is interrupted is none.
func TestAttemptsAreCountedAcrossWorkers(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Retry = delayq.Policy{InitialDelay: 100 * time.Millisecond, NoJitter: true, Factor: 1, MaxAttempts: 3}
	started := make(chan int, 100)
	var mu sync.Mutex
	interrupt := false
	c.Handler = consumer.One(func(ctx context.Context, _ pgx.Tx, m *consumer.Message) error {
		started <- m.Attempt
		mu.Lock()
		wait := interrupt
		mu.Unlock()
		if wait {
			<-ctx.Done()
			return ctx.Err()
		}
		return errBoom
	})
	c.StopBudget = 50 * time.Millisecond
	r.produce(message(0, "a", "a", ""))
	attempt := func(want int, stopped bool) {
		t.Helper()
		mu.Lock()
		interrupt = stopped
		mu.Unlock()
		q := r.start(c)
		if got := <-started; got != want {
			t.Errorf("attempt %d, want %d", got, want)
		}
		if !stopped {
			eventually(t, "the attempt is counted", func() bool {
				return r.count(`select coalesce(max(attempts), 0) from (select attempts from %[1]s.delayed union all select attempts from %[1]s.dead_letters) a`) >= want
			})
		}
		r.stop(q)
	}
	attempt(1, true) // on the direct path
	attempt(1, false)
	attempt(2, true) // in the delay queue
	attempt(2, false)
	attempt(3, false)
	if n := r.count(`select count(*) from %s.dead_letters where attempts = 3 and reason = 'exhausted' and interrupted >= 1`); n != 1 {
		t.Errorf("letters: %v", r.strings(`select attempts || reason || starts || ' ' || interrupted from %s.dead_letters`))
	}
}

func TestSixPartitionsFailAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 6)
	c := r.config()
	c.Retry, c.Handler, c.DeadLetterTopic = soon, r.kinds()["one"], "dead"
	for partition := range int32(6) {
		r.produce(message(partition, "bad"+strconv.Itoa(int(partition)), "k"+strconv.Itoa(int(partition)), "fails"))
		r.produce(r.messages(partition, int(partition)*10, int(partition)*10+10)...)
	}
	r.start(c)
	r.outcomes(map[string]int{"dead": 6})
	eventually(t, "all others are done", func() bool { return r.count(`select count(*) from %s.effects`) == 60 })
	if n := r.count(`select count(*) from %s.dead_letters where attempts = 3`); n != 6 {
		t.Errorf("%d letters after 3 attempts, want 6", n)
	}
	if n := r.count(`select count(*) from %s.outbox where topic = 'dead'`); n != 6 {
		t.Errorf("%d letters for the topic, want 6", n)
	}
}

// awkward are bytes that a text column, or JSON, does not take.
var awkward = [][]byte{
	nil, {}, {0}, []byte(`{"a":"\u0000"}`), {0xC3, 0x28}, []byte(`"\ud800"`), []byte("\xff\xfe"), []byte(`'"\{}`), bytes.Repeat([]byte{0xff, 0}, 5000),
}

// digest is everything of a record that must survive, nil told from empty.
func digest(record *kgo.Record) string {
	h := sha256.New()
	part := func(b []byte) { fmt.Fprintf(h, "%t %d %x;", b == nil, len(b), b) }
	part(record.Key)
	part(record.Value)
	for _, header := range record.Headers {
		part([]byte(header.Key))
		part(header.Value)
	}
	fmt.Fprint(h, record.Topic, record.Partition, record.Offset, record.Timestamp.UnixMilli())
	return fmt.Sprintf("%x", h.Sum(nil))
}

// C15: bytes survive failing, waiting, succeeding and dying, as does the error.
func TestBytesSurviveFailures(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Retry, c.Order, c.DeadLetterTopic = soon, consumer.OrderNone, "dead"
	var mu sync.Mutex
	seen := map[string]map[string]bool{} // id → digests
	c.Handler = consumer.One(func(_ context.Context, _ pgx.Tx, m *consumer.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if seen[m.Identity.ID] == nil {
			seen[m.Identity.ID] = map[string]bool{}
		}
		seen[m.Identity.ID][digest(m.Record)] = true
		kind, _ := m.Header("kind")
		if m.Attempt < 3 || string(kind) == "dies" {
			return fmt.Errorf("%s: %w", m.Record.Value, errBoom)
		}
		return nil
	})
	n := 0
	for _, kind := range []string{"works", "dies"} {
		for _, value := range awkward {
			n++
			record := message(0, "m"+strconv.Itoa(n), "", "")
			record.Key, record.Value = value, value
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: "kind", Value: []byte(kind)},
				kgo.RecordHeader{Key: string(value), Value: value}, kgo.RecordHeader{Key: "", Value: nil}, kgo.RecordHeader{Key: "twice", Value: []byte{}}, kgo.RecordHeader{Key: "twice", Value: value})
			r.produce(record)
		}
	}
	r.start(c)
	r.outcomes(map[string]int{"processed": n / 2, "dead": n / 2})
	mu.Lock()
	defer mu.Unlock()
	for id, digests := range seen {
		if len(digests) != 1 {
			t.Errorf("%s was seen in %d versions", id, len(digests))
		}
	}
	if got := r.count(`select count(*) from %s.dead_letters where record_value is null`); got != 1 {
		t.Errorf("%d letters with null, want 1", got)
	}
	if got := r.count(`select count(*) from %s.dead_letters where record_value = ''`); got != 1 {
		t.Errorf("%d letters with an empty value, want 1", got)
	}
}

// C09: without an id, by policy.
func TestMissingIDs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		offset    bool
		processed int
		dead      int
	}{{true, 4, 0}, {false, 1, 3}} {
		t.Run(fmt.Sprint("by offset ", test.offset), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			if test.offset {
				c.Rules.OnMissing = 1
			}
			none, empty, other := message(0, "", "", "a"), message(0, "", "", "b"), message(0, "", "", "c")
			none.Headers = nil
			other.Headers = []kgo.RecordHeader{{Key: "ID", Value: []byte("x")}}
			r.produce(none, empty, other, message(0, " ", "", "d"))
			r.start(c)
			want := map[string]int{"processed": test.processed, "duplicate": 0}
			if test.dead > 0 {
				want["dead"] = test.dead
			}
			r.outcomes(want)
			if n := r.count(`select count(*) from %s.dead_letters where reason = 'missing_id'`); n != test.dead {
				t.Errorf("%d letters of reason missing_id, want %d", n, test.dead)
			}
		})
	}
}

// The identity that an offset makes is the same at every attempt: it is in effects' ids.
func TestAnOffsetIdentityIsKeptInTheDelayQueue(t *testing.T) {
	t.Parallel()
	for _, claims := range []consumer.Claims{consumer.ClaimIDs, consumer.ClaimNone} {
		t.Run(claims.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.Rules.ID, c.Rules.OnMissing, c.Retry, c.Claims = nil, 1, soon, claims
			if claims == consumer.ClaimIDs {
				c.Rules.ID = r.config().Rules.ID
			}
			var mu sync.Mutex
			seen := map[string]bool{}
			c.Handler = consumer.One(func(_ context.Context, _ pgx.Tx, m *consumer.Message) error {
				mu.Lock()
				defer mu.Unlock()
				seen[m.Claim().String()+" "+m.Identity.ID] = true
				if m.Attempt < 3 {
					return errBoom
				}
				return nil
			})
			record := message(0, "", "", "v")
			record.Headers = nil
			r.produce(record)
			r.start(c)
			r.outcomes(map[string]int{"processed": 1})
			mu.Lock()
			defer mu.Unlock()
			if len(seen) != 1 {
				t.Errorf("identities: %v", seen)
			}
		})
	}
}
