package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/claimq/claimq/internal/sqlstate"
	"github.com/claimq/claimq/outbox"
)

// abandonAfter is how long a handler may go on after its context has ended before
// it is left behind.
const abandonAfter = time.Second

// A failure is a handler's call that did not succeed.
type failure struct {
	at    int // the index of the message that is at fault; -1: nobody is named
	err   error
	infra bool // no message is at fault: the whole batch is tried again
}

// call runs a handler for tasks in the attempt's transaction.
func (a *attempt) call(h *Handler, tasks []*task) *failure {
	for _, t := range tasks {
		t.message.reset()
		t.verdict.started, t.verdict.fate, t.verdict.err = true, undecided, nil
	}
	for i, t := range tasks {
		if h.validate != nil {
			if err := h.validate(t.message); err != nil {
				return &failure{at: i, err: err}
			}
		}
	}
	started := time.Now()
	defer func() {
		took := time.Since(started)
		a.c.metrics.handled(a.c.config.Queue, took)
		a.c.stats.handledIn(len(tasks), took, time.Now())
	}()
	var f *failure
	switch h.kind {
	case kindOne:
		f = a.callOne(h, tasks)
	case kindPipelined:
		f = a.callPipelined(h, tasks)
	default:
		f = a.callBatch(h, tasks)
	}
	for i, t := range tasks {
		if f != nil {
			break
		}
		if err := a.checkEffects(t); err != nil {
			f = &failure{at: i, err: err}
		}
	}
	return f
}

func (a *attempt) callOne(h *Handler, tasks []*task) *failure {
	for i, t := range tasks {
		m := t.message // a handler that is left behind must not find the next attempt's
		err := a.guarded(outbox.WithCause(a.ctx, t.cause()), func(ctx context.Context) error {
			return a.wrapped(ctx, []*Message{m}, func(ctx context.Context) error {
				return h.one(ctx, a.handlerTx, m)
			})
		})
		if f := a.judgeCall(err, tasks[i:i+1]); f != nil {
			f.at = i
			return f
		}
		succeed(tasks[i : i+1])
	}
	return nil
}

func (a *attempt) callBatch(h *Handler, tasks []*task) *failure {
	messages := make([]*Message, len(tasks))
	for i, t := range tasks {
		messages[i] = t.message
	}
	ctx := a.ctx
	if len(tasks) == 1 {
		ctx = outbox.WithCause(ctx, tasks[0].cause())
	}
	err := a.guarded(ctx, func(ctx context.Context) error {
		return a.wrapped(ctx, messages, func(ctx context.Context) error {
			return h.batch(ctx, a.handlerTx, messages)
		})
	})
	return a.judgeCall(err, tasks)
}

// callPipelined collects the statements of all tasks and sends them in one flight;
// the statement that fails names its task.
func (a *attempt) callPipelined(h *Handler, tasks []*task) *failure {
	// The goroutine below can be left behind: it works on its own copies, and what it
	// found out is taken over only when it has returned.
	messages, causes, skips := make([]*Message, len(tasks)), make([]outbox.Cause, len(tasks)), make([]error, len(tasks))
	for i, t := range tasks {
		messages[i], causes[i] = t.message, t.cause()
	}
	var at progress
	err := a.guarded(a.ctx, func(ctx context.Context) error {
		return a.collect(ctx, h, messages, causes, skips, &at)
	})
	var late *TimeoutError
	if i, ok := at.hanging(a.c.config.HandlerTimeout / 2); ok && errors.As(err, &late) {
		err = FailedAt(i, err)
	}
	f := a.judgeCall(err, tasks)
	for i, t := range tasks {
		if f == nil && skips[i] != nil {
			t.verdict.fate, t.verdict.err = skipped, skips[i]
		}
	}
	return f
}

// collect calls a Pipelined handler for each message and sends the statements.
func (a *attempt) collect(ctx context.Context, h *Handler, messages []*Message, causes []outbox.Cause, skips []error, at *progress) error {
	batch := &pgx.Batch{}
	var owners []int
	for i, m := range messages {
		if err := ctx.Err(); err != nil {
			return err
		}
		at.begin(i)
		err := a.wrapped(outbox.WithCause(ctx, causes[i]), []*Message{m}, func(ctx context.Context) error {
			return h.pipelined(ctx, batch, m)
		})
		if _, ok := errors.AsType[*skipError](err); ok {
			skips[i] = err
		} else if err != nil {
			return FailedAt(i, err)
		}
		for len(owners) < batch.Len() {
			owners = append(owners, i)
		}
	}
	at.begin(-1)
	return a.sendOwned(ctx, batch, owners)
}

// progress tells which message of a call is being handled, and since when.
type progress struct {
	mu    sync.Mutex
	index int
	since time.Time
}

func (p *progress) begin(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.index, p.since = i, time.Now()
}

// hanging returns the message that is being handled when it alone has taken longer
// than limit: one that only was next when the others had used up the time is not
// at fault.
func (p *progress) hanging(limit time.Duration) (i int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.index, p.index >= 0 && !p.since.IsZero() && time.Since(p.since) >= limit
}

