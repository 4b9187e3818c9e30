package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/dedup"
)

// rollClaims moves the claims' segments on beside the other housekeeping, by whichever
// worker looks first, until the function that it returns is called. A backlog, of
// whatever worker and queue, holds back what is forgotten: repeats in it are still
// within the retention of the stream.
func (c *Consumer) rollClaims(ctx context.Context) (stop func()) {
	roller, err := dedup.NewRoller(c.pool, dedup.RollerConfig{
		Schema: c.config.Schema, Logger: c.config.Logger, StreamTime: c.streamTimes,
	})
	if err == nil {
		err = roller.Start(ctx)
	}
	if err != nil {
		c.config.Logger.DebugContext(ctx, "the claims' segments are not looked after by this worker", slog.Any("error", err))
		return func() {}
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), housekeepBudget)
		defer cancel()
		_ = roller.Stop(ctx)
	}
}

// streamTimes reads how far the streams of queues that are behind have been handled.
func (c *Consumer) streamTimes(ctx context.Context) (map[int32]time.Time, error) {
	rows, err := c.pool.Query(ctx, c.sql.streamTimes)
	if err != nil {
		return nil, fmt.Errorf("read how far the streams are: %w", err)
	}
	times := map[int32]time.Time{}
	var queue int32
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&queue, &at}, func() error {
		times[queue] = at
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read how far the streams are: %w", err)
	}
	return times, nil
}

// standsAt is the time of the oldest record that this worker's partitions have not
// handled, as the heartbeat tells it: "" when there is none, and "-infinity" when
// there is one that has not been fetched yet, or nobody knows.
func (c *Consumer) standsAt() string {
	ps := c.owned()
	c.scheduler.mu.Lock()
	defer c.scheduler.mu.Unlock()
	var oldest time.Time
	for _, p := range ps {
		_, at, inHand := p.track.oldest()
		switch {
		case inHand && (oldest.IsZero() || at.Before(oldest)):
			oldest = at
		case !inHand && (p.highWater < 0 || p.highWater > p.track.position):
			return "-infinity"
		}
	}
	if oldest.IsZero() {
		return ""
	}
	return oldest.UTC().Format(time.RFC3339Nano)
}

// learnEnds asks Kafka for the ends of partitions that have answered no fetch with a
// record yet: an idle partition would never tell.
func (c *Consumer) learnEnds(ctx context.Context) {
	unknown := map[string][]*partition{}
	ps := c.owned()
	c.scheduler.mu.Lock()
	for _, p := range ps {
		if p.highWater < 0 {
			unknown[p.topic] = append(unknown[p.topic], p)
		}
	}
	c.scheduler.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, housekeepBudget)
	defer cancel()
	for topic, of := range unknown {
		ends, err := c.admin.ListEndOffsets(ctx, topic)
		if err != nil {
			c.config.Logger.DebugContext(ctx, "ask Kafka for the ends of a topic", slog.String("topic", topic), slog.Any("error", err))
			continue
		}
		c.scheduler.mu.Lock()
		for _, p := range of {
			if end, ok := ends.Lookup(topic, p.partition); ok && end.Err == nil && p.highWater < 0 {
				p.highWater = end.Offset
			}
		}
		c.scheduler.mu.Unlock()
	}
}
