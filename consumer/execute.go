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
	if !a.isolating {
		tasks := a.passOver(s.tasks)
		if len(tasks) == 0 {
			return nil
		}
		f := a.call(s.handler, tasks)
		if f == nil {
			succeed(tasks)
			return nil
		}
		return a.learn(f, tasks)
	}
	size := (len(s.tasks) + maxChunks - 1) / maxChunks
	if a.w.chunk > 0 {
		size = min(size, a.w.chunk)
	}
	for start := 0; start < len(s.tasks); start += size {
		if err := a.isolate(s.handler, s.tasks[start:min(start+size, len(s.tasks))]); err != nil {
			return err
		}
	}
	return nil
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

// passOver gives a fate to tasks that stand behind one which failed or was set aside
// in this attempt, and returns the others.
func (a *attempt) passOver(tasks []*task) []*task {
	if len(a.failedKeys)+len(a.asideKeys) == 0 {
		return tasks
	}
	left := tasks[:0:0]
	for _, t := range tasks {
		switch {
		case a.asideKeys.before(t):
			a.putAside(t)
		case a.failedKeys.before(t):
			a.block(t)
		default:
			left = append(left, t)
		}
	}
	return left
}

// holdBack splits tasks into those that can run now, and those which are known to
// fail with what stands behind them. held, when there is any, begins with one that
// fails.
func (a *attempt) holdBack(tasks []*task) (run, held []*task) {
	if len(a.fails) == 0 {
		return tasks, nil
	}
	behind := map[uuid.UUID]bool{}
	for _, t := range tasks {
		_, fails := a.fails[t]
		switch {
		case fails:
			behind[t.orderKey] = t.orderKey != uuid.Nil
			held = append(held, t)
		case behind[t.orderKey]:
			held = append(held, t)
		default:
			run = append(run, t)
		}
	}
	return run, held
}

// isolate runs tasks and finds out which of them fail. What is known to fail comes
// after what stands before it in its order key, and before what stands behind it:
// those may be blocked by it, or run after its death.
func (a *attempt) isolate(h *Handler, tasks []*task) error {
	run, held := a.holdBack(a.passOver(tasks))
	if err := a.try(h, run); err != nil {
		return err
	}
	held = a.passOver(held) // what has just failed may stand before it
	if len(held) == 0 {
		return nil
	}
	if err, fails := a.fails[held[0]]; fails {
		held[0].verdict.started = true
		a.fail(held[0], err)
		held = held[1:]
	}
	return a.isolate(h, held)
}

// try runs tasks under a savepoint and, when they fail, finds out whose fault it is:
// by name, else by halves.
func (a *attempt) try(h *Handler, tasks []*task) error {
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
	a.asideKeys.mark(t)
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
