package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/delayq"
)

const (
	// delayedPoll is the longest sleep between two looks at the delay queue: other
	// workers can store items that are due before those seen here.
	delayedPoll = time.Second
	// delayedFloor keeps a ready key that somebody has locked from being polled hot.
	delayedFloor = 5 * time.Millisecond
	// leaseGrace is how long taking a lease may go on after a stop.
	leaseGrace = 2 * time.Second
)

// runDelayed takes what is due in the delay queue and performs it like batches, in
// transactions of the same shape.
func (c *Consumer) runDelayed(ctx context.Context) {
	polling := c.life.polling
	for polling.Err() == nil {
		runs, err := c.lease(polling)
		switch {
		case err != nil && polling.Err() == nil:
			c.health.database(err)
			c.config.Logger.WarnContext(ctx, "the delay queue was not read", slog.String("queue", c.config.Queue), slog.Any("error", err))
			c.sleepDelayed(polling, delayedPoll)
		case len(runs) > 0 && polling.Err() != nil:
			c.giveBack(runs)
		case len(runs) > 0:
			c.performRuns(ctx, runs)
		default:
			c.sleepDelayed(polling, c.nextDelayed(polling))
		}
	}
}

// lease is not cut short by a stop at once: a lease whose COMMIT was given up may
// have been made, and then nobody works on its items until it ends.
func (c *Consumer) lease(polling context.Context) ([]*delayq.Run, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(polling), c.config.LockTimeout+commitBudget)
	defer cancel()
	stop := context.AfterFunc(polling, func() {
		grace := time.AfterFunc(leaseGrace, cancel)
		context.AfterFunc(ctx, func() { grace.Stop() })
	})
	defer stop()
	return c.delayed.Lease(ctx, c.pool, c.queue, delayq.LeaseOptions{
		Items: c.config.Batch.Messages, Bytes: int64(c.config.Batch.Bytes), For: c.config.Lease,
	})
}

// nextDelayed is how long nothing will be due.
func (c *Consumer) nextDelayed(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, commitBudget)
	defer cancel()
	in, some, err := c.delayed.NextDue(ctx, c.pool, c.queue)
	if err != nil || !some {
		return delayedPoll
	}
	return min(max(in, delayedFloor), delayedPoll)
}

func (c *Consumer) sleepDelayed(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.delayedWork:
	case <-ctx.Done():
	}
}

// wakeDelayed tells the runner that something was stored.
func (c *Consumer) wakeDelayed() {
	select {
	case c.delayedWork <- struct{}{}:
	default:
	}
}

// performRuns performs leased runs and renews their leases meanwhile.
func (c *Consumer) performRuns(ctx context.Context, runs []*delayq.Run) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	renewed := make(chan struct{})
	go func() { defer close(renewed); c.renew(ctx, runs, cancel) }()
	if err := c.learnTopics(ctx, runs); err != nil {
		c.health.database(err)
		cancel(nil)
		<-renewed
		c.release(runs)
		return
	}
	w := &work{ctx: ctx, runs: runs}
	for _, run := range runs {
		for _, item := range run.Items {
			w.tasks = append(w.tasks, c.taskOf(item))
		}
	}
	err := c.perform(w)
	c.count(w, err)
	wake := c.finishTasks(w)
	cancel(nil)
	<-renewed
	if err != nil {
		c.release(runs)
	}
	wake()
}

// giveBack returns runs that were taken and not begun.
func (c *Consumer) giveBack(runs []*delayq.Run) {
	ctx, cancel := context.WithTimeout(context.Background(), commitBudget)
	defer cancel()
	finished := make([]delayq.Finished, 0, len(runs))
	for _, run := range runs {
		finished = append(finished, delayq.Finished{Run: run, Verdicts: make([]delayq.Verdict, len(run.Items))})
	}
	err := pgx.BeginTxFunc(ctx, c.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		if err := c.delayed.Finish(b, c.queue, finished); err != nil {
			return err
		}
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		c.config.Logger.Info("leases were not given back and will end by themselves", slog.String("queue", c.config.Queue), slog.Any("error", err))
	}
}

// release gives runs back that were not finished: they are ready again at once and
// no attempt is used.
func (c *Consumer) release(runs []*delayq.Run) {
	ctx, cancel := context.WithTimeout(context.Background(), commitBudget)
	defer cancel()
	if err := c.delayed.Release(ctx, c.pool, runs, "interrupted"); err != nil {
		// The leases end by themselves.
		c.config.Logger.Info("leases were not given back and will end by themselves", slog.String("queue", c.config.Queue), slog.Any("error", err))
	}
}

