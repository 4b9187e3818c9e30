package consumer

import (
	"fmt"
	"maps"

	"github.com/google/uuid"
)

const (
	// maxChunks is into how many savepoints a batch is cut while failures are looked for.
	maxChunks = 32
	// maxSavepoints bounds the savepoints of one transaction. Past 64 that have written,
	// Postgres no longer keeps a session's subtransactions in shared memory, and every
	// other session's snapshots get slow.
	maxSavepoints = 60
)

// A span is consecutive work for one handler.
type span struct {
	handler *Handler
	tasks   []*task
}

// execute runs the handlers of everything that judge left undecided.
func (a *attempt) execute() error {
	a.isolating, a.deferred = a.w.isolating, a.w.deferred
	a.fails = maps.Clone(a.w.fails)
	for _, s := range a.spans() {
		if err := a.executeSpan(s); err != nil {
			return err
		}
	}
	a.settleCopies()
	a.stopRuns()
	return nil
}

// spans groups the runnable tasks by handler, for handlers that like many at once.
// Two tasks of one order key are never put into each other's order.
func (a *attempt) spans() []span {
	var spans []span
	latestOf := map[*Handler]int{}
	latestWith := map[any]int{} // the newest span that holds an order key, or partition
	for _, t := range a.w.tasks {
		if !a.runnable(t) {
			continue
		}
		at, ok := latestOf[t.handler]
		inOrder := a.inOrder(t)
		if inOrder != nil {
			if newest, held := latestWith[inOrder]; held && newest > at {
				ok = false
			}
		}
		if !ok {
			at = len(spans)
			spans = append(spans, span{handler: t.handler})
			latestOf[t.handler] = at
		}
		spans[at].tasks = append(spans[at].tasks, t)
		if inOrder != nil {
			latestWith[inOrder] = at
		}
	}
	return spans
}

// inOrder is what a task must be executed in order with: its order key; without
// claims its partition, because then the position alone tells what has been done,
// and what is set aside must lie behind all that is not; nil: nothing.
func (a *attempt) inOrder(t *task) any {
	switch {
	case a.flight == nil && t.strand != nil:
		return t.strand
	case t.orderKey != uuid.Nil:
		return t.orderKey
	default:
		return nil
	}
}

// runnable: no fate yet, and not a later copy of an id, which is judged by the
// first one's fate.
func (a *attempt) runnable(t *task) bool {
	return t.verdict.fate == undecided && (t.verdict.recorded == nil || t.verdict.claimed && !a.isLaterCopy(t))
}

func (a *attempt) executeSpan(s span) error {
	tasks := a.applyKnownFailures(s.tasks)
	if len(tasks) == 0 {
		return nil
	}
	if a.isolating {
		size := (len(tasks) + maxChunks - 1) / maxChunks
		if a.w.chunk > 0 {
			size = min(size, a.w.chunk)
		}
		for start := 0; start < len(tasks); start += size {
			if err := a.isolate(s.handler, tasks[start:min(start+size, len(tasks))]); err != nil {
				return err
			}
		}
		return nil
	}
	f := a.call(s.handler, tasks)
	if f == nil {
		succeed(tasks)
		return nil
	}
	return a.learn(f, tasks)
}

// learn turns a failure that has spoilt the transaction into what the next attempt
// knows: who failed, when somebody was named; else to look closer, in smaller
// chunks each time, until a chunk is one message.
func (a *attempt) learn(f *failure, tasks []*task) error {
	if f.infra {
		return f.err
	}
	switch {
	case f.at >= 0:
		a.w.fails[tasks[f.at]] = f.err
	case a.isolating:
		a.w.chunk = max(len(tasks)/2, 1)
	}
	a.w.isolating = true
	return errRestart
}

