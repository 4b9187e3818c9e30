package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/internal/sqlstate"
)

// rollbackBudget is how long a rollback may take. It runs detached from the context
// whose end is often its reason (CASES C12).
const rollbackBudget = 5 * time.Second

// commitBudget is how long the last flight may take besides its waits for locks.
const commitBudget = 10 * time.Second

// An attempt is one transaction for a piece of work: a batch of records, or runs of
// the delay queue. Its life:
//
//	begin     settings, incarnation, unsettled commits, claims, what is known
//	judge     duplicates, conflicts, known, blocked: what the handlers do not see
//	execute   handlers, with failures isolated
//	seal      effects, failures, position, fence, COMMIT
//
// It is used by one goroutine.
type attempt struct {
	c    *Consumer
	w    *work
	ctx  context.Context //nolint:containedctx // the work's, for the handlers
	conn *pgxpool.Conn
	tx   pgx.Tx

	id   uuid.UUID
	slot int16

	handlerTx *handlerTx
	flight    *dedup.Flight
	asked     []*task // the tasks whose ids are claimed, in the flight's order
	known     knownThings

	isolating  bool // run handlers in chunks under savepoints
	deferred   bool // a deferred constraint failed: check them after each chunk
	savepoints int
	fails      map[*task]error // of the work, and found by this attempt
	failedKeys keyMarks        // order keys behind whose failed message others must wait
	asideKeys  keyMarks        // order keys of which something was set aside

	abandoned bool // a handler was left behind with the connection
	broken    bool // the connection must not be used again
	ended     bool // a handler ended the transaction through its Conn
}

// work is what attempts are made for until one succeeds.
type work struct {
	ctx   context.Context //nolint:containedctx // ends when the work must be given up
	tasks []*task
	batch *batch          // the records' batch; nil for runs of the delay queue
	runs  []*delayq.Run   // the delay queue's runs; nil for records
	fails map[*task]error // failures known from an attempt that was rolled back

	isolating bool
	deferred  bool
	chunk     int // the most tasks that are run under one savepoint; 0: no bound
	unsettled []unsettled
}

// unsettled is an attempt whose COMMIT was sent and not answered, with what it
// would have made of the tasks.
type unsettled struct {
	id        uuid.UUID
	slot      int16
	tasks     []*task
	verdicts  []verdict
	positions []partitionPosition
}

// settledError says that an earlier attempt has committed after all.
type settledError struct{ as unsettled }

func (e *settledError) Error() string { return "an earlier attempt had committed" }

// errIncarnation says that the server is not the one that memory is of.
var errIncarnation = errors.New("the database server has been replaced: a failover or a restore")

// errMemory says that the newest acknowledged position is not in the database.
var errMemory = errors.New("the newest acknowledged position is not in the database: it has lost its newest transactions")

// errRestart says that the work must be tried again at once, with what has been
// learnt about its failures.
var errRestart = errors.New("a failure was named: begin again without it")

// run makes the attempt. nil: committed, and every task has its verdict.
func (a *attempt) run() error {
	err := a.open()
	if err == nil {
		err = a.judge()
	}
	if err == nil {
		err = a.execute()
	}
	var positions []partitionPosition
	if err == nil {
		positions, err = a.seal()
	}
	if err != nil {
		a.rollback()
		return err
	}
	a.conn.Release()
	a.c.acknowledged(a.id, a.slot, positions)
	return nil
}

func (a *attempt) rollback() {
	if a.abandoned || a.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), rollbackBudget)
	defer cancel()
	if a.broken {
		// Whatever was done to this connection is not carried over to others.
		_ = a.conn.Conn().Close(ctx)
	} else if a.tx != nil {
		if err := a.tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
			_ = a.conn.Conn().Close(ctx)
		}
	}
	a.conn.Release()
	if a.ended {
		a.afterOwnCommit(ctx)
	}
}

// afterOwnCommit limits what a handler did that sent COMMIT itself, through the
// connection: the claims of messages whose handlers have not run stand committed,
// and the messages would be lost; the writes of those that had succeeded stand too,
// and lack their effects. Nothing helps against a crash before this is done, which
// is why that COMMIT is refused wherever it can be seen.
func (a *attempt) afterOwnCommit(ctx context.Context) {
	var claims []uuid.UUID
	for _, t := range a.asked {
		if t.verdict.claimed && t.verdict.fate != succeeded && t.verdict.fate != skipped {
			claims = append(claims, t.message.claim)
		}
	}
	b := &pgx.Batch{}
	if a.flight != nil {
		a.flight.Unclaim(b, claims)
	}
	err := a.queueSuccesses(b, nil)
	if err == nil {
		err = a.c.pool.SendBatch(ctx, b).Close()
	}
	if err != nil {
		a.c.config.Logger.ErrorContext(ctx, "a handler ended the consumer's transaction itself, and the claims of messages that were not handled could not be taken back: use `claimq claims forget`",
			slog.String("queue", a.c.config.Queue), slog.Any("claims", claims), slog.Any("error", err))
	}
}

