package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/claimq/claimq/consumer"
)

// commits records every offset that is committed to Kafka, as the broker sees it.
type commits struct {
	mu   sync.Mutex
	seen []committed
	fail error // refuses what is committed
}

type committed struct {
	member    string
	partition int32
	offset    int64
}

func (r *rig) recordCommits() *commits {
	c := &commits{}
	r.kafka.ControlKey(int16(kmsg.OffsetCommit), func(request kmsg.Request) (kmsg.Response, error, bool) {
		r.kafka.KeepControl()
		commit := request.(*kmsg.OffsetCommitRequest)
		c.mu.Lock()
		defer c.mu.Unlock()
		response := commit.ResponseKind().(*kmsg.OffsetCommitResponse)
		for _, topic := range commit.Topics {
			answer := kmsg.NewOffsetCommitResponseTopic()
			answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				c.seen = append(c.seen, committed{commit.MemberID, p.Partition, p.Offset})
				partition := kmsg.NewOffsetCommitResponseTopicPartition()
				partition.Partition = p.Partition
				refused := &kerr.Error{}
				if errors.As(c.fail, &refused) {
					partition.ErrorCode = refused.Code
				}
				answer.Partitions = append(answer.Partitions, partition)
			}
			response.Topics = append(response.Topics, answer)
		}
		return response, nil, c.fail != nil
	})
	return c
}

func (c *commits) of(partition int32) (offsets []int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.seen {
		if one.partition == partition {
			offsets = append(offsets, one.offset)
		}
	}
	return offsets
}

func (c *commits) newest(partition int32) int64 {
	offsets := c.of(partition)
	if len(offsets) == 0 {
		return -1
	}
	return offsets[len(offsets)-1]
}

// gated waits, for some ids, until a channel is closed.
func (r *rig) gated(gate func(id string) <-chan struct{}) consumer.Handler {
	insert := `insert into ` + r.db.Schema + `.effects (id, value) values ($1, $2)`
	return consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
		if wait := gate(m.Identity.ID); wait != nil {
			r.atGate.Add(1)
			defer r.atGate.Add(-1)
			select {
			case <-wait:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		_, err := tx.Exec(ctx, insert, m.Identity.ID, m.Record.Value)
		return err
	})
}

// C01: lanes finish out of order; neither the position nor Kafka's offset passes
// what is not done, and a worker that comes after a crash loses nothing.
func TestPositionsNeverPassUnfinishedWork(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	seen := r.recordCommits()
	c := r.config()
	c.Concurrency, c.StopBudget, c.HandlerTimeout, c.RebalanceTimeout = 4, 100*time.Millisecond, patience, 2*patience
	release := make(chan struct{})
	var slow sync.Map
	c.Handler = r.gated(func(id string) <-chan struct{} {
		if _, is := slow.Load(id); is {
			return release
		}
		return nil
	})
	slow.Store("m0", true)
	q := r.start(c)
	r.produce(message(0, "m0", "slow", ""))
	eventually(t, "the first is being handled", func() bool { return r.atGate.Load() == 1 })
	var others []*kgo.Record
	for i := 1; i < 40; i++ {
		others = append(others, message(0, "m"+strconv.Itoa(i), "k"+strconv.Itoa(i), ""))
	}
	r.produce(others...)
	eventually(t, "other lanes have worked", func() bool { return r.outcome("processed") >= 20 })
	if got := r.position(0); got > 0 {
		t.Errorf("position %d passes offset 0, which is not done", got)
	}
	done := r.count(`select count(*) from %s.effects`)
	// The worker is lost: its batch with offset 0 is rolled back.
	r.stop(q)
	if got := r.position(0); got > 0 {
		t.Errorf("position %d passes offset 0, which is not done", got)
	}
	if got := seen.newest(0); got > 0 {
		t.Errorf("Kafka was told %d", got)
	}
	slow.Delete("m0")
	close(release)
	r.start(c)
	eventually(t, "all are done", func() bool { return r.position(0) == 40 })
	eventually(t, "what was done before is counted as duplicate", func() bool { return r.outcome("duplicate") == done })
	if n := r.count(`select count(distinct id) from %s.effects`); n != 40 || r.count(`select count(*) from %s.effects`) != 40 {
		t.Errorf("%d distinct effects, want 40 once each", n)
	}
	eventually(t, "Kafka is told", func() bool { return seen.newest(0) == 40 })
}

// What lanes left unwritten because they finished in the wrong order is written when
// the last hole closes or the queue is idle: nothing is read again.
func TestHolesAreFlushed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	seen := r.recordCommits()
	c := r.config()
	c.Concurrency, c.Batch.Messages = 4, 1
	gates := map[string]chan struct{}{}
	for i := range 4 {
		gates["m"+strconv.Itoa(i)] = make(chan struct{})
	}
	c.Handler = r.gated(func(id string) <-chan struct{} { return gates[id] })
	q := r.start(c)
	// Keys of which at least two are in different lanes.
	for i := range 4 {
		r.produce(message(0, "m"+strconv.Itoa(i), "key"+strconv.Itoa(i), ""))
	}
	eventually(t, "at least two are being handled", func() bool { return r.atGate.Load() >= 2 })
	for i := 3; i >= 0; i-- {
		close(gates["m"+strconv.Itoa(i)])
	}
	r.outcomes(map[string]int{"processed": 4})
	eventually(t, "the position is at the end", func() bool { return r.position(0) == 4 })
	eventually(t, "Kafka is told", func() bool { return seen.newest(0) == 4 })
	r.stop(q)
	r.start(c)
	r.produce(message(0, "last", "", ""))
	r.outcomes(map[string]int{"processed": 5, "duplicate": 0})
}

