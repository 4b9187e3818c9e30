package consumer_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/position"
)

// takeOver takes a partition in Postgres, as a worker does that woke up from a long
// sleep in its assignment.
func (r *rig) takeOver(partition int32) {
	r.t.Helper()
	r.exec(fmt.Sprintf(`
select %[1]s.take_ownership(q.queue, 'zombie', $1, array[q.topic], array[$2::int]) from %[1]s.queue_topics q`, r.db.Schema), uuid.New(), partition)
}

func (r *rig) zombies() int {
	return r.count(`select count(*) from %s.owners where instance = 'zombie'`)
}

// A second owner in Postgres: the one that Kafka means takes the partition back.
func TestAFencedWorkerTakesItsPartitionBack(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"while it works", "in mid-batch", "while it is idle"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2)
			c := r.config()
			c.Concurrency = 2
			var gate atomic.Pointer[chan struct{}]
			c.Handler = r.gated(func(string) <-chan struct{} {
				if wait := gate.Load(); wait != nil {
					return *wait
				}
				return nil
			})
			r.produce(r.messages(0, 0, 50)...)
			r.produce(r.messages(1, 1000, 1050)...)
			q := r.start(c)
			r.outcomes(map[string]int{"processed": 100})
			switch when {
			case "while it works":
				r.takeOver(0)
				r.produce(r.messages(0, 50, 100)...)
			case "in mid-batch":
				wait := make(chan struct{})
				gate.Store(&wait)
				r.produce(r.messages(0, 50, 100)...)
				eventually(t, "a batch is open", func() bool { return r.atGate.Load() > 0 })
				r.takeOver(0)
				gate.Store(nil)
				close(wait)
			default:
				r.takeOver(0)
			}
			start := time.Now()
			eventually(t, "the zombie is not the owner", func() bool { return r.zombies() == 0 })
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
			if when == "while it is idle" {
				r.produce(r.messages(0, 50, 100)...)
			}
			r.produce(r.messages(1, 1050, 1100)...)
			eventually(t, "all is done", func() bool { return r.position(0) == 100 && r.position(1) == 100 })
			if all, distinct := r.count(`select count(*) from %s.effects`), r.count(`select count(distinct id) from %s.effects`); all != 200 || distinct != 200 {
				t.Errorf("%d effects of %d ids, want 200", all, distinct)
			}
			if r.metric("claimq_fenced_total", "", "") == 0 {
				t.Error("no fence was counted")
			}
			eventually(t, "it has nothing to complain of", func() bool { return q.Health().Ready })
			if n := r.metric("claimq_lost_history_messages_total", "", ""); n != 0 {
				t.Errorf("%d messages are told as lost history: somebody moved the position", n)
			}
		})
	}
}

// A worker that Kafka does not mean is refused by the coordinator: it writes nothing
// more, and does not take the partition back.
func TestAZombieDoesNotTakeThePartitionBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	r.produce(r.messages(0, 0, 10)...)
	q := r.start(c)
	eventually(t, "some are done", func() bool { return r.position(0) == 10 })
	seen := r.recordCommits()
	seen.mu.Lock()
	seen.fail = kerr.IllegalGeneration
	seen.mu.Unlock()
	r.takeOver(0)
	r.produce(r.messages(0, 10, 20)...)
	eventually(t, "it has asked several times", func() bool { return len(seen.of(0)) >= 3 })
	if r.zombies() != 1 {
		t.Error("it took the partition back without being told that it is its own")
	}
	if n := r.count(`select count(*) from %s.effects`); n != 10 {
		t.Errorf("%d effects, want 10: it is fenced", n)
	}
	eventually(t, "it says that it does not own the partition", func() bool { return !q.Health().Ready })
	seen.mu.Lock()
	seen.fail = nil
	seen.mu.Unlock()
	eventually(t, "it goes on when the coordinator says so", func() bool { return r.position(0) == 20 })
	if n := r.count(`select count(*) from %s.effects`); n != 20 {
		t.Errorf("%d effects, want 20", n)
	}
}

