package consumer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

func testTask(offset int64, key byte, size int) *task {
	t := &task{record: &kgo.Record{Offset: offset}, size: size}
	if key > 0 {
		t.orderKey = uuid.UUID{key}
	}
	return t
}

func (s *scheduler) addAll(p *partition, tasks ...*task) {
	s.add(p, tasks, 0, func(t *task) int { return strandOf(t, len(p.strands)) })
}

// hasWork reports whether take would return at once.
func (s *scheduler) hasWork() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.ready {
		if !st.partition.gone.Load() && !st.partition.revoking && len(st.waiting) > 0 {
			return true
		}
	}
	return false
}

// Whatever is added, taken, finished, put back, revoked and dropped: each task of an
// order key is handed out in order and by one batch at a time, none twice after it
// was finished, none is lost, and the sums of bytes are right.
func TestSchedulerKeepsOrderAndLosesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limits := BatchLimits{Messages: rapid.IntRange(1, 8).Draw(t, "messages"), Bytes: rapid.IntRange(50, 400).Draw(t, "bytes")}
		s := newScheduler(limits)
		var ps []*partition
		next := map[*partition]int64{}
		finished := map[*partition]map[int64]bool{}
		newest := map[*partition]map[uuid.UUID]int64{} // finished, by key
		fresh := func() *partition {
			p := newPartition(partitionKey{"t", int32(len(ps))}, 1, 0, rapid.IntRange(1, 3).Draw(t, "strands"))
			finished[p], newest[p] = map[int64]bool{}, map[uuid.UUID]int64{}
			ps = append(ps, p)
			return p
		}
		fresh()
		var running []*batch
		open := map[*partition]map[uuid.UUID]*batch{}
		t.Repeat(map[string]func(*rapid.T){
			"partition": func(t *rapid.T) {
				if len(ps) > 5 {
					t.Skip("enough")
				}
				fresh()
			},
			"add": func(t *rapid.T) {
				p := ps[rapid.IntRange(0, len(ps)-1).Draw(t, "partition")]
				var tasks []*task
				for range rapid.IntRange(1, 12).Draw(t, "n") {
					tasks = append(tasks, testTask(next[p], byte(rapid.IntRange(0, 5).Draw(t, "key")), rapid.IntRange(1, 120).Draw(t, "size")))
					next[p]++
				}
				s.addAll(p, tasks...)
			},
			"take": func(t *rapid.T) {
				if !s.hasWork() {
					t.Skip("nothing to take")
				}
				b := s.take(context.Background())
				size := 0
				for _, task := range b.tasks {
					p := task.strand.partition
					size += task.size
					if finished[p][task.record.Offset] {
						t.Errorf("offset %d is handed out after it was finished", task.record.Offset)
					}
					if task.orderKey == uuid.Nil {
						continue
					}
					if open[p] == nil {
						open[p] = map[uuid.UUID]*batch{}
					}
					if other := open[p][task.orderKey]; other != nil && other != b {
						t.Errorf("two batches hold order key %v", task.orderKey)
					}
					open[p][task.orderKey] = b
				}
				if len(b.tasks) > limits.Messages || size > limits.Bytes && len(b.tasks) > 1 {
					t.Errorf("a batch of %d messages and %d bytes is over its limits %+v", len(b.tasks), size, limits)
				}
				running = append(running, b)
			},
			"done": func(t *rapid.T) {
				if len(running) == 0 {
					t.Skip("nothing runs")
				}
				i := rapid.IntRange(0, len(running)-1).Draw(t, "which")
				b := running[i]
				running = append(running[:i], running[i+1:]...)
				aside := map[uuid.UUID]bool{}
				for _, task := range b.tasks {
					p := task.strand.partition
					delete(open[p], task.orderKey)
					if aside[task.orderKey] || rapid.IntRange(0, 3).Draw(t, "aside") == 0 {
						aside[task.orderKey] = task.orderKey != uuid.Nil
						task.verdict.fate = setAside
						continue
					}
					task.verdict.fate = succeeded
					if p.gone.Load() {
						continue
					}
					finished[p][task.record.Offset] = true
					if before, ok := newest[p][task.orderKey]; ok && task.orderKey != uuid.Nil && before > task.record.Offset {
						t.Errorf("order key %v: %d after %d", task.orderKey, task.record.Offset, before)
					}
					newest[p][task.orderKey] = task.record.Offset
				}
				s.done(b, rapid.Bool().Draw(t, "slow"))
				b.cancel(nil)
			},
			"drop": func(t *rapid.T) {
				p := ps[rapid.IntRange(0, len(ps)-1).Draw(t, "partition")]
				if rapid.IntRange(0, 9).Draw(t, "really") > 0 {
					t.Skip("not often")
				}
				s.drop(p)
			},
			"": func(t *rapid.T) {
				sum := 0
				for _, p := range ps {
					sum += p.buffered
					if p.buffered < 0 || p.running < 0 {
						t.Errorf("buffered %d, running %d", p.buffered, p.running)
					}
				}
				if s.buffered != sum {
					t.Errorf("buffered %d, and %d in the partitions", s.buffered, sum)
				}
			},
		})
		// Nothing is lost: it all comes out in the end.
		for len(running) > 0 || s.hasWork() {
			for _, b := range running {
				for _, task := range b.tasks {
					task.verdict.fate = succeeded
					finished[task.strand.partition][task.record.Offset] = true
				}
				s.done(b, false)
				b.cancel(nil)
			}
			running = nil
			if s.hasWork() {
				running = append(running, s.take(context.Background()))
			}
		}
		for _, p := range ps {
			if p.gone.Load() {
				continue
			}
			if int64(len(finished[p])) != next[p] || p.track.position != next[p] || p.buffered != 0 || p.running != 0 {
				t.Errorf("%d of %d finished, position %d, %d bytes, %d batches left", len(finished[p]), next[p], p.track.position, p.buffered, p.running)
			}
		}
	})
}