// C02: what Kafka is told never goes back within an ownership, and nobody tells it
// anything about a partition that was taken away.
func TestCommittedOffsetsNeverGoBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	seen := r.recordCommits()
	c := r.config()
	c.CommitInterval = 100 * time.Millisecond
	first := r.start(c)
	for round := range 30 {
		for partition := range int32(4) {
			r.produce(message(partition, fmt.Sprint("a", partition, " ", round), "", ""))
		}
	}
	second := r.start(c)
	for round := range 30 {
		for partition := range int32(4) {
			r.produce(message(partition, fmt.Sprint("b", partition, " ", round), "", ""))
		}
	}
	eventually(t, "half are done", func() bool { return r.outcome("processed") >= 120 })
	r.stop(first)
	for round := range 30 {
		for partition := range int32(4) {
			r.produce(message(partition, fmt.Sprint("c", partition, " ", round), "", ""))
		}
	}
	eventually(t, "all are done", func() bool { return r.outcome("processed") == 360 })
	r.stop(second)
	seen.mu.Lock()
	defer seen.mu.Unlock()
	newest, owner, gone := map[int32]int64{}, map[int32]string{}, map[string]bool{}
	for _, one := range seen.seen {
		if one.offset < newest[one.partition] {
			t.Errorf("partition %d: %d was committed after %d", one.partition, one.offset, newest[one.partition])
		}
		newest[one.partition] = one.offset
		ownership := fmt.Sprint(one.member, one.partition)
		if gone[ownership] {
			t.Errorf("%s commits partition %d again after another member did", one.member, one.partition)
		}
		if before := owner[one.partition]; before != one.member {
			gone[fmt.Sprint(before, one.partition)] = true
			owner[one.partition] = one.member
		}
	}
	for partition := range int32(4) {
		if newest[partition] != 90 {
			t.Errorf("partition %d: Kafka was told %d in the end, want 90", partition, newest[partition])
		}
	}
}

func TestRefusedCommitsStopNothing(t *testing.T) {
	t.Parallel()
	for _, refused := range []error{kerr.RebalanceInProgress, kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.InvalidCommitOffsetSize} {
		t.Run(func() *kerr.Error {
			target := &kerr.Error{}
			_ = errors.As(refused, &target)
			return target
		}().Message, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			seen := r.recordCommits()
			seen.fail = refused
			c := r.config()
			c.CommitInterval = 100 * time.Millisecond
			q := r.start(c)
			for i := range 5 {
				r.produce(message(0, "m"+strconv.Itoa(i), "", ""))
				r.outcomes(map[string]int{"processed": i + 1})
			}
			eventually(t, "the refusal is counted", func() bool { return r.metric("claimq_kafka_commit_errors_total", "", "") > 0 })
			r.stop(q)
			if err := q.Err(); err != nil {
				t.Errorf("it ended with %v", err)
			}
			if got := r.position(0); got != 5 {
				t.Errorf("position %d, want 5", got)
			}
		})
	}
}

// C03: the records at the position were deleted, or the topic lost its end.
func TestAPositionThatKafkaDoesNotHave(t *testing.T) {
	t.Parallel()
	for _, policy := range []consumer.OutOfRange{consumer.Halt, consumer.Earliest} {
		t.Run("before the first record, "+policy.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2)
			c := r.config()
			c.OutOfRange = policy
			r.produce(r.messages(0, 0, 5)...)
			r.stop(r.startUntil(c, func() bool { return r.position(0) == 5 }))
			r.produce(r.messages(0, 5, 20)...)
			if err := r.kafka.DeleteRecords(r.topic, 0, 10); err != nil {
				t.Fatal(err)
			}
			q := r.start(c)
			if policy == consumer.Earliest {
				eventually(t, "it goes on behind the hole", func() bool { return r.position(0) == 20 })
				if n := r.count(`select count(*) from %s.effects`); n != 15 {
					t.Errorf("%d effects, want 15", n)
				}
				eventually(t, "it has nothing to complain of", func() bool { return q.Health().Ready })
				return
			}
			eventually(t, "the partition stops and says so", func() bool {
				h := q.Health()
				return h.Live && !h.Ready && strings.Contains(strings.Join(h.Problems, ""), "5 records before offset 10")
			})
			if n := r.metric("claimq_out_of_range_total", "", ""); n == 0 {
				t.Error("it is not counted")
			}
			r.produce(message(1, "other", "", ""))
			eventually(t, "the other partition goes on", func() bool { return r.position(1) == 1 })
			if got := r.position(0); got != 5 {
				t.Errorf("position %d, want 5", got)
			}
		})
		t.Run("past the end, "+policy.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.OutOfRange = policy
			r.produce(r.messages(0, 0, 5)...)
			r.stop(r.startUntil(c, func() bool { return r.position(0) == 5 }))
			r.exec(`update ` + r.db.Schema + `.positions set offsets = '{100}' where cardinality(offsets) = 1`)
			q := r.start(c)
			eventually(t, "the partition stops and says so", func() bool {
				h := q.Health()
				return !h.Ready && strings.Contains(strings.Join(h.Problems, ""), "past the end")
			})
			r.produce(r.messages(0, 5, 10)...)
			if got := r.position(0); got != 100 {
				t.Errorf("position %d, want 100: nothing goes anywhere by itself", got)
			}
		})
	}
}
