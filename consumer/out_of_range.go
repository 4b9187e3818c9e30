package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/sqlstate"
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

// broken reports whether Kafka does not have the record that is to be read next, or
// the one that was read last.
func broken(err error) bool {
	var loss *kgo.ErrDataLoss
	return errors.Is(err, kerr.OffsetOutOfRange) || errors.As(err, &loss)
}

// haltBroken stops partitions that Kafka does not have the next record of, before
// anything that was fetched is handed over: after a loss of records the client goes
// on by itself, wherever Kafka still has some. Paused, they are not asked for again
// and again.
func (c *Consumer) haltBroken(fetches kgo.Fetches) {
	fetches.EachError(func(topic string, number int32, err error) {
		if !broken(err) {
			return
		}
		c.mu.Lock()
		p := c.partitions[partitionKey{topic, number}]
		c.mu.Unlock()
		if p != nil && !p.gone.Load() {
			p.halted.Store(true)
			c.client.PauseFetchPartitions(map[string][]int32{topic: {number}})
		}
	})
}

// outOfRange decides what becomes of a partition that was halted.
func (c *Consumer) outOfRange(ctx context.Context, key partitionKey, cause error) {
	c.mu.Lock()
	p := c.partitions[key]
	c.mu.Unlock()
	if p == nil || !p.halted.Load() {
		return
	}
	first, end, err := c.rangeOf(ctx, key)
	if err != nil {
		c.resume(p) // Kafka will say again that it does not have it
		c.health.fetching(key, err)
		return
	}
	next := c.scheduler.nextOf(p)
	var loss *kgo.ErrDataLoss
	if first <= next && next <= end && !errors.As(cause, &loss) {
		c.resume(p) // the error is of before a seek
		return
	}
	c.metrics.outOfRange(c.config.Queue)
	problem := &OutOfRangeError{Topic: key.topic, Partition: key.partition, Position: next, First: first}
	if c.config.OutOfRange == Earliest && next < first {
		c.config.Logger.ErrorContext(ctx, "records were deleted before they were handled", slog.String("queue", c.config.Queue), slog.Any("error", problem))
		c.life.service.Go(func() { c.moveTo(ctx, p, first) })
		return
	}
	c.health.partition(key, problem)
	c.config.Logger.ErrorContext(ctx, "a partition has stopped", slog.String("queue", c.config.Queue), slog.Any("error", problem))
}

func (c *Consumer) resume(p *partition) {
	p.halted.Store(false)
	c.client.ResumeFetchPartitions(map[string][]int32{p.topic: {p.partition}})
}

// rangeOf asks Kafka for the first offset that it has of a partition, and the one
// behind the last.
func (c *Consumer) rangeOf(ctx context.Context, key partitionKey) (first, end int64, err error) {
	starts, err := c.startsOf(ctx, key.topic, StartEarliest())
	if err != nil {
		return 0, 0, err
	}
	ends, err := c.startsOf(ctx, key.topic, StartLatest())
	if err != nil {
		return 0, 0, err
	}
	return starts[key.partition], ends[key.partition], nil
}

// moveTo writes a new position for a partition that we own, once everything that
// was read of it is done, and reads from there.
func (c *Consumer) moveTo(ctx context.Context, p *partition, position int64) {
	pause := newPause()
	for !p.gone.Load() && c.scheduler.drained(ctx, p) {
		err := c.writeFenced(ctx, []partitionPosition{{partition: p, position: position, leaderEpoch: -1}})
		if err == nil || sqlstate.Code(err) == sqlstate.Fenced {
			c.dropAndAsk([]*partition{p})
			return
		}
		c.config.Logger.WarnContext(ctx, "a partition was not moved", slog.String("queue", c.config.Queue), slog.Any("error", err))
		select {
		case <-time.After(pause.after(err)):
		case <-ctx.Done():
		}
	}
}
