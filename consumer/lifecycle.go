package consumer

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A lifecycle is the start, the background work and the end of a Consumer.
type lifecycle struct {
	mu       sync.Mutex
	started  bool
	stopping bool
	err      error
	ctx      context.Context //nolint:containedctx // the background work's
	cancel   context.CancelCauseFunc
	polling  context.Context //nolint:containedctx // ends first
	stopPoll context.CancelFunc
	work     sync.WaitGroup // lanes and the delay queue's runner
	service  sync.WaitGroup // poll loop and housekeeping
	done     chan struct{}
	once     *sync.Once
}

// errStopping is the cause of contexts that end because of Stop.
var errStopping = errors.New("the consumer is stopping")

func newLifecycle() lifecycle {
	ctx, cancel := context.WithCancelCause(context.Background())
	polling, stopPoll := context.WithCancel(ctx)
	return lifecycle{ctx: ctx, cancel: cancel, polling: polling, stopPoll: stopPoll, done: make(chan struct{}), once: new(sync.Once)}
}

func (l *lifecycle) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started {
		return false
	}
	l.started = true
	return true
}

// end closes Done. The first error stays.
func (l *lifecycle) end(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	l.cancel(errStopping)
	l.once.Do(func() { close(l.done) })
}

// Done is closed when the consumer has ended: after Stop, or by itself because of
// something that cannot be cured by waiting; then Err says what.
func (c *Consumer) Done() <-chan struct{} { return c.life.done }

// Err returns why the consumer ended by itself; nil before, and after Stop.
func (c *Consumer) Err() error {
	c.life.mu.Lock()
	defer c.life.mu.Unlock()
	return c.life.err
}

// run starts the background work.
func (c *Consumer) run() {
	for range c.config.Concurrency {
		c.life.work.Go(func() { c.lane(c.life.ctx) })
	}
	c.life.work.Go(func() { c.runDelayed(c.life.ctx) })
	c.life.service.Go(func() { c.poll(c.life.polling) })
	c.life.service.Go(func() { c.housekeep(c.life.ctx) })
}

// fatal ends the consumer by itself, in the background.
func (c *Consumer) fatal(err error) {
	c.life.mu.Lock()
	if c.life.err == nil {
		c.life.err = err
	}
	stopping := c.life.stopping
	c.life.mu.Unlock()
	if !stopping {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), c.config.StopBudget+commitBudget+rollbackBudget)
			defer cancel()
			_ = c.Stop(ctx) // the reason is in Err already
		}()
	}
}

// Stop ends the consumer: no new batches, running ones may finish within StopBudget
// and are rolled back after it, positions are told to Kafka, the group is left. What
// was not finished is handled by whoever gets the partitions. Stop may be called
// any number of times and waits for the end each time; if ctx ends first its error
// is returned and the rest goes on in the background.
func (c *Consumer) Stop(ctx context.Context) error {
	c.life.mu.Lock()
	first := c.life.started && !c.life.stopping
	c.life.stopping = true
	started := c.life.started
	c.life.mu.Unlock()
	if !started {
		c.life.end(nil)
	}
	if first {
		go c.shutDown() //nolint:gosec // it outlives the call whose ctx only bounds the wait
	}
	select {
	case <-c.life.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Consumer) shutDown() {
	c.life.stopPoll()
	c.scheduler.stop()
	finished := make(chan struct{})
	go func() { c.life.work.Wait(); close(finished) }()
	budget := time.NewTimer(c.config.StopBudget)
	defer budget.Stop()
	select {
	case <-finished:
	case <-budget.C:
	}
	c.life.cancel(errStopping)
	<-finished
	if c.client != nil {
		c.flushPositions(context.Background(), c.owned())
		// Leaving the group runs the revoke callback, which tells Kafka the positions.
		c.client.CloseAllowingRebalance()
	}
	c.life.service.Wait()
	c.sayGoodbye()
	c.life.end(nil)
}
