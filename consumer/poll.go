package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// fetchMaxWait is how long Kafka may hold a fetch that finds nothing. Resuming a
	// paused partition waits for it.
	fetchMaxWait = 500 * time.Millisecond
	// pollRecords bounds one poll, so that rebalances are never kept waiting for long.
	pollRecords = 10_000
	// recordOverhead is what a record takes in memory besides its bytes.
	recordOverhead = 400
)

// poll reads records and hands them to the scheduler. A rebalance is blocked only
// from a poll's return until its records are handed over: never by a handler.
func (c *Consumer) poll(ctx context.Context) {
	for ctx.Err() == nil {
		c.waitForRoom(ctx)
		polling, cancel := context.WithCancel(ctx)
		stop := c.cancelOnSeek(polling, cancel)
		fetches := c.client.PollRecords(polling, pollRecords)
		stop()
		cancel()
		if fetches.IsClientClosed() {
			return
		}
		c.haltBroken(fetches)
		c.dispatch(fetches)
		c.seekPending()
		c.client.AllowRebalance()
		c.readErrors(ctx, fetches)
	}
}

// cancelOnSeek ends a poll early when there is something to seek.
func (c *Consumer) cancelOnSeek(ctx context.Context, cancel context.CancelFunc) (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-c.seeks:
			cancel()
		case <-ctx.Done():
		}
	}()
	return func() { cancel(); <-done }
}

// waitForRoom holds polling up while more is buffered than allowed. Partitions over
// their share are paused before that, so it takes all partitions to get here.
func (c *Consumer) waitForRoom(ctx context.Context) {
	s := c.scheduler
	for {
		s.mu.Lock()
		full := s.buffered > c.config.MaxBufferedBytes
		changed := s.changed
		s.mu.Unlock()
		if !full {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (c *Consumer) dispatch(fetches kgo.Fetches) {
	fetches.EachPartition(func(fetched kgo.FetchTopicPartition) {
		if len(fetched.Records) == 0 && fetched.HighWatermark <= 0 {
			return
		}
		c.mu.Lock()
		p := c.partitions[partitionKey{fetched.Topic, fetched.Partition}]
		c.mu.Unlock()
		if p == nil || p.gone.Load() || p.halted.Load() {
			return // lost, or fenced: whoever owns it reads them
		}
		tasks := make([]*task, 0, len(fetched.Records))
		for _, record := range fetched.Records {
			if record.Attrs.IsControl() {
				continue
			}
			t := &task{record: ownBytes(record), size: sizeOf(record)}
			t.orderKey = c.orderKeyOf(t)
			tasks = append(tasks, t)
		}
		strands := len(p.strands)
		c.scheduler.add(p, tasks, fetched.HighWatermark, func(t *task) int { return strandOf(t, strands) })
	})
	c.pauseFull()
}

func sizeOf(r *kgo.Record) int {
	size := recordOverhead + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		size += len(h.Key) + len(h.Value)
	}
	return size
}

// share is how many bytes one partition may have buffered before it is paused.
func (c *Consumer) share() int {
	c.mu.Lock()
	n := max(len(c.partitions), 1)
	c.mu.Unlock()
	return max(c.config.MaxBufferedBytes/n, 64<<10)
}

// pauseFull pauses fetching of partitions that are over their share.
func (c *Consumer) pauseFull() {
	if full := c.scheduler.pausable(c.share(), c.owned()); len(full) > 0 {
		c.client.PauseFetchPartitions(full)
		c.metrics.paused(c.config.Queue, len(full))
	}
}

// resumeRoom resumes fetching of partitions that have room again.
func (c *Consumer) resumeRoom() {
	if room := c.scheduler.resumable(c.share()/2, c.owned()); len(room) > 0 {
		c.client.ResumeFetchPartitions(room)
	}
}

// readErrors acts on what fetching met. It runs with rebalances allowed, because
// adding a topic again needs one.
func (c *Consumer) readErrors(ctx context.Context, fetches kgo.Fetches) {
	fetches.EachError(func(topic string, number int32, err error) {
		key := partitionKey{topic, number}
		switch {
		case errors.Is(err, context.Canceled), errors.Is(err, kgo.ErrClientClosed):
		case errors.Is(err, kerr.UnknownTopicID):
			c.recreateTopic(topic)
		case broken(err):
			c.outOfRange(ctx, key, err)
		default:
			c.health.fetching(key, err)
			c.metrics.fetchError(c.config.Queue)
			c.config.Logger.WarnContext(ctx, "fetching failed", slog.String("queue", c.config.Queue),
				slog.String("topic", topic), slog.Int("partition", int(number)), slog.Any("error", err))
		}
	})
}

// recreateTopic makes the client forget a topic whose id has changed and ask for it
// anew. Its partitions then come back under the new id, from their beginning.
func (c *Consumer) recreateTopic(topic string) {
	c.config.Logger.Warn("a topic was deleted and created again: it is read from its beginning, as another topic",
		slog.String("queue", c.config.Queue), slog.String("topic", topic))
	c.mu.Lock()
	for key, p := range c.partitions {
		if key.topic == topic {
			c.scheduler.drop(p)
			delete(c.partitions, key)
			delete(c.held, key)
		}
	}
	c.mu.Unlock()
	c.client.PurgeTopicsFromConsuming(topic)
	c.client.AddConsumeTopics(topic)
}
