package consumer

import (
	"context"
	"fmt"
	"log/slog"
)

// An OutOfRangeError says that Kafka has no record at a partition's position.
type OutOfRangeError struct {
	Topic     string
	Partition int32
	// Position is where the queue stands, First the oldest record that Kafka has.
	Position, First int64
}

func (e *OutOfRangeError) Error() string {
	what := fmt.Sprintf("offset %d is past the end: the topic has lost its newest records", e.Position)
	if e.Position < e.First {
		what = fmt.Sprintf("%d records before offset %d were deleted before they were handled", e.First-e.Position, e.First)
	}
	return fmt.Sprintf("topic %q, partition %d: %s. The partition stands still: move it with `claimq position set`, or set `out_of_range: earliest`", e.Topic, e.Partition, what)
}

// moveTo writes a new position for a partition that we own, and reads from there.
func (c *Consumer) moveTo(ctx context.Context, p *partition, position int64) {
	c.scheduler.mu.Lock()
	p.track.entries, p.track.position = nil, position
	c.scheduler.mu.Unlock()
	if err := c.writeFenced(ctx, []partitionPosition{{partition: p, position: position, leaderEpoch: -1}}); err != nil {
		c.config.Logger.WarnContext(ctx, "a partition was not moved", slog.String("queue", c.config.Queue), slog.Any("error", err))
		return
	}
	c.dropAndAsk([]*partition{p})
}