func TestSchedulerStopsARevokedPartitionOnly(t *testing.T) {
	t.Parallel()
	s := newScheduler(BatchLimits{Messages: 10, Bytes: 1000})
	a, b := newPartition(partitionKey{"t", 0}, 1, 0, 1), newPartition(partitionKey{"t", 1}, 1, 0, 1)
	s.addAll(a, testTask(0, 1, 1))
	running := s.take(t.Context())
	s.addAll(a, testTask(1, 1, 1))
	s.revoke([]*partition{a})
	s.addAll(b, testTask(0, 1, 1))
	if other := s.take(t.Context()); other.tasks[0].strand.partition != b || len(other.tasks) != 1 {
		t.Error("the batch holds something of the revoked partition")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if s.idle(ctx, []*partition{a}) {
		t.Error("it is idle while a batch runs")
	}
	s.interrupt([]*partition{a}, errRevoked)
	<-running.ctx.Done()
	if !errors.Is(context.Cause(running.ctx), errRevoked) {
		t.Errorf("cause %v", context.Cause(running.ctx))
	}
	s.done(running, false)
	if !s.idle(t.Context(), []*partition{a}) {
		t.Error("it is not idle")
	}
	if s.hasWork() {
		t.Error("a revoked partition is handed out")
	}
}

func TestSchedulerGivesAWaitingBatchTimeToGrow(t *testing.T) {
	t.Parallel()
	s := newScheduler(BatchLimits{Messages: 3, Bytes: 1000, Wait: time.Hour})
	p := newPartition(partitionKey{"t", 0}, 1, 0, 1)
	taken := make(chan *batch)
	go func() { taken <- s.take(t.Context()) }()
	for offset := range int64(3) {
		s.addAll(p, testTask(offset, 1, 1))
	}
	if b := <-taken; len(b.tasks) != 3 {
		t.Errorf("%d tasks, want 3", len(b.tasks))
	}
	// One that never ran goes back when its lane stops.
	ctx, cancel := context.WithCancel(t.Context())
	other := newPartition(partitionKey{"t", 1}, 1, 0, 1)
	s.addAll(other, testTask(0, 1, 1))
	go func() { taken <- s.take(ctx) }()
	waitUntil(t, func() bool { return !s.hasWork() })
	cancel()
	if b := <-taken; b != nil {
		t.Error("a cancelled take returns a batch")
	}
	if !s.hasWork() {
		t.Error("what was taken and never ran is lost")
	}
	s.stop()
	if b := s.take(t.Context()); b != nil {
		t.Error("a stopped scheduler hands out work")
	}
}

func TestSlowPartitionsGetBatchesOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := newScheduler(BatchLimits{Messages: 10, Bytes: 1000})
	slow, quick := newPartition(partitionKey{"t", 0}, 1, 0, 1), newPartition(partitionKey{"t", 1}, 1, 0, 1)
	s.addAll(slow, testTask(0, 1, 1))
	b := s.take(t.Context())
	b.tasks[0].verdict.fate = succeeded
	s.done(b, true)
	s.addAll(quick, testTask(0, 1, 1))
	s.addAll(slow, testTask(1, 1, 1))
	s.addAll(quick, testTask(1, 1, 1))
	if b := s.take(t.Context()); len(b.strands) != 1 || b.strands[0].partition != quick {
		t.Error("the quick one waits for the slow one")
	}
	if b := s.take(t.Context()); len(b.strands) != 1 || b.strands[0].partition != slow || !b.alone {
		t.Error("the slow one is not alone")
	}
}

func waitUntil(t *testing.T, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen")
		}
		<-tick.C
	}
}