// `claimq position set` reaches a running worker, working, idle, or standing still.
func TestAPositionSetWhileRunningIsFollowed(t *testing.T) {
	t.Parallel()
	for _, halted := range []bool{false, true} {
		t.Run(fmt.Sprint("halted ", halted), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			r.produce(r.messages(0, 0, 20)...)
			q := r.startUntil(c, func() bool { return r.position(0) == 20 })
			to := int64(5)
			if halted {
				r.stop(q)
				r.produce(r.messages(0, 20, 40)...)
				if err := r.kafka.DeleteRecords(r.topic, 0, 30); err != nil {
					t.Fatal(err)
				}
				q = r.startUntil(c, func() bool { return r.metric("claimq_out_of_range_total", "", "") > 0 })
				to = 30
			}
			id := r.kafka.TopicInfo(r.topic).TopicID
			_, err := position.Set(t.Context(), r.db.Pool, pgschema.Schema(r.db.Schema), position.Order{
				Queue: int32(r.count(`select id from %s.queues`)), Who: "a test", Why: "to see",
				Moves: []position.Move{{TopicID: id, TopicName: r.topic, Partition: 0, Next: to, LeaderEpoch: -1}},
			})
			if err != nil {
				t.Fatal(err)
			}
			if halted {
				eventually(t, "it goes on from there", func() bool { return r.position(0) == 40 })
				r.outcomes(map[string]int{"processed": 30, "duplicate": 0})
			} else {
				r.outcomes(map[string]int{"processed": 20, "duplicate": 15})
			}
			eventually(t, "it has nothing to complain of", func() bool { return q.Health().Ready })
		})
	}
}

// C04: a slow handler, and another member that gets the partition meanwhile.
func TestASlowHandlerAndAnotherMember(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	c := r.config()
	c.RevokeBudget = 300 * time.Millisecond
	release := make(chan struct{})
	cancelled := make(chan string, 10)
	insert := `insert into ` + r.db.Schema + `.effects (id) values ($1)`
	handler := func(slow bool) consumer.Handler {
		return consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
			if slow && string(m.Record.Value) == "slow" {
				r.atGate.Add(1)
				defer r.atGate.Add(-1)
				select {
				case <-release:
				case <-ctx.Done():
					cancelled <- m.Identity.ID
					return ctx.Err()
				}
			}
			_, err := tx.Exec(ctx, insert, m.Identity.ID)
			return err
		})
	}
	c.Handler, c.Concurrency = handler(true), 6
	r.start(c)
	for partition := range int32(4) {
		r.produce(message(partition, fmt.Sprint("slow", partition), "s", "slow"))
	}
	eventually(t, "handlers are slow", func() bool { return r.atGate.Load() >= 1 })
	c.Handler = handler(false)
	joins := r.rebalances()
	r.start(c)
	// What the second member got is cancelled at the first, and done by the second.
	select {
	case <-cancelled:
	case <-time.After(patience):
		t.Fatal("no context was cancelled on revoke")
	}
	eventually(t, "the second has done its part", func() bool { return r.count(`select count(*) from %s.effects`) >= 1 })
	close(release)
	eventually(t, "all are done", func() bool {
		done := 0
		for partition := range int32(4) {
			done += r.position(partition)
		}
		return done == 4
	})
	if all, distinct := r.count(`select count(*) from %s.effects`), r.count(`select count(distinct id) from %s.effects`); all != 4 || distinct != 4 {
		t.Errorf("%d effects of %d ids, want 4", all, distinct)
	}
	if n := r.outcome("delayed") + r.outcome("dead"); n != 0 {
		t.Errorf("%d messages were blamed for the rebalance", n)
	}
	if n := joins.Load(); n > 8 {
		t.Errorf("%d joins for one member more: a storm", n)
	}
}

// rebalances counts requests to join the group.
func (r *rig) rebalances() *atomic.Int64 {
	var n atomic.Int64
	r.kafka.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.KeepControl()
		n.Add(1)
		return nil, nil, false
	})
	return &n
}

// Neither a handler nor a full buffer keeps other partitions from going on, and a
// worker that is kept busy stays in its group.
func TestOtherPartitionsGoOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	c := r.config()
	c.HandlerTimeout, c.RebalanceTimeout = patience, 2*patience
	release := make(chan struct{})
	c.Handler = r.gated(func(id string) <-chan struct{} {
		if id == "stuck" {
			return release
		}
		return nil
	})
	q := r.start(c)
	r.produce(message(0, "stuck", "s", ""))
	eventually(t, "a handler is stuck", func() bool { return r.atGate.Load() == 1 })
	for round := range 5 {
		r.produce(message(1, "a"+strconv.Itoa(round), "", ""), message(2, "b"+strconv.Itoa(round), "", ""))
		eventually(t, "other partitions go on", func() bool { return r.position(1) == round+1 && r.position(2) == round+1 })
	}
	if h := q.Health(); !h.Live {
		t.Error("it is not live")
	}
	close(release)
	eventually(t, "it goes on", func() bool { return r.position(0) == 1 })
}