// abandon takes the connection away from a handler that does not return.
func (a *attempt) abandon() {
	a.abandoned = true
	// Only the socket is closed: the handler's goroutine may be inside the pgx.Conn.
	_ = a.conn.Hijack().PgConn().Conn().Close()
	for _, t := range a.w.tasks {
		t.renewMessage()
	}
	a.c.metrics.abandoned(a.c.config.Queue)
}

// open begins the transaction and asks everything that can be asked before the
// handlers run, in one flight.
func (a *attempt) open() error {
	conn, err := a.c.pool.Acquire(a.ctx)
	if err != nil {
		return fmt.Errorf("get a database connection: %w", err)
	}
	a.conn = conn
	a.id = uuid.New()
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	a.queueSettings(b)
	incarnation := ""
	b.Queue(a.c.sql.incarnation).QueryRow(func(row pgx.Row) error { return row.Scan(&incarnation, &a.slot) })
	memory := a.queueMemory(b)
	settled := a.queueSettle(b)
	if err := a.queueClaims(b); err != nil {
		return err
	}
	a.queueKnown(b)
	planner := a.c.planner
	b.Queue(sqlPlannerBack, planner.seqscan, planner.hashjoin, planner.mergejoin)

	results := conn.SendBatch(a.ctx, b)
	a.tx = results.Tx()
	err = results.Close()
	switch {
	case err != nil && sqlstate.Code(err) == sqlstate.PhaseChanged:
		return fmt.Errorf("%w", err)
	case err != nil:
		return fmt.Errorf("begin a batch: %w", err)
	case !a.c.sameServer(incarnation):
		return errIncarnation
	case !*memory:
		return errMemory
	case settled() != nil:
		return &settledError{as: *settled()}
	}
	a.handlerTx = &handlerTx{tx: a.tx}
	return nil
}

func (a *attempt) queueSettings(b *pgx.Batch) {
	hold := a.c.longestHold()
	b.Queue(sqlSettings, milliseconds(a.c.config.LockTimeout), milliseconds(hold))
}

// queueMemory asks whether the newest acknowledged row is there.
func (a *attempt) queueMemory(b *pgx.Batch) *bool {
	there := true
	if last := a.c.lastAcknowledged(); last.id != uuid.Nil {
		b.Queue(a.c.sql.positionExists[last.slot], last.id).QueryRow(func(row pgx.Row) error { return row.Scan(&there) })
	}
	return &there
}

// queueSettle settles the attempts whose COMMIT was not answered. The returned
// function tells, after the flight, which of them had committed.
func (a *attempt) queueSettle(b *pgx.Batch) func() *unsettled {
	var committed *unsettled
	for i := range a.w.unsettled {
		u := &a.w.unsettled[i]
		b.Queue(a.c.sql.settle[u.slot], u.id, a.c.queue).Query(func(rows pgx.Rows) error {
			inserted := rows.Next()
			rows.Close()
			if !inserted && rows.Err() == nil {
				committed = u
			}
			return rows.Err()
		})
	}
	return func() *unsettled { return committed }
}

func (a *attempt) queueClaims(b *pgx.Batch) error {
	if a.c.config.Claims == ClaimNone {
		return nil
	}
	requests := make([]dedup.Request, 0, len(a.w.tasks))
	for _, t := range a.w.tasks {
		if t.unfit == nil && t.handler != nil {
			t.place = len(a.asked)
			a.asked = append(a.asked, t)
			requests = append(requests, dedup.Request{
				Identity: t.message.Identity, Digest: t.message.claim, Queue: a.c.queue, Seen: t.source(), RecordAt: t.record.Timestamp,
			})
		}
	}
	if len(requests) == 0 {
		return nil
	}
	flight, err := a.c.claims.Queue(a.ctx, a.conn, b, requests)
	if err != nil {
		return err
	}
	a.flight = flight
	return nil
}

// live returns the tasks that may still be done: their partitions have not been
// taken away.
func (w *work) live() []*task {
	live := w.tasks[:0:0]
	for _, t := range w.tasks {
		if t.strand == nil || !t.strand.partition.gone.Load() {
			live = append(live, t)
		}
	}
	return live
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%dms", max(d.Milliseconds(), 1))
}
