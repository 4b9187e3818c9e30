package consumer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/dlq"
	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/outbox"
)

// A Consumer runs one queue. Make one with New, start it once, stop it; it is not
// started again. Its methods are safe for concurrent use.
type Consumer struct {
	config   Config
	pool     *pgxpool.Pool
	options  []kgo.Opt
	sql      *statements
	instance string

	claims  *dedup.Store
	delayed *delayq.Store
	letters *dlq.Store
	outbox  *outbox.Outbox
	metrics *Metrics
	health  *health
	stats   *stats

	queue       int32 // the queue's number
	planner     plannerSettings
	maxAttempts int
	client      *kgo.Client
	admin       *kadm.Client
	scheduler   *scheduler
	fetchSize   *fetchSizer
	troubled    atomic.Int32
	delayedWork chan struct{}
	seeks       chan struct{} // something for the poll loop to do besides polling

	mu         sync.Mutex
	partitions map[partitionKey]*partition // owned in Kafka and in Postgres
	held       map[partitionKey]time.Time  // owned in Kafka; since when not in Postgres, or zero
	server     string                      // the incarnation that memory is of
	newest     acknowledgement
	pending    []seek
	topicIDs   sync.Map // topic number → uuid.UUID, of items in the delay queue

	life lifecycle
}

// plannerSettings are the session's own, put back before handlers run.
type plannerSettings struct {
	seqscan, hashjoin, mergejoin string
}

// acknowledgement is the newest position row whose COMMIT was answered.
type acknowledgement struct {
	id   uuid.UUID
	slot int16
}

// New checks the config and makes a Consumer that reads with a Kafka client of its
// own, made of the given options: seeds, TLS, SASL, hooks. Options for groups,
// offsets, rebalances and isolation are the consumer's and are overridden. The pool
// is shared and needs a connection for each lane and two more; through PgBouncer in
// transaction mode it must use pgx.QueryExecModeCacheDescribe.
//
// Nothing is connected yet. Errors are *ConfigError values, joined.
func New(pool *pgxpool.Pool, kafka []kgo.Opt, config Config) (*Consumer, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	if need := int32(config.Concurrency) + 2; pool.Config().MaxConns < need { //nolint:gosec // checked to be small
		return nil, config.wrong("Concurrency", "%d lanes need a pool of at least %d connections and it has %d: raise pool_max_conns", config.Concurrency, need, pool.Config().MaxConns)
	}
	delayed, err := delayq.New(delayq.Config{Schema: config.Schema})
	if err != nil {
		return nil, err
	}
	letters, err := dlq.New(dlq.Config{Schema: config.Schema})
	if err != nil {
		return nil, err
	}
	effects, err := outbox.New(outbox.Config{Schema: config.Schema})
	if err != nil {
		return nil, err
	}
	metrics := config.Metrics
	if metrics == nil {
		metrics = newMetrics()
	}
	return &Consumer{
		config: config, pool: pool, options: kafka,
		sql:      newStatements(pgschema.Schema(config.Schema)),
		instance: instanceName(),
		claims:   dedup.New(dedup.Config{Schema: config.Schema, HideIDs: config.HideIDs}),
		delayed:  delayed, letters: letters, outbox: effects,
		metrics: metrics, health: newHealth(), stats: newStats(),
		maxAttempts: maxAttempts(config.Retry),
		scheduler:   newScheduler(config.Batch),
		fetchSize:   newFetchSizer(config.MaxBufferedBytes),
		delayedWork: make(chan struct{}, 1),
		seeks:       make(chan struct{}, 1),
		partitions:  map[partitionKey]*partition{},
		held:        map[partitionKey]time.Time{},
		life:        newLifecycle(),
	}, nil
}

func maxAttempts(p delayq.Policy) int {
	if p.MaxAttempts == 0 {
		return delayq.DefaultMaxAttempts
	}
	return p.MaxAttempts
}

// instanceName tells workers apart in owners and workers: the host, the process,
// and something random, since process numbers repeat in containers.
func instanceName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), uuid.NewString()[:8])
}

// Start checks the database's schema and the topics, registers the queue, and joins
// the consumer group. It returns when records are being asked for; ctx bounds the
// start only. What can go wrong later is in Health, Err and the log.
//
// Errors tell what to do: *migrations.MissingSchemaError, *migrations.NewerSchemaError,
// *RuleChangedError, *GroupError, *MissingTopicError, or the way's own.
func (c *Consumer) Start(ctx context.Context) error {
	if !c.life.begin() {
		return errors.New("consumer: started before: make a new Consumer")
	}
	err := c.start(ctx)
	if err != nil {
		c.life.end(err)
	}
	return err
}

func (c *Consumer) start(ctx context.Context) error {
	if err := c.checkDatabase(ctx); err != nil {
		return fmt.Errorf("queue %q: %w", c.config.Queue, err)
	}
	if err := c.register(ctx); err != nil {
		return err
	}
	client, err := c.connect()
	if err != nil {
		return fmt.Errorf("queue %q: Kafka client: %w", c.config.Queue, err)
	}
	c.client, c.admin = client, kadm.NewClient(client)
	if err := c.checkTopics(ctx); err != nil {
		client.CloseAllowingRebalance()
		return err
	}
	c.client.AddConsumeTopics(c.config.Topics...)
	c.run()
	return nil
}

// Run starts the consumer, waits until ctx ends or it ends by itself, and stops it.
// The error is nil after a clean stop.
func (c *Consumer) Run(ctx context.Context) error {
	if err := c.Start(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-c.Done():
	}
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.config.StopBudget+commitBudget+rollbackBudget)
	defer cancel()
	return errors.Join(c.Stop(stopCtx), c.Err())
}

// longestHold is how long a transaction of this queue may stand still before the
// server ends it, and so the longest time that a worker which was lost or frozen
// can hold an id.
func (c *Consumer) longestHold() time.Duration {
	return c.config.HandlerTimeout + c.config.LockTimeout + commitBudget
}
