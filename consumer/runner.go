package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/claimq/claimq/internal/sqlstate"
)

// errGivenUp says that the work's context ended before an attempt committed.
var errGivenUp = errors.New("given up")

// troubledFor is for how many clean batches after a failure batches are run in
// chunks at once, so that a stream with failures in it does not run each twice.
const troubledFor = 8

// perform makes attempts until one commits, and leaves each task with its verdict.
// An error means that the work was given up: its tasks are undecided, nothing is
// committed, or it will be found to be when they are read again.
func (c *Consumer) perform(w *work) error {
	w.fails = map[*task]error{}
	w.isolating = c.troubled.Load() > 0
	pause := newPause()
	for {
		w.tasks = w.live()
		if len(w.tasks) == 0 {
			return nil
		}
		if w.ctx.Err() != nil {
			c.undecide(w)
			return fmt.Errorf("%w: %w", errGivenUp, context.Cause(w.ctx))
		}
		a := &attempt{c: c, w: w, ctx: w.ctx}
		err := a.run()
		if err == nil {
			c.health.database(nil)
			c.noteTrouble(w)
			return nil
		}
		if c.afterFailure(w, err) {
			return nil
		}
		if wait := pause.after(err); wait > 0 {
			c.health.database(err)
			select {
			case <-time.After(wait):
			case <-w.ctx.Done():
			}
		}
	}
}

// afterFailure does what an attempt's error asks for. done: the work is finished.
func (c *Consumer) afterFailure(w *work, err error) (done bool) {
	var settled *settledError
	var deferred *deferredError
	switch {
	case errors.As(err, &settled):
		c.recovered(w, settled)
		return true
	case errors.Is(err, errRestart):
		c.metrics.halved(c.config.Queue)
	case errors.As(err, &deferred) && !w.deferred:
		c.metrics.halved(c.config.Queue)
		w.isolating, w.deferred = true, true
	case errors.Is(err, errMemory) && c.memoryHolds(w.ctx):
		c.forgetNewest()
	case errors.Is(err, errIncarnation), errors.Is(err, errMemory):
		c.forget(err)
	case sqlstate.Code(err) == sqlstate.Fenced:
		c.metrics.fenced(c.config.Queue)
		c.fenced(w, err)
	case sqlstate.Code(err) == sqlstate.PhaseChanged:
		c.refreshPhase(w.ctx)
	case sqlstate.Code(err) == sqlstate.LeaseLost:
		c.undecide(w)
		return true
	case w.ctx.Err() != nil:
	default:
		c.config.Logger.LogAttrs(w.ctx, slog.LevelWarn, "a batch is tried again",
			slog.String("queue", c.config.Queue), slog.Int("messages", len(w.tasks)),
			slog.Bool("unknown_commit", errors.Is(err, errUnknownCommit)), slog.Any("error", err))
		c.metrics.retried(c.config.Queue, retryReason(err))
	}
	return false
}

// refreshPhase learns which claim segments are in force. A failure is met again,
// with a pause, by the next attempt.
func (c *Consumer) refreshPhase(ctx context.Context) {
	if err := c.claims.Refresh(ctx, c.pool); err != nil && ctx.Err() == nil {
		c.config.Logger.WarnContext(ctx, "read the phase of the claim segments", slog.String("queue", c.config.Queue), slog.Any("error", err))
	}
}

func retryReason(err error) string {
	switch {
	case errors.Is(err, errUnknownCommit):
		return "unknown_commit"
	case sqlstate.Code(err) != "":
		return sqlstate.Code(err)
	default:
		return "connection"
	}
}

// undecide takes back verdicts that were never committed.
func (c *Consumer) undecide(w *work) {
	for _, t := range w.tasks {
		t.verdict = verdict{}
	}
}

// recovered gives the tasks the verdicts of an attempt that turned out to have
// committed.
func (c *Consumer) recovered(w *work, settled *settledError) {
	c.undecide(w)
	for i, t := range settled.as.tasks {
		t.verdict = settled.as.verdicts[i]
	}
	c.metrics.recovered(c.config.Queue)
	c.acknowledged(settled.as.id, settled.as.slot, settled.as.positions)
}

// noteTrouble remembers for some batches that failures are about.
func (c *Consumer) noteTrouble(w *work) {
	for _, t := range w.tasks {
		if t.verdict.fate == delayed || t.verdict.fate == dead && t.verdict.started {
			c.troubled.Store(troubledFor)
			return
		}
	}
	if n := c.troubled.Load(); n > 0 {
		c.troubled.CompareAndSwap(n, n-1)
	}
}

// A pauser spaces attempts that meet trouble which only time cures.
type pauser struct {
	backoff *backoff.ExponentialBackOff
	checked bool // a deferred constraint has failed before: looking closer did not help
}

func newPause() *pauser {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = 20*time.Millisecond, 2*time.Second, 2
	return &pauser{backoff: b}
}

// after returns how long to wait after err: not at all when the next attempt will
// do something else.
func (p *pauser) after(err error) time.Duration {
	switch {
	case errors.Is(err, errRestart), errors.Is(err, errIncarnation), errors.Is(err, errMemory),
		sqlstate.Code(err) == sqlstate.Fenced, sqlstate.Code(err) == sqlstate.PhaseChanged:
		return 0
	}
	var deferred *deferredError
	if errors.As(err, &deferred) && !p.checked {
		p.checked = true
		return 0
	}
	return p.backoff.NextBackOff()
}