// applyKnownFailures gives the failures of an earlier attempt to their tasks and
// blocks what stands behind them; it returns the rest.
func (a *attempt) applyKnownFailures(tasks []*task) []*task {
	if len(a.fails)+len(a.failedKeys)+len(a.asideKeys) == 0 {
		return tasks
	}
	left := tasks[:0:0]
	for _, t := range tasks {
		switch err, failed := a.fails[t]; {
		case a.asideKeys[t.orderKey]:
			a.putAside(t)
		case a.isBlocked(t):
			a.block(t)
		case failed:
			t.verdict.started = true
			a.fail(t, err)
		default:
			left = append(left, t)
		}
	}
	return left
}

func (a *attempt) isBlocked(t *task) bool {
	return t.orderKey != uuid.Nil && a.failedKeys[t.orderKey]
}

// isolate runs tasks under a savepoint and, when they fail, finds out whose fault
// it is: by name, else by halves.
func (a *attempt) isolate(h *Handler, tasks []*task) error {
	tasks = a.applyKnownFailures(tasks)
	if len(tasks) == 0 {
		return nil
	}
	if a.savepoints >= maxSavepoints {
		a.setAside(tasks)
		return nil
	}
	a.savepoints++
	if _, err := a.tx.Exec(a.ctx, "savepoint claimq_chunk"); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	f := a.call(h, tasks)
	if f == nil && a.deferred {
		f = a.checkDeferred(tasks)
	}
	switch {
	case f == nil:
		succeed(tasks)
		if _, err := a.tx.Exec(a.ctx, "release savepoint claimq_chunk"); err != nil {
			return fmt.Errorf("release a savepoint: %w", err)
		}
		return nil
	case f.infra:
		return f.err
	case a.abandoned || a.broken:
		return a.learn(f, tasks)
	}
	// A savepoint that was rolled back no longer counts.
	a.savepoints--
	if _, err := a.tx.Exec(a.ctx, "rollback to savepoint claimq_chunk; release savepoint claimq_chunk"); err != nil {
		return fmt.Errorf("roll back to a savepoint: %w", err)
	}
	if f.at >= 0 {
		// Told to the next call, which goes through the tasks in order: what stands
		// before the failed one is not behind it.
		a.fails[tasks[f.at]] = f.err
		return a.isolate(h, tasks)
	}
	half := len(tasks) / 2
	if err := a.isolate(h, tasks[:half]); err != nil {
		return err
	}
	return a.isolate(h, tasks[half:])
}

// checkDeferred makes deferred constraints speak now, so that one which fails is
// isolated like any other failure. Rolling back to the inner savepoint puts the
// constraints' modes back.
func (a *attempt) checkDeferred(tasks []*task) *failure {
	_, err := a.tx.Exec(a.ctx, "savepoint claimq_check; set constraints all immediate; rollback to savepoint claimq_check; release savepoint claimq_check")
	if err == nil {
		return nil
	}
	return a.judgeCall(err, tasks)
}

func succeed(tasks []*task) {
	for _, t := range tasks {
		if t.verdict.fate == undecided {
			t.verdict.fate = succeeded
		}
	}
}

// setAside leaves tasks to a batch of their own, and what comes behind them in
// their order keys too.
func (a *attempt) setAside(tasks []*task) {
	for _, t := range tasks {
		a.putAside(t)
	}
}

func (a *attempt) putAside(t *task) {
	t.verdict.fate = setAside
	if t.orderKey != uuid.Nil {
		a.asideKeys[t.orderKey] = true
	}
	a.putCopiesAside(t)
}

// stopRuns leaves the items of a run of the delay queue that stand behind one which
// stays untouched, whatever was judged of them: they are judged again in their turn.
func (a *attempt) stopRuns() {
	stopped := map[uuid.UUID]bool{}
	for _, t := range a.w.tasks {
		if t.item == nil {
			continue
		}
		switch t.verdict.fate {
		case succeeded, skipped, duplicate, dead:
			if stopped[t.item.OrderKey] {
				t.verdict.fate, t.verdict.closes = setAside, nil
			}
		default:
			stopped[t.item.OrderKey] = true
		}
		if t.verdict.fate == dead && a.c.config.OnDead == Block {
			stopped[t.item.OrderKey] = true
		}
	}
}
