package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/outbox"
)

const (
	// firstShare of the orders is sent before the second consumer joins; the rest is
	// the backlog that both work on. In thousandths.
	firstShare = 200
	// holdShare of the orders is what the second consumer handles before it stops in
	// the middle of a batch. It is so small that its partitions hold more than that, and
	// over before the first failed order of the backlog is due again: a consumer that is
	// killed with delayed messages in hand keeps them until their lease ends.
	holdShare = 20
	// lookEvery is how often the run looks how far the queue is.
	lookEvery = 200 * time.Millisecond
)

// NewSeed returns a seed for a run that is given none.
func NewSeed() uint64 { return uint64(rand.Uint32()) } //nolint:gosec // a mix, not a secret

// A StuckError says that nothing has happened for a long time, and what was left.
type StuckError struct {
	// After is how long.
	After time.Duration
	// Waiting says what for.
	Waiting string
	// Log are the last lines of the consumers.
	Log string
}

func (e *StuckError) Error() string {
	text := fmt.Sprintf("nothing has happened for %s; %s", e.After, e.Waiting)
	if e.Log != "" {
		text += "; the consumers last said:\n" + e.Log
	}
	return text
}

// Run sends, consumes, kills and compares. The account is nil when it did not come
// to that. When ctx ends, whatever was started or made goes, and the error is ctx's
// cause; with Config.Keep and an account, that is how a run is asked to end, and
// the error is nil.
func Run(ctx context.Context, config Config) (account *Account, err error) {
	config, err = config.withDefaults()
	if err != nil {
		return nil, err
	}
	defer config.Progress.Close()
	r := &run{config: config, plan: newPlan(config.Seed, config.Orders), log: newLogTail(config.Log)}
	r.say("%s", r.plan)
	if r.stack, err = startStack(ctx, config); err != nil {
		return nil, interrupted(ctx, err)
	}
	defer func() {
		r.stopConsumers()
		// Topics and schema on given servers stay when they were to be explored.
		stopErr := r.stack.stop(!config.Keep || account == nil)
		err = errors.Join(err, stopErr)
	}()
	if account, err = r.work(ctx); err != nil {
		return nil, interrupted(ctx, err)
	}
	if config.Keep {
		config.Progress.Close()
		if config.Kept != nil {
			config.Kept(account, r.stack.reach())
		}
		<-ctx.Done()
	}
	return account, nil
}

// interrupted returns ctx's cause in the place of what it made fail.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// A run is one Run.
type run struct {
	config Config
	plan   *plan
	stack  *stack
	log    *logTail

	relay  *outbox.Relay
	first  *consumer.Consumer
	second *process
	// secondEnds is closed when the second consumer ends; nil when it may.
	secondEnds <-chan struct{}

	sent     int
	measured measured
	rate     rateMeter
}

func (r *run) say(format string, args ...any) { r.config.Progress.Say(format, args...) }

func (r *run) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// work is the run between the start of the servers and their end.
func (r *run) work(ctx context.Context) (*Account, error) {
	ahead := r.plan.sendings[:len(r.plan.sendings)*firstShare/1000]
	backlog := r.plan.sendings[len(ahead):]
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { return r.send(ctx, ahead) },
		r.startFirst,
		r.joinSecond,
		func(ctx context.Context) error { return r.drain(ctx, backlog) },
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	r.say("comparing the database and the topics with what was sent")
	found, err := r.stack.gather(ctx)
	if err != nil {
		return nil, err
	}
	return compare(r.plan, r.stack.names.Queue, r.stack.names.Effects, found, r.measured), nil
}

// send produces records with acks from all, in their order, and notes where each
// one stands.
func (r *run) send(ctx context.Context, sendings []*sending) error {
	var (
		wait   sync.WaitGroup
		failed error
		once   sync.Once
	)
	for _, s := range sendings {
		wait.Add(1)
		r.stack.client.Produce(ctx, s.record(r.stack.names.Orders), func(record *kgo.Record, err error) {
			defer wait.Done()
			s.offset = record.Offset
			if err != nil {
				once.Do(func() { failed = err })
			}
		})
	}
	wait.Wait()
	if failed != nil {
		return fmt.Errorf("send the orders: %w", failed)
	}
	r.sent += len(sendings)
	return nil
}

// startFirst starts the consumer of this process, and the relay.
func (r *run) startFirst(ctx context.Context) (err error) {
	s := r.stack
	r.relay, err = outbox.NewRelay(s.pool, s.kafka, outbox.RelayConfig{Schema: s.names.Schema, Logger: r.logger(), IdlePoll: 100 * time.Millisecond})
	if err != nil {
		return err
	}
	// Stop ends it and not ctx: as abruptly as that it need not be.
	if err := r.relay.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	config := queueConfig(s.names, "consumer 1", r.logger(), nil)
	config.Relay = r.relay
	if r.first, err = consumer.New(s.pool, s.kafka, config); err != nil {
		return err
	}
	r.say("consumer 1 starts; %s orders are there", grouped(r.sent))
	return r.first.Start(ctx)
}

