package cli

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/bench"
	"github.com/claimq/claimq/internal/localpg"
	"github.com/claimq/claimq/migrations"
)

func newBenchCommand(env *Env) *cobra.Command {
	var options bench.Options
	var handlers []string
	var asJSON bool
	command := &cobra.Command{
		Use:   "bench",
		Short: "Measure throughput and latency beside bare SQL, on this machine",
		Long: `Writes a topic, drains it with each handler kind, and makes the same rows with bare
batched SQL and no Kafka, in turn in one run: the ratio is what tells, the absolute
numbers are the machine's. Every run is checked to be exact. Then single messages
are timed from produce to commit through an idle queue.

With --brokers and --dsn it measures there, in a topic and a schema of its own that
are removed afterwards. Without them it starts a Postgres and an in-process Kafka:
good for a first look, but the in-process Kafka is not what you will run.`,
		Example: `  claimq bench --brokers localhost:9092 --dsn postgres://localhost/orders
  claimq bench --records 20000 --handler sql --runs 1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range handlers {
				options.Kinds = append(options.Kinds, bench.Kind(name))
			}
			if err := checkBench(options); err != nil {
				return err
			}
			options.Progress = func(format string, args ...any) { fmt.Fprintf(env.Stderr, format+"\n", args...) }
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			report, err := env.bench(ctx, options)
			if err != nil {
				return err
			}
			if asJSON {
				return env.printJSON(report)
			}
			return env.printBench(report)
		},
	}
	f := command.Flags()
	f.IntVar(&options.Records, "records", 100_000, "how many `records` are drained")
	f.IntVar(&options.Partitions, "partitions", 8, "the topic's partitions")
	f.IntVar(&options.Size, "size", 200, "`bytes` of a record's value")
	f.Float64Var(&options.Repeats, "repeats", 0.1, "the part of the records, 0 to 1, that repeat an id")
	f.StringSliceVar(&handlers, "handler", []string{"sql", "batch", "pipelined", "one"}, "handler `kinds` to measure")
	f.IntVar(&options.Lanes, "lanes", 2, "claimq's concurrency, and the connections of bare SQL")
	f.IntVar(&options.Batch, "batch", 500, "messages of a transaction at most")
	f.IntVar(&options.Runs, "runs", 3, "runs of each; the median is told")
	f.IntVar(&options.Single, "single", 200, "single `messages` to time")
	f.Uint64Var(&options.Seed, "seed", 1, "for the records")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return command
}

func checkBench(o bench.Options) error {
	for name, value := range map[string]int{
		"records": o.Records, "partitions": o.Partitions, "size": o.Size, "lanes": o.Lanes, "batch": o.Batch, "runs": o.Runs, "single": o.Single,
	} {
		if value <= 0 {
			return usageError("--%s must be greater than zero", name)
		}
	}
	if o.Repeats < 0 || o.Repeats >= 1 {
		return usageError("--repeats %v is not between 0 and 1", o.Repeats)
	}
	for _, kind := range o.Kinds {
		if !slices.Contains(bench.Kinds, kind) {
			return usageError("--handler %q: the kinds are sql, batch, pipelined, one", kind)
		}
	}
	return nil
}

// bench measures on the pair that is named, or on one that it starts.
func (e *Env) bench(ctx context.Context, o bench.Options) (report bench.Report, err error) {
	config, err := e.load()
	if err != nil {
		return report, err
	}
	named := len(config.Kafka.Brokers) > 0
	if _, addressErr := config.address(); (addressErr == nil) != named {
		return report, usageError("give both --brokers and --dsn, or neither to measure on servers that are started here")
	}
	if !named {
		return e.benchHere(ctx, o)
	}
	kafka, err := e.kafkaOptions(config)
	if err != nil {
		return report, err
	}
	poolConfig, err := config.poolConfig()
	if err != nil {
		return report, err
	}
	return benchOn(ctx, poolConfig, kafka, o)
}

// benchHere starts a Postgres and an in-process Kafka and leaves nothing behind.
func (e *Env) benchHere(ctx context.Context, o bench.Options) (report bench.Report, err error) {
	o.Progress("starting a Postgres and an in-process Kafka")
	server, err := localpg.Start(ctx, localpg.Config{Logf: o.Progress})
	if err != nil {
		return report, err
	}
	defer func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, server.Stop(stopping))
	}()
	brokers, stopKafka, err := bench.StartKafka()
	if err != nil {
		return report, err
	}
	defer stopKafka()
	poolConfig, err := pgxpool.ParseConfig(server.DSN(""))
	if err != nil {
		return report, fmt.Errorf("the started Postgres' address: %w", err)
	}
	return benchOn(ctx, poolConfig, []kgo.Opt{kgo.SeedBrokers(brokers...)}, o)
}

// benchOn measures in a schema of its own, which it removes.
func benchOn(ctx context.Context, poolConfig *pgxpool.Config, kafka []kgo.Opt, o bench.Options) (report bench.Report, err error) {
	poolConfig.MaxConns = max(poolConfig.MaxConns, int32(o.Lanes)+4) //nolint:gosec // checked to be small
	schema := "claimq_bench_" + uuid.NewString()[:8]
	conn, err := pgx.ConnectConfig(ctx, poolConfig.ConnConfig.Copy())
	if err != nil {
		return report, connectError(err)
	}
	defer closeConn(conn)
	if err := migrations.Up(ctx, conn, migrations.Options{Schema: schema}); err != nil {
		return report, err
	}
	defer func() {
		dropping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if _, dropErr := conn.Exec(dropping, "drop schema "+schema+" cascade"); dropErr != nil {
			err = errors.Join(err, fmt.Errorf("remove schema %s: %w", schema, dropErr))
		}
	}()
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return report, fmt.Errorf("database: %w", err)
	}
	defer pool.Close()
	return bench.Run(ctx, pool, kafka, schema, o)
}

func (e *Env) printBench(r bench.Report) error {
	t := newTable("CONTESTANT", "MESSAGES/S", "LOWEST", "HIGHEST", "OF LIMIT").alignRight(1, 2, 3, 4)
	for _, row := range r.Rows {
		t.row(row.Name, fmt.Sprintf("%.0f", row.PerSecond), fmt.Sprintf("%.0f", row.Lowest), fmt.Sprintf("%.0f", row.Highest), fmt.Sprintf("%.2f", row.Ratio))
	}
	e.printf("%d records, %d distinct ids; medians of the second half of each run\n\n", r.Records, r.Distinct)
	if err := e.printTable(t); err != nil {
		return err
	}
	e.printf("\none message from produce to commit, idle: median %s, p99 %s\n",
		r.SingleMedian.Round(10*time.Microsecond), r.SingleP99.Round(10*time.Microsecond))
	return nil
}
