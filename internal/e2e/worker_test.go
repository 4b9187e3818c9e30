package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/outbox"
)

// workerVariable holds the order of a worker process, as JSON.
const workerVariable = "CLAIMQ_E2E_WORKER"

// A workerOrder says what a worker process is to do: consume a queue until
// SIGTERM, with a handler that makes a row of the business table for each message.
type workerOrder struct {
	Name, DSN, Schema string
	Brokers           []string
	// KafkaProxy, when set, is where all connections to brokers go.
	KafkaProxy string
	Queue      string
	Topics     []string
	Latest     bool
	// ByPosition: no claims; the position alone makes each effect once.
	ByPosition bool
	// Effects is the topic that the handler's effects go to; empty: none.
	Effects string
	// Slow is how long the handler takes for a message.
	Slow time.Duration
	// Stuck are ids for which the handler does not return before its context ends.
	Stuck []string
	// Once are ids that fail at the first attempt.
	Once []string
	// Lean leaves the value out of the row.
	Lean bool

	Concurrency, Messages                             int
	Session, Rebalance, Handler, Revoke, Lock, Commit time.Duration
}

func (o *workerOrder) config(logger *slog.Logger) consumer.Config {
	config := consumer.Config{
		Queue: o.Queue, Topics: o.Topics,
		Rules:            dedup.Rules{ID: []dedup.Source{dedup.Header("id")}},
		Handler:          consumer.One(o.handle),
		Start:            consumer.StartEarliest(),
		Retry:            delayq.Policy{InitialDelay: 200 * time.Millisecond},
		Concurrency:      o.Concurrency,
		Batch:            consumer.BatchLimits{Messages: o.Messages},
		SessionTimeout:   o.Session,
		RebalanceTimeout: o.Rebalance,
		HandlerTimeout:   o.Handler,
		RevokeBudget:     o.Revoke,
		LockTimeout:      o.Lock,
		CommitInterval:   o.Commit,
		Schema:           o.Schema,
		Logger:           logger,
	}
	if o.Latest {
		config.Start = consumer.StartLatest()
	}
	if o.ByPosition {
		config.Claims = consumer.ClaimNone
	}
	return config
}

// handle makes a message's row, and its effect.
func (o *workerOrder) handle(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
	if slices.Contains(o.Stuck, m.Identity.ID) {
		<-ctx.Done()
		return ctx.Err()
	}
	if slices.Contains(o.Once, m.Identity.ID) && m.Attempt == 1 {
		return errors.New("it fails once")
	}
	if o.Slow > 0 {
		select {
		case <-time.After(o.Slow):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	value := m.Record.Value
	if o.Lean {
		value = nil
	}
	_, err := tx.Exec(ctx, `insert into `+o.Schema+`.effects (id, key, value, worker, topic, partition, "offset") values ($1, $2, $3, $4, $5, $6, $7)`,
		m.Identity.ID, m.Record.Key, value, o.Name, m.Record.Topic, m.Record.Partition, m.Record.Offset)
	if err == nil && o.Effects != "" {
		err = m.Emit(outbox.Effect{Name: "done", Topic: o.Effects, Key: m.Record.Key, Value: []byte(m.Identity.ID)})
	}
	return err
}

// joinCount logs each time that this worker joins its group: once a rebalance.
type joinCount struct{ logger *slog.Logger }

const joined = "joined the group"

func (j joinCount) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	const joinGroup = 11
	if key == joinGroup && e2e.Err() == nil {
		j.logger.Info(joined)
	}
}

// runWorker is the body of a worker process.
func runWorker(text string) error {
	var o workerOrder
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	poolConfig, err := pgxpool.ParseConfig(o.DSN)
	if err != nil {
		return err
	}
	poolConfig.MaxConns = 8
	poolConfig.ConnConfig.RuntimeParams["application_name"] = o.Name
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return err
	}
	defer pool.Close()
	kafka := []kgo.Opt{kgo.SeedBrokers(o.Brokers...), kgo.MetadataMinAge(time.Second), kgo.MetadataMaxAge(2 * time.Second), kgo.WithHooks(joinCount{logger})}
	if o.KafkaProxy != "" {
		kafka = append(kafka, kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, o.KafkaProxy)
		}))
	}
	c, err := consumer.New(pool, kafka, o.config(logger))
	if err != nil {
		return err
	}
	if err := c.Run(ctx); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	return nil
}
