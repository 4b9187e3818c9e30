package outbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A Relay publishes what transactions have added to the outbox. Any number of
// processes may run one: each slice of the outbox is relayed by one of them at a
// time, under a lease, and taken over when its holder goes silent.
//
// Every record is published at least once, under the id header that it had from
// the beginning; the first copies of records of one key and topic are in order.
// A Relay is safe for concurrent use.
type Relay struct {
	pool   *pgxpool.Pool
	kafka  []kgo.Opt
	config RelayConfig
	sql    *statements
	slices []*sliceRelay
	stats  *counters

	// Bounds that tests lower.
	maxPage, maxList int // rows
	commitEvery      time.Duration

	mu   sync.Mutex
	runs *relayRun // nil while not running

	// step is called between the steps of a round, by tests that end a relay there.
	step func(step) error
}

// A relayRun is what one Start has started.
type relayRun struct {
	stopping chan struct{}      // closed: finish what is on its way
	abort    context.CancelFunc // give it up
	done     chan struct{}      // closed when all goroutines have ended
	once     sync.Once
}

// NewRelay returns a Relay that is not running. The options are those of a Kafka
// client (brokers, TLS, SASL); acks, idempotence and flushing are the relay's own,
// and options against them are refused. No connection is made.
func NewRelay(pool *pgxpool.Pool, kafka []kgo.Opt, config RelayConfig) (*Relay, error) {
	if pool == nil {
		return nil, errors.New("outbox: the relay needs a pool")
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	probe, err := newPublisher(kafka)
	if err != nil {
		return nil, err
	}
	probe.close()
	r := &Relay{
		pool: pool, kafka: kafka, config: config, sql: newStatements(config.Schema),
		stats: newCounters(config.Slices), maxPage: pageRows, maxList: listRows, commitEvery: commitEvery,
	}
	for i := range config.Slices {
		r.slices = append(r.slices, newSliceRelay(r, i))
	}
	return r, nil
}

// Start begins to publish and returns at once; a database or brokers that are
// away are waited for. Publishing ends with Stop, or, as abruptly as in a crash,
// with ctx. A relay that is running goes on; one that was stopped starts again.
func (r *Relay) Start(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.runs != nil {
		select {
		case <-r.runs.done: // ended with its context
		default:
			return nil
		}
	}
	ctx, abort := context.WithCancel(ctx)
	run := &relayRun{stopping: make(chan struct{}), abort: abort, done: make(chan struct{})}
	var workers sync.WaitGroup
	for _, s := range r.slices {
		workers.Go(func() { s.run(ctx, run.stopping) })
	}
	workers.Go(func() { r.rotate(ctx, run.stopping) })
	workers.Go(func() { r.release(ctx, run.stopping) })
	go func() {
		workers.Wait()
		abort()
		close(run.done)
	}()
	r.runs = run
	return nil
}

// Stop lets records that are on their way arrive, for at most
// RelayConfig.StopGrace, gives the leases back and closes the producers. What did
// not arrive is sent again by the next relay. It returns ctx's error when ctx ends
// first; the relay then goes on stopping. A relay that does not run is stopped.
func (r *Relay) Stop(ctx context.Context) error {
	r.mu.Lock()
	run := r.runs
	r.mu.Unlock()
	if run == nil {
		return nil
	}
	run.once.Do(func() {
		close(run.stopping)
		go func() {
			select {
			case <-run.done:
			case <-time.After(r.config.StopGrace):
				run.abort()
			}
		}()
	})
	select {
	case <-run.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Wake makes the relay look at the outbox now. It is for the process that has
// just committed effects; it never blocks, and costs nothing while a look is due
// anyway. Without it an effect is found at the next poll.
func (r *Relay) Wake() {
	for _, s := range r.slices {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// rotate empties slots until the relay ends.
func (r *Relay) rotate(ctx context.Context, stopping <-chan struct{}) {
	ticker := time.NewTicker(r.config.RotateEvery)
	defer ticker.Stop()
	for {
		select {
		case <-stopping:
			return
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		r.rotateOnce(ctx)
	}
}

// rotateOnce tries each ring once. A slot whose lock is not to be had in 50 ms is
// tried again at the next tick: nobody waits for it, it only grows.
func (r *Relay) rotateOnce(ctx context.Context) {
	for _, sql := range []string{r.sql.rotateOutbox, r.sql.rotateWindows} {
		ctx, cancel := context.WithTimeout(ctx, queryTimeout)
		_, err := r.pool.Exec(ctx, sql)
		cancel()
		if err != nil && ctx.Err() == nil {
			r.config.Logger.Debug("the outbox has not rotated; it is tried again", "error", err)
		}
	}
}

// A step is a point between two steps of a round.
type step string

const (
	stepListed    step = "listed"
	stepRead      step = "read"
	stepPublished step = "published"
	stepAdvanced  step = "advanced"
)

// at tells the tests' hook where the relay is.
func (r *Relay) at(s step) error {
	if r.step == nil {
		return nil
	}
	return r.step(s)
}

// runOnce lets each slice do one round, in the caller's goroutine. The relay must
// not be running.
func (r *Relay) runOnce(ctx context.Context) (result, error) {
	var sum result
	for _, s := range r.slices {
		one, err := s.runOnce(ctx)
		sum.add(one)
		if err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// A result is what a round did.
type result struct {
	standby   int // slices that another relay has
	published int
	setAside  int
	retried   int // rows that were set aside and are now out
}

func (r *result) add(o result) {
	r.standby += o.standby
	r.published += o.published
	r.setAside += o.setAside
	r.retried += o.retried
}
