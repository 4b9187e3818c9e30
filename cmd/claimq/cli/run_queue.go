package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/claimq/claimq/consumer"
)

// stopMargin is what a consumer's stop may take beyond its own budget.
const stopMargin = 15 * time.Second

// runQueue runs one queue until ctx ends. A consumer that could not start, or has
// ended by itself, because of something that passes is made anew after a pause; any
// other end is returned.
func (r *runner) runQueue(ctx context.Context, config consumer.Config) error {
	wait := pauses()
	for {
		began := r.env.Now()
		err := r.runConsumer(ctx, config)
		if ctx.Err() != nil {
			return err
		}
		if !curable(err) {
			return err
		}
		if r.env.Now().Sub(began) > time.Minute {
			wait = pauses() // it had worked
		}
		pause := wait.NextBackOff()
		r.health.queueWaits(config.Queue, err)
		r.logger.Warn("the queue cannot run; trying again", "queue", config.Queue, "error", err, "in", pause.Round(time.Millisecond))
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

// runConsumer runs one consumer to its end. The error is nil when ctx ended it.
func (r *runner) runConsumer(ctx context.Context, config consumer.Config) error {
	options := append(slices.Clone(r.kafka), r.metrics.queueHooks(config.Queue))
	c, err := consumer.New(r.pool, options, config)
	if err != nil {
		return configError(placed(r.config, fieldErrorf([]string{"queues", config.Queue}, "%v", err)))
	}
	if err := r.startConsumer(ctx, c); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err // it names the queue
	}
	r.logger.Info("the queue runs", "queue", config.Queue, "topics", config.Topics)
	r.health.queueRuns(config.Queue, c.Health)
	select {
	case <-ctx.Done():
	case <-c.Done():
	}
	budget := config.StopBudget + stopMargin
	if config.StopBudget == 0 {
		budget += defaultStopBudget
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), budget)
	defer cancel()
	err = errors.Join(c.Stop(stopCtx), c.Err())
	if err != nil {
		return fmt.Errorf("queue %q: %w", config.Queue, err)
	}
	if ctx.Err() == nil {
		return fmt.Errorf("queue %q ended by itself and gave no reason", config.Queue)
	}
	return nil
}

// defaultStopBudget is the consumer's.
const defaultStopBudget = 20 * time.Second

// startConsumer starts a consumer within a bounded time, and ends it when it does not start.
func (r *runner) startConsumer(ctx context.Context, c *consumer.Consumer) error {
	startCtx, cancel := context.WithTimeout(ctx, 2*askTimeout)
	defer cancel()
	return c.Start(startCtx)
}
