package consumer

import (
	"context"
	"errors"
	"log/slog"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// errRevoked is the cause of batches that were cut short by a rebalance.
var errRevoked = errors.New("the partition was taken away")

// revoked is called by the client while the group waits for us to let go: no new
// batches, running ones have their budget, then they are rolled back; what has
// committed is told to Kafka. Partitions that we keep are not affected.
func (c *Consumer) revoked(ctx context.Context, client *kgo.Client, assigned map[string][]int32) {
	ps := c.inService(assigned)
	c.scheduler.revoke(ps)
	budget, cancel := context.WithTimeout(ctx, c.config.RevokeBudget)
	idle := c.scheduler.idle(budget, ps)
	cancel()
	if !idle {
		c.config.Logger.WarnContext(ctx, "batches are rolled back: their partitions are taken away", slog.String("queue", c.config.Queue))
		c.scheduler.interrupt(ps, errRevoked)
		budget, cancel = context.WithTimeout(ctx, rollbackBudget+commitBudget)
		c.scheduler.idle(budget, ps)
		cancel()
	}
	c.flushPositions(ctx, ps)
	if err := client.CommitMarkedOffsets(ctx); err != nil {
		c.committed(client, nil, nil, err)
	}
	c.remove(ps, assigned)
}

// lost is called when the partitions are another member's already: nothing is told
// to Kafka, and whatever still runs will find the fence.
func (c *Consumer) lost(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
	ps := c.inService(assigned)
	c.remove(ps, assigned)
	c.scheduler.interrupt(ps, errRevoked)
}

func (c *Consumer) inService(assigned map[string][]int32) []*partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ps []*partition
	for topic, numbers := range assigned {
		for _, number := range numbers {
			if p := c.partitions[partitionKey{topic, number}]; p != nil {
				ps = append(ps, p)
			}
		}
	}
	return ps
}

func (c *Consumer) remove(ps []*partition, assigned map[string][]int32) {
	resume := map[string][]int32{}
	for _, p := range ps {
		c.scheduler.drop(p)
		resume[p.topic] = append(resume[p.topic], p.partition)
	}
	if len(resume) > 0 {
		// A pause outlives the assignment in the client, and must not meet the next one.
		c.client.ResumeFetchPartitions(resume)
	}
	c.mu.Lock()
	for topic, numbers := range assigned {
		for _, number := range numbers {
			key := partitionKey{topic, number}
			delete(c.partitions, key)
			delete(c.held, key)
			c.health.partition(key, nil)
		}
	}
	n := len(c.partitions)
	c.mu.Unlock()
	c.metrics.assigned(c.config.Queue, n)
}

// committed is told how telling Kafka the offsets went. They are for lag tools only,
// so a refusal is counted and the process goes on.
func (c *Consumer) committed(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error) {
	if err == nil && response != nil {
		for _, topic := range response.Topics {
			for _, p := range topic.Partitions {
				err = errors.Join(err, kerr.ErrorForCode(p.ErrorCode))
			}
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		c.metrics.commitError(c.config.Queue)
		c.config.Logger.Info("Kafka did not take the committed offsets; the position in the database holds", slog.String("queue", c.config.Queue), slog.Any("error", err))
	}
}
