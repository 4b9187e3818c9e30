package consumer

import (
	"context"
	"sync"
	"time"
)

// A scheduler holds what was read and not yet handled, and makes batches of it.
//
// Lock order: the scheduler's mutex is the only one here and is never held while
// calling Kafka, Postgres or a handler.
type scheduler struct {
	limits  BatchLimits
	changed chan struct{} // closed and replaced whenever a waiting lane may have work

	mu       sync.Mutex
	ready    []*strand // strands with waiting tasks that are in no batch, oldest first
	buffered int       // bytes, over all partitions
	running  map[*batch]struct{}
	stopped  bool
}

func newScheduler(limits BatchLimits) *scheduler {
	return &scheduler{limits: limits, changed: make(chan struct{}), running: make(map[*batch]struct{})}
}

// A batch is what one transaction is made for.
type batch struct {
	tasks   []*task
	strands []*strand
	bytes   int
	alone   bool

	ctx    context.Context //nolint:containedctx // cancelled from outside, by whoever takes a partition away
	cancel context.CancelCauseFunc
	taken  time.Time
}

// add hands tasks of one partition over, in order of offset, with Kafka's high
// watermark.
func (s *scheduler) add(p *partition, tasks []*task, highWater int64, strandOf func(*task) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.gone.Load() {
		return
	}
	p.highWater = highWater
	for _, t := range tasks {
		p.track.add(t.record.Offset, t.record.Timestamp)
		st := p.strands[strandOf(t)]
		t.strand = st
		if p.stillSince.IsZero() {
			p.stillSince = time.Now()
		}
		st.waiting = append(st.waiting, t)
		p.buffered += t.size
		s.buffered += t.size
		s.offer(st)
	}
	s.wake()
}

// offer puts a strand on the ready list when it can be taken.
func (s *scheduler) offer(st *strand) {
	if st.queued || st.busy || len(st.waiting) == 0 || st.partition.revoking || st.partition.gone.Load() {
		return
	}
	st.queued = true
	s.ready = append(s.ready, st)
}

func (s *scheduler) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// take waits for work and returns a batch, or nil when ctx ends or the scheduler
// is stopped. It takes what is waiting across partitions, oldest strand first, up
// to the limits; with limits.Wait it gives a batch that is not full that long to
// grow.
func (s *scheduler) take(ctx context.Context) *batch {
	b := &batch{}
	var deadline <-chan time.Time
	for {
		s.mu.Lock()
		if s.stopped && len(b.tasks) == 0 {
			s.mu.Unlock()
			return nil
		}
		full := s.fill(b)
		changed := s.changed
		if len(b.tasks) > 0 && (full || s.limits.Wait == 0 || s.stopped) {
			s.start(ctx, b)
			s.mu.Unlock()
			return b
		}
		s.mu.Unlock()
		if len(b.tasks) > 0 && deadline == nil {
			timer := time.NewTimer(s.limits.Wait)
			defer timer.Stop()
			deadline = timer.C
		}
		select {
		case <-changed:
		case <-deadline:
			s.mu.Lock()
			s.start(ctx, b)
			s.mu.Unlock()
			return b
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			s.giveBack(b)
			return nil
		}
	}
}

// start makes a filled batch cancellable and known. What is gone meanwhile stays
// in it and is dropped when it runs.
func (s *scheduler) start(ctx context.Context, b *batch) {
	b.ctx, b.cancel = context.WithCancelCause(ctx)
	b.taken = time.Now()
	s.running[b] = struct{}{}
}

// fill moves waiting tasks into b and reports whether b is full: first more of the
// strands that b holds already, then other ready ones.
func (s *scheduler) fill(b *batch) (full bool) {
	for _, st := range b.strands {
		if _, full = s.move(b, st); full {
			return true
		}
	}
	for i, st := range s.ready {
		if st.alone && len(b.tasks) > 0 {
			s.ready = s.ready[i:]
			return true
		}
		if st.partition.gone.Load() || st.partition.revoking || len(st.waiting) == 0 {
			st.queued = false
			continue
		}
		moved, full := s.move(b, st)
		if moved == 0 { // it did not fit: first in line for the next batch
			s.ready = s.ready[i:]
			return true
		}
		st.queued, st.busy = false, true
		st.partition.running++
		b.strands = append(b.strands, st)
		if full || st.alone {
			b.alone = st.alone
			s.ready = s.ready[i+1:]
			return true
		}
	}
	s.ready = nil
	return false
}

