package cli

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/outbox"
)

// runFlags are what run takes besides the configuration.
type runFlags struct {
	queues  []string
	accept  []string
	anew    []string
	migrate bool
	// relayOnly runs no queues: `claimq relay`.
	relayOnly bool
}

func newRunCommand(env *Env) *cobra.Command {
	var flags runFlags
	command := &cobra.Command{
		Use:   "run",
		Short: "Run the queues of the configuration, and the relay of the outbox",
		Long: `Runs the queues of the configuration in this process, and the relay unless it is
switched off. It serves /metrics, /livez and /readyz (http.listen), logs on
standard error, and ends gracefully on SIGINT or SIGTERM: running batches finish or
are rolled back, positions are committed, the groups are left. A second signal ends
it at once, which loses nothing either.

While brokers or the database are out of reach it stays up, says so, and tries
again. It ends with an exit code when waiting does not help: a wrong password, a
missing topic or schema, a schema of a newer claimq, a refused configuration.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := env.load()
			if err != nil {
				return err
			}
			r, err := newRunner(env, config, flags)
			if err != nil {
				return err
			}
			return r.run(cmd.Context())
		},
	}
	command.Flags().StringSliceVar(&flags.queues, "queues", nil, "run only these `names`, with commas between")
	command.Flags().BoolVar(&flags.migrate, "migrate", false, "apply missing migrations first")
	command.Flags().StringSliceVar(&flags.accept, "accept", nil, "accept that these queues' id rules have changed: all of their `names`' topics will look new")
	command.Flags().StringSliceVar(&flags.anew, "anew", nil, "let these `names`, which have claims and lost their positions, begin at their start")
	return command
}

// A runner is one `claimq run`, or `claimq relay`.
type runner struct {
	env    *Env
	config *Config
	flags  runFlags
	logger *slog.Logger

	queues     []consumer.Config
	statements []statement
	poolConfig *pgxpool.Config
	kafka      []kgo.Opt
	metrics    *runMetrics
	health     *runHealth

	pool  *pgxpool.Pool
	relay *outbox.Relay
}

// newRunner checks everything that can be checked before anything is connected.
func newRunner(env *Env, config *Config, flags runFlags) (*runner, error) {
	r := &runner{env: env, config: config, flags: flags}
	var err error
	if r.logger, err = env.logger(config); err != nil {
		return nil, err
	}
	names := flags.queues
	if len(names) == 0 && !flags.relayOnly {
		names = slices.Sorted(maps.Keys(config.Queues))
	}
	if len(names) == 0 && !flags.relayOnly {
		return nil, configError(placed(config, fieldErrorf([]string{"queues"}, "no queue is configured: there is nothing to run")))
	}
	for _, name := range slices.Concat(flags.accept, flags.anew) {
		if !slices.Contains(names, name) {
			return nil, usageError("--accept and --anew name queues that run, and %q is none of %s", name, strings.Join(names, ", "))
		}
	}
	var errs []error
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return nil, usageError("--queues names %q twice", name)
		}
		queue, statements, err := config.consumerConfig(name)
		errs = append(errs, err)
		queue.Logger = r.logger
		queue.AcceptRuleChange = slices.Contains(flags.accept, name)
		if slices.Contains(flags.anew, name) {
			queue.Start = queue.Start.Anew()
		}
		r.queues = append(r.queues, queue)
		r.statements = append(r.statements, statements...)
	}
	r.poolConfig, err = config.poolConfig()
	errs = append(errs, err)
	r.kafka, err = env.kafkaOptions(config)
	errs = append(errs, err, config.checkSections())
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	r.health = newRunHealth(names)
	r.setConnections()
	if r.metrics, err = newRunMetrics(); err != nil {
		return nil, err
	}
	for i := range r.queues {
		r.queues[i].Metrics = r.metrics.queues
	}
	return r, nil
}

// What a queue needs besides its lanes (the delay queue, housekeeping, the
// assignment), and what the rest of the process needs.
const (
	queueConnections = 6
	otherConnections = 6
)

// setConnections gives the pool what the queues need unless the file or the
// address says how many.
func (r *runner) setConnections() {
	if r.config.Database.MaxConnections > 0 || strings.Contains(r.poolConfig.ConnString(), "pool_max_conns") {
		return
	}
	need := otherConnections
	if r.config.Relay.Enabled {
		need += r.config.Relay.Slices
	}
	for i := range r.queues {
		need += max(r.queues[i].Concurrency, defaultConcurrency) + queueConnections
	}
	r.poolConfig.MaxConns = int32(min(need, 1<<16))
}

// defaultConcurrency is the consumer's.
const defaultConcurrency = 2

// run returns when a signal or ctx has ended it, or something that waiting does
// not cure.
func (r *runner) run(ctx context.Context) error {
	r.limitMemory()
	graceful, atOnce, release := r.env.signals(ctx, r.logger)
	defer release()
	server, err := r.serve(graceful)
	if err != nil {
		return err
	}
	finished := make(chan error, 1)
	go func() {
		err := r.work(graceful)
		finished <- errors.Join(err, server.close())
	}()
	select {
	case err := <-finished:
		return err
	case <-atOnce:
		return errAtOnce
	}
}

// work connects, runs the queues and stops them.
func (r *runner) work(ctx context.Context) error {
	r.logger.Info("claimq starts", "queues", queueNames(r.queues), "relay", r.config.Relay.Enabled)
	defer func() {
		if r.pool != nil {
			r.pool.Close()
		}
	}()
	err := r.connect(ctx)
	if err == nil {
		err = r.runQueues(ctx)
	}
	r.health.stopping()
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		err = nil // it was asked to stop while it waited
	}
	if err == nil {
		r.logger.Info("claimq has stopped")
	}
	return err
}

// connect waits for the database and for Kafka.
func (r *runner) connect(ctx context.Context) error {
	var err error
	if r.pool, err = pgxpool.NewWithConfig(ctx, r.poolConfig); err != nil {
		return connectError(err)
	}
	if err := r.await(ctx, "database", r.tryDatabase); err != nil {
		return err
	}
	return r.await(ctx, "Kafka", r.tryKafka)
}

// runQueues runs the relay and all queues until ctx ends or one of them cannot go
// on; then all of them stop. The relay goes last, so that what the queues leave in
// the outbox gets its chance.
func (r *runner) runQueues(ctx context.Context) error {
	if err := r.startRelay(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var running sync.WaitGroup
	errs := make([]error, len(r.queues))
	for i := range r.queues {
		running.Go(func() {
			if errs[i] = r.runQueue(ctx, r.queues[i]); errs[i] != nil {
				stop(errs[i])
			}
		})
	}
	running.Go(func() { r.sampleOutbox(ctx) })
	running.Wait()
	return errors.Join(errors.Join(errs...), r.stopRelay())
}

func (r *runner) startRelay(ctx context.Context) error {
	if !r.config.Relay.Enabled {
		return nil
	}
	options := append(slices.Clone(r.kafka), r.metrics.relayHooks())
	relay, err := outbox.NewRelay(r.pool, options, outbox.RelayConfig{Schema: r.config.schema(), Slices: r.config.Relay.Slices, Logger: r.logger})
	if err != nil {
		return err
	}
	// Stop ends it, not the context: that would be as abrupt as a crash.
	if err := relay.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	r.relay = relay
	r.metrics.relay.Store(relay)
	for i := range r.queues {
		r.queues[i].Relay = relay
	}
	return nil
}

// relayBudget bounds the relay's stop.
const relayBudget = 15 * time.Second

func (r *runner) stopRelay() error {
	if r.relay == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), relayBudget)
	defer cancel()
	return r.relay.Stop(ctx)
}

func queueNames(queues []consumer.Config) []string {
	list := make([]string, len(queues))
	for i := range queues {
		list[i] = queues[i].Queue
	}
	return list
}
