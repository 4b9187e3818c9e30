package dedup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/claimq/claimq/internal/pgschema"
)

// RollerConfig says how a Roller works. The zero value is ready to use.
type RollerConfig struct {
	// Schema is the schema of claimq's tables. Empty means "claimq".
	Schema string
	// Every is the time between two looks at what is due, and before the first one,
	// so that a process knows by then where its streams stand. A look that finds nothing
	// costs one statement. Any number of processes may look. At least 1 s. Default: 1 min.
	Every time.Duration
	// StreamTime returns, for each queue (by its number) of which a partition has
	// lag, the time of the record at which the slowest of them stands. A queue that
	// is left out stands at the present. With it, what a stream that has been down
	// for long still needs is not forgotten; an error forgets nothing this time.
	// Nil: only the two clocks of the claims decide.
	StreamTime func(ctx context.Context) (map[int32]time.Time, error)
	// MaxHold is how long StreamTime can hold back what the clocks have let go, so
	// that a queue which nobody runs any more does not keep all claims for ever.
	// Default: 30 days.
	MaxHold time.Duration
	// Logger gets what an operator should know. Default: discard.
	Logger *slog.Logger
}

const (
	// rollPatience is how long one run of a Roller waits for claimers of the phase
	// before: after it, the next run goes on where this one ended.
	rollPatience = 5 * time.Second
	// rollSteps bounds the steps of one run: a roll and a forgetting take six.
	rollSteps = 12
	// rollStepTimeout bounds one step. The longest reads a whole closed segment.
	rollStepTimeout = 10 * time.Minute
	// rollRetry is the pause after a look that had to wait.
	rollRetry = 5 * time.Second
	// rollPollFirst and rollPollLast are the pauses between two looks at the locks.
	rollPollFirst, rollPollLast = 2 * time.Millisecond, 100 * time.Millisecond
)

func (c RollerConfig) withDefaults() (RollerConfig, error) {
	if c.Every == 0 {
		c.Every = time.Minute
	}
	if c.MaxHold == 0 {
		c.MaxHold = 30 * 24 * time.Hour
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Every < time.Second {
		return c, fmt.Errorf("dedup: RollerConfig.Every is %s: it must be at least 1s", c.Every)
	}
	if c.MaxHold < 0 {
		return c, fmt.Errorf("dedup: RollerConfig.MaxHold is %s: it must not be negative", c.MaxHold)
	}
	return c, nil
}

// A Roller moves the ring of segments on and empties the oldest, so that each id is
// remembered for its queue's retention and at most half of the longest retention
// more. Any number of processes may run one; each step is made by one of them, in
// one transaction, and everything that the next step needs is in the database. So a
// Roller may end at any point, and any other goes on from there.
//
// The ring moves in phases: insert into g; into g and g+1; into g+1 while g is
// looked up. After each the Roller waits, without a lock and with nobody behind it,
// until the claimers of the phase before have gone. Claimers never wait for it.
// A Roller is safe for concurrent use.
type Roller struct {
	pool   *pgxpool.Pool
	config RollerConfig
	sql    *rollStatements

	patience, pollMax time.Duration // rollPatience and rollPollLast, which tests change

	mu   sync.Mutex
	stop context.CancelFunc // nil while not running
	done chan struct{}
}

// NewRoller returns a Roller that is not running.
func NewRoller(pool *pgxpool.Pool, config RollerConfig) (*Roller, error) {
	if pool == nil {
		return nil, errors.New("dedup: the roller needs a pool")
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Roller{
		pool: pool, config: config, sql: newRollStatements(pgschema.Schema(config.Schema)), patience: rollPatience, pollMax: rollPollLast,
	}, nil
}

// Start begins to look after the segments and returns at once. It ends with Stop or
// with ctx. A Roller that is running goes on; one that was stopped starts again.
func (r *Roller) Start(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.stop != nil {
		select {
		case <-r.done: // ended with its context
		default:
			return nil
		}
	}
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	r.stop, r.done = stop, done
	go func() {
		defer close(done)
		defer stop()
		r.run(ctx)
	}()
	return nil
}

// Stop ends what Start began, in the middle of a step when need be: the step is
// rolled back. It returns ctx's error when ctx ends first. A Roller that does not run
// is stopped.
func (r *Roller) Stop(ctx context.Context) error {
	r.mu.Lock()
	stop, done := r.stop, r.done
	r.mu.Unlock()
	if stop == nil {
		return nil
	}
	stop()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run looks every now and then, soon after a look that had to wait, and at a time of
// its own so that many processes do not look at once.
func (r *Roller) run(ctx context.Context) {
	pause := r.config.Every
	for {
		timer := time.NewTimer(pause*9/10 + rand.N(pause/5)) //nolint:gosec // no secret
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		result, err := r.runOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		r.report(ctx, result, err)
		pause = r.config.Every
		if result.Waiting != NotWaiting {
			pause = min(pause, rollRetry)
		}
	}
}

func (r *Roller) report(ctx context.Context, result RollResult, err error) {
	switch {
	case err != nil:
		r.config.Logger.LogAttrs(ctx, slog.LevelWarn, "the claim segments were not looked after; it is tried again", slog.Any("error", err))
	case result.Rolled+result.Forgotten+result.ResultsForgotten > 0:
		r.config.Logger.LogAttrs(ctx, slog.LevelInfo, "the claim segments have moved on",
			slog.Int64("phase", result.Phase), slog.Int("rolled", result.Rolled), slog.Int("forgotten", result.Forgotten),
			slog.Int64("carried_over", result.Carried), slog.Int("results_forgotten", result.ResultsForgotten))
	}
}

// inStep runs f in a transaction of its own if this Roller is the only one at it.
func (r *Roller) inStep(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) (alone bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, rollStepTimeout)
	defer cancel()
	err = pgx.BeginTxFunc(ctx, r.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, r.sql.begin).Scan(nil, nil, &alone); err != nil || !alone {
			return err
		}
		return f(ctx, tx)
	})
	return alone, err
}