// sendOwned sends statements and names the owner of the one that fails.
func (a *attempt) sendOwned(ctx context.Context, batch *pgx.Batch, owners []int) error {
	if batch.Len() == 0 {
		return nil
	}
	queries := batch.QueuedQueries
	for i, q := range queries {
		if controlsTransaction(q.SQL) {
			return FailedAt(owners[i], ErrTransactionControl)
		}
	}
	results := a.handlerTx.SendBatch(ctx, batch)
	for i, q := range queries {
		var err error
		if q.Fn != nil {
			err = q.Fn(results)
		} else {
			_, err = results.Exec()
		}
		if err == nil {
			continue
		}
		// Whatever Close says now follows from err.
		_ = results.Close()
		if i == 0 && !namesStatement(err) {
			return err
		}
		return FailedAt(owners[i], err)
	}
	return results.Close()
}

// namesStatement reports whether an error at the first statement of a flight is
// surely that statement's. One that the client made, or that parsing met, can be of
// any statement of the flight: all are encoded and described before the first runs.
func namesStatement(err error) bool {
	code := sqlstate.Code(err)
	return code != "" && !strings.HasPrefix(code, "42")
}

// wrapped calls next inside the queue's middleware.
func (a *attempt) wrapped(ctx context.Context, messages []*Message, next func(context.Context) error) error {
	middleware := a.c.config.Middleware
	var enter func(ctx context.Context, i int) error
	enter = func(ctx context.Context, i int) error {
		if i == len(middleware) {
			return next(ctx)
		}
		return middleware[i](ctx, messages, func(ctx context.Context) error { return enter(ctx, i+1) })
	}
	return enter(ctx, 0)
}

// guarded runs f with the handler's timeout. A handler that does not return after
// its context has ended is left behind: its connection is closed under it, and it
// can do nothing to the database any more.
func (a *attempt) guarded(ctx context.Context, f func(ctx context.Context) error) error {
	limit := a.c.config.HandlerTimeout
	a.handlerTx.infra = nil // what an earlier call met and got over is not this one's
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := make(chan error, 1)
	go safely(ctx, f, done)
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		grace := time.NewTimer(abandonAfter)
		defer grace.Stop()
		select {
		case err = <-done:
		case <-grace.C:
			a.abandon()
			return &TimeoutError{After: limit, Abandoned: true}
		}
	}
	// The driver closes the connection under a statement whose context ends: then nil
	// does not mean success, whatever the handler thinks.
	if (err != nil || a.tx.Conn().IsClosed()) && errors.Is(ctx.Err(), context.DeadlineExceeded) && a.ctx.Err() == nil {
		return &TimeoutError{After: limit}
	}
	return err
}

// safely runs f and sends what came of it: its error, or the one that a panic or
// the goroutine's own end is turned into.
func safely(ctx context.Context, f func(ctx context.Context) error, done chan<- error) {
	err := errGoexit
	// Goexit runs what is deferred and nothing after it.
	defer func() {
		if value := recover(); value != nil {
			stack := debug.Stack()
			err = &PanicError{Value: value, Stack: string(stack[:min(len(stack), 8<<10)])}
		}
		done <- err
	}()
	err = f(ctx)
}

// errGoexit is a handler that ended its own goroutine.
var errGoexit = errors.New("the handler ended its goroutine with runtime.Goexit")

// judgeCall says what an error, or a transaction left in a state, means. tasks are
// those of the call.
func (a *attempt) judgeCall(err error, tasks []*task) *failure {
	if a.abandoned {
		return &failure{at: nameOf(err, tasks), err: err}
	}
	conn := a.tx.Conn()
	if conn.IsClosed() {
		a.broken = true
	} else if conn.PgConn().TxStatus() == 'I' {
		a.broken, a.ended = true, true
	}
	var late *TimeoutError
	var skip *skipError
	switch {
	case a.ctx.Err() != nil:
		return &failure{at: -1, err: context.Cause(a.ctx), infra: true}
	case errors.As(err, &late):
		return &failure{at: nameOf(err, tasks), err: err}
	case a.handlerTx.infra != nil && (err != nil || conn.PgConn().TxStatus() != 'T'):
		return &failure{at: -1, err: a.handlerTx.infra, infra: true}
	case sqlstate.Infrastructure(err):
		return &failure{at: -1, err: err, infra: true}
	case conn.IsClosed() && !ownDeadline(err):
		if err == nil {
			err = pgconn.ErrConnClosed
		}
		return &failure{at: -1, err: err, infra: true}
	case conn.PgConn().TxStatus() != 'T' && (err == nil || errors.As(err, &skip)):
		return &failure{at: onlyIndex(tasks), err: ErrTransactionTouched}
	case errors.As(err, &skip):
		if len(tasks) != 1 {
			return &failure{at: -1, err: fmt.Errorf("a Batch handler returned Skip for %d messages: return nil and do nothing for those that need nothing: %w", len(tasks), err)}
		}
		tasks[0].verdict.fate, tasks[0].verdict.err = skipped, err
		return nil
	case err != nil:
		return &failure{at: nameOf(err, tasks), err: err}
	}
	return nil
}

// ownDeadline reports whether a handler gave up a statement by a context of its own:
// the driver then closes the connection, and the message is what was too slow.
func ownDeadline(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

func onlyIndex(tasks []*task) int {
	if len(tasks) == 1 {
		return 0
	}
	return -1
}

// nameOf returns the index that FailedAt named, else that of the only task, or -1.
func nameOf(err error, tasks []*task) int {
	var named *failedAtError
	if errors.As(err, &named) && named.index >= 0 && named.index < len(tasks) {
		return named.index
	}
	return onlyIndex(tasks)
}
