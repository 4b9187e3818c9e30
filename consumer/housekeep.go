package consumer

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"time"

	"github.com/claimq/claimq/dlq"
)

const (
	// idleFlush is how soon positions that out-of-order lanes left behind are written.
	idleFlush = time.Second
	// heartbeatEvery is how often a worker shows that it is there.
	heartbeatEvery = 5 * time.Second
	// ownersEvery is how often a worker looks whether it still owns what it has.
	ownersEvery = 2 * time.Second
	// waitingEvery is how often what waits in Postgres is counted, which costs in
	// proportion to it.
	waitingEvery = 30 * time.Second
	// rotateEvery is how often a worker tries to empty an old slot of positions.
	rotateEvery = time.Minute
	// housekeepBudget bounds each of these.
	housekeepBudget = 10 * time.Second
)

// housekeep does what is nobody's turn: flush positions, show the worker, empty old
// slots. A failure of any of it is tried again the next time.
func (c *Consumer) housekeep(ctx context.Context) {
	flush, beat, rotate := time.NewTicker(idleFlush), time.NewTicker(heartbeatEvery), time.NewTicker(rotateEvery)
	waiting := time.NewTicker(waitingEvery)
	defer waiting.Stop()
	owners := time.NewTicker(ownersEvery)
	defer owners.Stop()
	defer flush.Stop()
	defer beat.Stop()
	defer rotate.Stop()
	defer c.rollClaims(ctx)()
	c.heartbeat(ctx)
	c.observeWaiting(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-flush.C:
			c.flushPositions(ctx, c.owned())
			c.observeLag()
		case <-owners.C:
			c.checkOwners(ctx)
		case <-beat.C:
			c.heartbeat(ctx)
		case <-waiting.C:
			c.observeWaiting(ctx)
			c.learnEnds(ctx)
		case <-rotate.C:
			c.rotatePositions(ctx)
		}
	}
}

func (c *Consumer) heartbeat(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, housekeepBudget)
	defer cancel()
	lag, _ := c.lag()
	figures, err := json.Marshal(map[string]any{c.config.Queue: c.stats.figures(lag, c.standsAt(), time.Now())})
	if err != nil {
		c.config.Logger.ErrorContext(ctx, "describe the worker", slog.Any("error", err))
		return
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	_, err = c.pool.Exec(ctx, c.sql.heartbeat, c.instance, []string{c.config.Queue}, host, version(), figures)
	if err != nil && ctx.Err() == nil {
		c.health.database(err)
		return
	}
	c.health.database(nil)
}

func (c *Consumer) rotatePositions(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, housekeepBudget)
	defer cancel()
	var removed *int64
	if err := c.pool.QueryRow(ctx, c.sql.rotatePositions).Scan(&removed); err != nil {
		c.config.Logger.DebugContext(ctx, "an old slot of positions was not emptied", slog.String("queue", c.config.Queue), slog.Any("error", err))
	}
	if _, err := c.pool.Exec(ctx, c.sql.forgetWorkers); err != nil {
		c.config.Logger.DebugContext(ctx, "workers that are gone were not forgotten", slog.Any("error", err))
	}
}

// lag is how far behind Kafka's end the positions are, in messages and in time.
// Partitions whose end is not known yet are left out.
func (c *Consumer) lag() (messages int64, age time.Duration) {
	ps := c.owned()
	c.scheduler.mu.Lock()
	defer c.scheduler.mu.Unlock()
	for _, p := range ps {
		if p.highWater < 0 {
			continue
		}
		messages += max(p.highWater-p.track.position, 0)
		if _, at, ok := p.track.oldest(); ok {
			age = max(age, time.Since(at))
		}
	}
	return messages, age
}

func (c *Consumer) observeLag() {
	messages, age := c.lag()
	c.metrics.lag(c.config.Queue, messages, age)
}

// observeWaiting measures what waits in Postgres.
func (c *Consumer) observeWaiting(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, housekeepBudget)
	defer cancel()
	depth, err := c.delayed.Depths(ctx, c.pool, c.queue)
	if err != nil {
		return // the heartbeat has told the health of the database
	}
	dead, err := c.letters.Count(ctx, c.pool, dlq.Filter{Queue: c.queue, States: []dlq.State{dlq.Dead, dlq.Replaying}})
	if err != nil {
		return
	}
	for state, n := range map[string]int64{
		"ready": depth.Ready, "running": depth.Running, "delayed": depth.Delayed,
		"blocked": depth.Blocked, "scheduled": depth.Scheduled, "dead": dead,
	} {
		c.metrics.waits(c.config.Queue, state, n)
	}
}