// move takes what fits of one strand and reports whether b is full.
func (s *scheduler) move(b *batch, st *strand) (moved int, full bool) {
	for _, t := range st.waiting {
		if len(b.tasks) >= s.limits.Messages || (len(b.tasks) > 0 && b.bytes+t.size > s.limits.Bytes) {
			full = true
			break
		}
		b.tasks = append(b.tasks, t)
		b.bytes += t.size
		st.partition.track.hold(t.record.Offset, b)
		moved++
	}
	clear(st.waiting[:moved]) // the records must not live on in the backing array
	st.waiting = st.waiting[moved:]
	if len(st.waiting) == 0 {
		st.waiting = nil
	}
	return moved, full || len(b.tasks) >= s.limits.Messages || b.bytes >= s.limits.Bytes
}

// giveBack returns a batch that never ran.
func (s *scheduler) giveBack(b *batch) {
	for _, t := range b.tasks {
		t.verdict = verdict{fate: setAside}
	}
	s.release(b, false)
}

// done ends a batch: tasks with a verdict are finished, those set aside or never
// decided go back to the head of their strands, in their order. slow strands get
// batches of their own. It returns what the lanes freed.
func (s *scheduler) done(b *batch, slow bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, b)
	s.release(b, slow)
	s.wake()
}

func (s *scheduler) release(b *batch, slow bool) {
	back := make(map[*strand][]*task)
	now := time.Now()
	for _, t := range b.tasks {
		p := t.strand.partition
		if p.gone.Load() {
			continue // drop has taken its bytes off already
		}
		switch t.verdict.fate {
		case undecided, setAside:
			t.verdict = verdict{}
			p.track.hold(t.record.Offset, nil)
			back[t.strand] = append(back[t.strand], t)
		default:
			if p.track.finish(t.record.Offset) {
				p.stillSince = now
			}
			p.buffered -= t.size
			s.buffered -= t.size
			if len(p.track.entries) == 0 {
				p.stillSince = time.Time{}
			}
		}
	}
	for _, st := range b.strands {
		st.busy = false
		st.alone = slow
		st.partition.running--
		if tasks := back[st]; len(tasks) > 0 {
			st.waiting = append(tasks, st.waiting...)
		}
		s.offer(st)
	}
}

// drop makes a partition void: nothing of it is handed out any more and nothing
// that is still running for it counts.
func (s *scheduler) drop(p *partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.gone.Swap(true) {
		return
	}
	s.buffered -= p.buffered
	p.buffered = 0
	for _, st := range p.strands {
		st.waiting = nil
	}
	p.track.entries = nil
	s.wake()
}

// stop makes take return nil once nothing is left in hand.
func (s *scheduler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.wake()
}

// revoke stops new batches of the partitions and returns a function that tells
// whether none of them is in a running batch.
func (s *scheduler) revoke(ps []*partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range ps {
		p.revoking = true
	}
}

// idle waits until no batch holds anything of the partitions, or ctx ends.
func (s *scheduler) idle(ctx context.Context, ps []*partition) bool {
	for {
		s.mu.Lock()
		running := 0
		for _, p := range ps {
			running += p.running
		}
		changed := s.changed
		s.mu.Unlock()
		if running == 0 {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// interrupt cancels the batches that hold something of the partitions.
func (s *scheduler) interrupt(ps []*partition, cause error) {
	wanted := make(map[*partition]bool, len(ps))
	for _, p := range ps {
		wanted[p] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for b := range s.running {
		for _, st := range b.strands {
			if wanted[st.partition] {
				b.cancel(cause)
				break
			}
		}
	}
}

// nextOf returns the offset behind all that was handed over of a partition.
func (s *scheduler) nextOf(p *partition) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(p.track.entries); n > 0 {
		return p.track.entries[n-1].offset + 1
	}
	return p.track.position
}

// drained waits until all that was handed over of a partition is finished, and
// reports false when ctx ends or the partition goes.
func (s *scheduler) drained(ctx context.Context, p *partition) bool {
	for {
		s.mu.Lock()
		left := len(p.track.entries)
		changed := s.changed
		s.mu.Unlock()
		if p.gone.Load() {
			return false
		}
		if left == 0 {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// pausable marks the partitions that have more buffered than their share as paused
// and returns them.
func (s *scheduler) pausable(share int, ps []*partition) map[string][]int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := map[string][]int32{}
	for _, p := range ps {
		if !p.paused && p.buffered > share {
			p.paused = true
			full[p.topic] = append(full[p.topic], p.partition)
		}
	}
	return full
}

// resumable marks the paused partitions that are below the bound as not paused and
// returns them.
func (s *scheduler) resumable(below int, ps []*partition) map[string][]int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	room := map[string][]int32{}
	for _, p := range ps {
		if p.paused && p.buffered <= below {
			p.paused = false
			room[p.topic] = append(room[p.topic], p.partition)
		}
	}
	return room
}

// writtenOf returns the newest position of a partition that Postgres acknowledged.
func (s *scheduler) writtenOf(p *partition) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.written
}
