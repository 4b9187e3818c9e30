package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/position"
	"github.com/claimq/claimq/internal/queuelist"
	"github.com/claimq/claimq/internal/statusview"
	"github.com/claimq/claimq/outbox"
)

// statusFlags are what status takes.
type statusFlags struct {
	queue  string
	asJSON bool
	watch  bool
	every  time.Duration
}

// statusReport is what status prints.
type statusReport struct {
	statusview.View
	Outbox outboxView `json:"outbox"`
}

// outboxView is what waits to be published.
type outboxView struct {
	Waiting int `json:"waiting"`
	// AtLeast says that counting has stopped at Waiting.
	AtLeast       bool    `json:"at_least,omitempty"`
	OldestSeconds float64 `json:"oldest_seconds"`
	Delayed       int     `json:"delayed"`
	Held          int     `json:"held"`
	HeldSeconds   float64 `json:"oldest_held_seconds"`
}

func viewOutbox(depth outbox.Depth) outboxView {
	return outboxView{
		Waiting: depth.Rows, AtLeast: depth.AtLeast, OldestSeconds: depth.Oldest.Seconds(),
		Delayed: depth.Delayed, Held: depth.Held, HeldSeconds: depth.OldestHeld.Seconds(),
	}
}

func newStatusCommand(env *Env) *cobra.Command {
	var flags statusFlags
	command := &cobra.Command{
		Use:   "status",
		Short: "Show how each queue stands",
		Long: `Shows, for each queue:

  STATE      running, paused (with the reason below), stopped (no worker runs it), or
             no worker (workers have gone silent without a good-bye)
  SCHEDULED  messages that wait for a time: their next attempt, or one of their own
  READY      messages in the delay queue that are due, or just being handled
  BLOCKED    messages behind another of their order key
  LAST HOUR  messages handled by the workers within the last hour
  AVG        the mean time of a handler for one message
  BROKEN     dead letters that wait for a decision
  LAG        messages in Kafka that are not yet handled
  POSITION   when a position was last written
  REMEMBERS  since when repeats are found

and what waits in the outbox. Figures of the last hour are those of workers that run
now. Without a worker, the lag is asked of Kafka where brokers are configured.`,
		Example: `  claimq status
  claimq status --queue orders --json
  claimq status --watch`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flags.every < 100*time.Millisecond {
				return usageError("--every is %s: it must be at least 100ms", flags.every)
			}
			return env.status(cmd.Context(), &flags)
		},
	}
	f := command.Flags()
	f.StringVarP(&flags.queue, "queue", "q", "", "only this `queue`")
	f.BoolVar(&flags.asJSON, "json", false, "print JSON; with --watch one object after another")
	f.BoolVarP(&flags.watch, "watch", "w", false, "print again and again, until interrupted")
	f.DurationVar(&flags.every, "every", 2*time.Second, "how often --watch prints")
	return command
}

func (e *Env) status(ctx context.Context, flags *statusFlags) error {
	config, err := e.load()
	if err != nil {
		return err
	}
	pool, err := e.openPool(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	reader := &statusReader{env: e, config: config, pool: pool, schema: pgschema.Schema(config.schema())}
	defer reader.close()
	if !flags.watch {
		return e.printStatus(ctx, reader, flags)
	}
	return e.watchStatus(ctx, reader, flags)
}

// watchStatus prints until a signal or the end of ctx, which are no failures.
func (e *Env) watchStatus(ctx context.Context, reader *statusReader, flags *statusFlags) error {
	logger, err := e.logger(reader.config)
	if err != nil {
		return err
	}
	ctx, _, release := e.signals(ctx, logger)
	defer release()
	ticker := time.NewTicker(flags.every)
	defer ticker.Stop()
	for {
		if e.onTerminal() && !flags.asJSON {
			e.printf("\x1b[H\x1b[2J") // home, and clear
		}
		if err := e.printStatus(ctx, reader, flags); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			e.printf("\n")
		}
	}
}

func (e *Env) onTerminal() bool {
	file, ok := e.Stdout.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// A statusReader reads how the queues stand. It connects to Kafka when a queue is
// found whose workers do not tell the lag, and tries that once.
type statusReader struct {
	env    *Env
	config *Config
	pool   *pgxpool.Pool
	schema pgschema.Schema
	asked  bool
	admin  *kafkaAdmin
}

// kafka is nil when no broker is configured or none answers.
func (r *statusReader) kafka(ctx context.Context) *kafkaAdmin {
	if r.asked || len(r.config.Kafka.Brokers) == 0 {
		return r.admin
	}
	r.asked = true
	admin, err := r.env.openKafka(ctx, r.config)
	if err != nil {
		_, _ = fmt.Fprintf(r.env.Stderr, "claimq: the lag of queues without a worker is not known: %v\n", err)
		return nil
	}
	r.admin = admin
	return admin
}

func (r *statusReader) close() {
	if r.admin != nil {
		r.admin.close()
	}
}

func (r *statusReader) read(ctx context.Context, queue string) (*statusReport, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	known, err := queuelist.All(ctx, r.pool, r.schema)
	if err != nil {
		return nil, err
	}
	if queue != "" {
		if _, err := queuelist.Find(ctx, r.pool, r.schema, queue); err != nil {
			if _, unknown := errors.AsType[*queuelist.UnknownError](err); unknown {
				err = exitWith(ExitNothing, err)
			}
			return nil, err
		}
	}
	report := &statusReport{}
	if report.View, err = statusview.Read(ctx, r.pool, r.schema, queue); err != nil {
		return nil, err
	}
	publisher, err := outbox.New(outbox.Config{Schema: r.schema.Name()})
	if err != nil {
		return nil, err
	}
	depth, err := publisher.Depth(ctx, r.pool)
	if err != nil {
		return nil, err
	}
	report.Outbox = viewOutbox(depth)
	for i := range report.Queues {
		if err := r.addLag(ctx, &report.Queues[i], known); err != nil {
			return nil, err
		}
	}
	return report, nil
}

// addLag asks Kafka for the lag of a queue whose workers do not tell it. What
// Kafka does not answer stays unknown.
func (r *statusReader) addLag(ctx context.Context, queue *statusview.Queue, known []queuelist.Queue) error {
	if queue.Lag != nil || queue.Partitions == 0 {
		return nil
	}
	kafka := r.kafka(ctx)
	if kafka == nil {
		return nil
	}
	for _, k := range known {
		if k.Name != queue.Name {
			continue
		}
		partitions, err := position.Partitions(ctx, r.pool, r.schema, k.Number)
		if err != nil {
			return err
		}
		seen, err := kafka.look(ctx, k.Group, topicNames(partitions))
		if err != nil {
			return nil //nolint:nilerr // the lag stays unknown
		}
		var positions positionsView
		positions.add(k, partitions, seen)
		for _, p := range positions.Positions {
			if p.Lag != nil {
				sum := *p.Lag
				if queue.Lag != nil {
					sum += *queue.Lag
				}
				queue.Lag = &sum
			}
		}
	}
	return nil
}