// joinSecond starts the consumer that will be killed, and waits until it owns
// partitions and nothing is delayed that it could take along.
func (r *run) joinSecond(ctx context.Context) (err error) {
	s := r.stack
	w := workerOrder{Names: s.names}
	if s.cluster != nil {
		w.Brokers = s.brokers
	}
	if s.server != nil {
		w.DSN = s.server.DSN("")
	}
	if r.second, err = startProcess(r.config.Worker(), w, r.log); err != nil {
		return err
	}
	r.secondEnds = r.second.ended
	r.say("consumer 2 joins the group: process %d", r.second.pid())
	return r.watch(ctx, "consumer 2 has not been given partitions", func(p progress) (string, bool) {
		detail := "the group rebalances"
		if p.owners == 2 {
			detail = fmt.Sprintf("%s delayed", grouped(p.delayed))
		}
		return detail, p.owners == 2 && p.positions == int64(r.sent) && p.delayed == 0
	})
}

// drain sends the backlog, kills the second consumer in the middle of a batch and
// waits until every message has its fate.
func (r *run) drain(ctx context.Context, backlog []*sending) error {
	if err := r.second.hold(len(r.plan.sendings) * holdShare / 1000); err != nil {
		return errors.Join(err, errors.New(r.log.tail()))
	}
	started := time.Now()
	sending, stop := context.WithCancel(ctx)
	defer stop()
	sent := make(chan error, 1)
	r.say("both consumers own partitions; %s more orders come in", grouped(len(backlog)))
	go func() { sent <- r.send(sending, backlog) }()
	killErr := r.killSecond(ctx)
	if err := errors.Join(killErr, <-sent); err != nil {
		return err
	}
	killed := time.Now()
	taken := false
	err := r.watch(ctx, "not every message has its fate", func(p progress) (string, bool) {
		if !taken && p.owners == 1 {
			taken, r.measured.outage = true, time.Since(killed)
			r.say("its session has ended, consumer 1 has taken its partitions")
		}
		return r.detail(p, taken), p.settled(r.sent)
	})
	r.measured.took, r.measured.drained, r.measured.busiest = time.Since(started), len(backlog), r.rate.busiest()
	return err
}

func (r *run) detail(p progress, taken bool) string {
	switch {
	case p.positions == int64(r.sent) && p.delayed > 0 && p.leased > 0:
		return fmt.Sprintf("%s delayed, in work or leased", grouped(p.delayed))
	case p.positions == int64(r.sent) && p.delayed == 0:
		return fmt.Sprintf("%s effects to publish", grouped(p.pending+p.held))
	case p.delayed > 0:
		return fmt.Sprintf("%s delayed", grouped(p.delayed))
	case !taken:
		return "consumer 2's partitions wait"
	default:
		return ""
	}
}

// killSecond waits until the second consumer stands in the middle of a batch, and
// kills it.
func (r *run) killSecond(ctx context.Context) error {
	for {
		select {
		case written := <-r.second.holding:
			if r.secondEnds = nil; !r.second.kill() {
				return r.endedByItself()
			}
			r.measured.killedWith = written
			r.say("kill -9 of consumer 2 in the middle of a batch: at least %s orders written, none of them committed", grouped(written))
			return nil
		case <-r.second.ended:
			return r.endedByItself()
		case <-time.After(lookEvery):
			if _, err := r.look(ctx, ""); err != nil {
				return err
			}
		}
	}
}

// endedByItself is the error of a second consumer that was not killed.
func (r *run) endedByItself() error {
	return fmt.Errorf("consumer 2 ended by itself: %w; it last said:\n%s", r.second.err, r.log.tail())
}

// watch looks how far the queue is until done says that it is far enough.
func (r *run) watch(ctx context.Context, waiting string, done func(progress) (detail string, enough bool)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var last progress
	changed := time.Now()
	detail := ""
	for {
		p, err := r.look(ctx, detail)
		if err != nil {
			return err
		}
		var enough bool
		if detail, enough = done(p); enough {
			return nil
		}
		if p != last {
			last, changed = p, time.Now()
		}
		if time.Since(changed) > r.config.Patience {
			return &StuckError{After: r.config.Patience, Waiting: fmt.Sprintf("%s: %s", waiting, p), Log: r.log.tail()}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-r.first.Done():
			return fmt.Errorf("consumer 1 ended by itself: %w", errors.Join(r.first.Err(), errors.New(r.log.tail())))
		case <-r.secondEnds:
			return r.endedByItself()
		case <-tick.C:
		}
	}
}

// look asks once and tells.
func (r *run) look(ctx context.Context, detail string) (progress, error) {
	p, err := r.stack.progress(ctx)
	if err != nil {
		return p, err
	}
	done := max(int(p.positions)-p.delayed, 0)
	r.rate.note(time.Now(), done)
	r.config.Progress.Done(done, len(r.plan.sendings), detail)
	return p, nil
}

// stopConsumers ends both consumers and the relay. It may be called at any stage.
func (r *run) stopConsumers() {
	if r.second != nil {
		r.second.kill()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopBudget)
	defer cancel()
	if r.first != nil {
		_ = r.first.Stop(ctx) // what was under way is rolled back, and goes with the rest
	}
	if r.relay != nil {
		_ = r.relay.Stop(ctx)
	}
}