func (c *Consumer) renew(ctx context.Context, runs []*delayq.Run, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(c.config.Lease / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		lost, err := c.delayed.Renew(ctx, c.pool, runs, c.config.Lease)
		switch {
		case err != nil && ctx.Err() == nil:
			c.config.Logger.WarnContext(ctx, "leases were not renewed", slog.String("queue", c.config.Queue), slog.Any("error", err))
		case len(lost) > 0:
			cancel(errLeaseLost)
			return
		}
	}
}

// errLeaseLost is the cause of delayed work that was cut short.
var errLeaseLost = errors.New("the lease was lost: another worker has the items")

// learnTopics finds the topic ids of items: a message without an id is identified by
// its offset and its topic's id, at every attempt the same, whether the partition is
// this worker's or not.
func (c *Consumer) learnTopics(ctx context.Context, runs []*delayq.Run) error {
	for _, run := range runs {
		for _, item := range run.Items {
			if item.Source == nil {
				continue
			}
			if _, known := c.topicIDs.Load(item.Source.Topic); known {
				continue
			}
			var id uuid.UUID
			if err := c.pool.QueryRow(ctx, c.sql.topicID, item.Source.Topic).Scan(&id); err != nil {
				return fmt.Errorf("find the id of topic number %d: %w", item.Source.Topic, err)
			}
			c.topicIDs.Store(item.Source.Topic, id)
		}
	}
	return nil
}

// taskOf makes a task of a delayed item.
func (c *Consumer) taskOf(item *delayq.Item) *task {
	t := &task{record: item.Record, item: item, orderKey: item.OrderKey, size: sizeOf(item.Record)}
	t.message = &Message{
		Record: item.Record, Attempt: item.Attempts + 1, MaxAttempts: c.maxAttempts, FirstSeen: item.FirstSeen,
		Replayed: item.Kind == delayq.Replay, Scheduled: item.Kind == delayq.Scheduled,
	}
	var topicID [16]byte
	if item.Source != nil {
		if id, ok := c.topicIDs.Load(item.Source.Topic); ok {
			topicID = id.(uuid.UUID) //nolint:forcetypeassert // nothing else is stored
		}
	}
	c.identify(t, topicID)
	if t.unfit != nil {
		// It had an identity when it was stored, and keeps what is left of that.
		t.unfit = nil
		t.message.Identity.Queue, t.message.Identity.Tenant, t.message.Identity.Operation = c.config.Queue, item.Tenant, item.Operation
		t.message.Identity.ID = item.Shown
		t.message.claim = t.message.Identity.Digest()
	}
	t.message.Identity.Fingerprint, t.message.Identity.FingerprintVersion = item.Fingerprint, item.FingerprintVersion
	if item.Claim.Valid {
		t.message.claim = item.Claim.UUID
	}
	return t
}

// queueFinished adds the verdicts of delayed items, under their leases' tokens.
func (a *attempt) queueFinished(b *pgx.Batch) error {
	if len(a.w.runs) == 0 {
		return nil
	}
	byItem := make(map[*delayq.Item]*task, len(a.w.tasks))
	for _, t := range a.w.tasks {
		byItem[t.item] = t
	}
	finished := make([]delayq.Finished, 0, len(a.w.runs))
	for _, run := range a.w.runs {
		f := delayq.Finished{Run: run}
		for _, item := range run.Items {
			f.Verdicts = append(f.Verdicts, verdictOf(byItem[item]))
		}
		finished = append(finished, f)
	}
	return a.c.delayed.Finish(b, a.c.queue, finished)
}

func verdictOf(t *task) delayq.Verdict {
	switch t.verdict.fate {
	case succeeded, skipped, duplicate:
		return delayq.Verdict{Outcome: delayq.Done}
	case dead:
		return delayq.Verdict{Outcome: delayq.Dead}
	case delayed:
		return delayq.Verdict{
			Outcome: delayq.Retry, After: t.verdict.after,
			Class: errorClass(t.verdict.err), Message: t.verdict.err.Error(),
		}
	default:
		return delayq.Verdict{Outcome: delayq.Untouched}
	}
}
