package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/localpg"
	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/migrations"
)

const (
	// reachBudget bounds the first contact with a given server.
	reachBudget = 15 * time.Second
	// cleanBudget bounds what is done to leave nothing behind.
	cleanBudget = 20 * time.Second
	// poolSize is enough for a consumer, the relay and the questions of the run.
	poolSize = 12
)

// A stack is the Kafka and the Postgres of a run, with its topics and schema.
type stack struct {
	config  Config
	names   names
	kafka   []kgo.Opt
	brokers []string
	cluster *kfake.Cluster
	server  *localpg.Server
	pool    *pgxpool.Pool
	client  *kgo.Client
	admin   *kadm.Client

	// What was made, and so has to go.
	madeSchema, madeTopics bool
}

// startStack starts what was not given and makes schema and topics. On an error,
// and when ctx ends, nothing is left behind.
func startStack(ctx context.Context, config Config) (_ *stack, err error) {
	s := &stack{config: config, names: newNames(suffixFor(config))}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop(true))
		}
	}()
	for _, step := range []func(context.Context) error{s.startKafka, s.startPostgres, s.migrate, s.makeTopics} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// suffixFor is a random part of names, unless both servers are the run's own.
func suffixFor(c Config) string {
	if c.Kafka == nil && c.Postgres == nil {
		return ""
	}
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails (crypto/rand)
	return hex.EncodeToString(random)
}

func (s *stack) startKafka(ctx context.Context) (err error) {
	if s.config.Kafka != nil {
		s.kafka, s.brokers = s.config.Kafka, s.config.Brokers
	} else {
		s.config.Progress.Say("starting a Kafka in this process")
		if s.cluster, err = kfake.NewCluster(kfake.NumBrokers(1)); err != nil {
			return fmt.Errorf("start a Kafka in this process: %w; it listens on 127.0.0.1: see that a program may, or name brokers with --brokers", err)
		}
		s.brokers = s.cluster.ListenAddrs()
		s.kafka = plainKafka(s.brokers)
	}
	if s.client, err = kgo.NewClient(append(slices.Clip(s.kafka), kgo.RecordPartitioner(kgo.ManualPartitioner()))...); err != nil {
		return fmt.Errorf("Kafka client: %w", err)
	}
	s.admin = kadm.NewClient(s.client)
	ctx, cancel := context.WithTimeout(ctx, reachBudget)
	defer cancel()
	if err := s.client.Ping(ctx); err != nil {
		return fmt.Errorf("no broker answers at %s: %w; check --brokers, and TLS and SASL in a file given with -c", strings.Join(s.brokers, ","), err)
	}
	return nil
}

func plainKafka(brokers []string) []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers(brokers...), kgo.ClientID("claimq-demo")}
}

func (s *stack) startPostgres(ctx context.Context) (err error) {
	config := s.config.Postgres
	if config == nil {
		s.config.Progress.Say("starting a Postgres")
		s.server, err = localpg.Start(ctx, localpg.Config{Logf: s.config.Progress.Say})
		if err != nil {
			return fmt.Errorf("start a Postgres: %w; or name a server with --dsn", err)
		}
		if config, err = pgxpool.ParseConfig(s.server.DSN("")); err != nil {
			return err
		}
	}
	config = config.Copy()
	config.MaxConns = max(config.MaxConns, poolSize)
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, reachBudget)
	defer cancel()
	if err := s.pool.Ping(ctx); err != nil {
		return fmt.Errorf("database: %w; check --dsn", err)
	}
	return nil
}

// connect opens one direct connection, for the schema.
func (s *stack) connect(ctx context.Context) (*pgx.Conn, error) {
	if s.server != nil {
		return pgx.Connect(ctx, s.server.DSN(""))
	}
	return s.config.Migrate(ctx)
}

func (s *stack) migrate(ctx context.Context) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	s.madeSchema = true
	if err := migrations.Up(ctx, conn, migrations.Options{Schema: s.names.Schema}); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, s.sql(sqlCreateOrders)); err != nil {
		return fmt.Errorf("make the table of the orders: %w", err)
	}
	return nil
}

// sql puts the schema's name into a statement.
func (s *stack) sql(text string) string { return pgschema.Schema(s.names.Schema).SQL(text) }

func (s *stack) makeTopics(ctx context.Context) error {
	if s.cluster == nil || s.server == nil {
		s.config.Progress.Say("schema %s, topics %s", s.names.Schema, strings.Join(s.names.topics(), ", "))
	}
	ctx, cancel := context.WithTimeout(ctx, reachBudget)
	defer cancel()
	s.madeTopics = true
	for _, topic := range s.names.topics() {
		if _, err := s.admin.CreateTopic(ctx, partitions, -1, nil, topic); err != nil {
			return fmt.Errorf("create topic %s: %w", topic, err)
		}
	}
	return s.awaitLeaders(ctx)
}

// awaitLeaders waits until the new topics can be used: brokers hear of a topic
// after its creation has been acknowledged.
func (s *stack) awaitLeaders(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		led := 0
		details, err := s.admin.ListTopics(ctx, s.names.topics()...)
		details.EachPartition(func(p kadm.PartitionDetail) {
			if p.Err == nil && p.Leader >= 0 {
				led++
			}
		})
		if err == nil && led == partitions*len(s.names.topics()) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the new topics have no leaders: %w", errors.Join(context.Cause(ctx), err))
		case <-tick.C:
		}
	}
}

// stop removes what was made. With remove false, schema and topics on servers that
// were given stay; servers of the run's own go in any case. It is bounded, and does
// what it can whatever fails; errors name what is left and how to remove it.
func (s *stack) stop(remove bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanBudget)
	defer cancel()
	var errs []error
	if s.madeTopics && s.cluster == nil && remove {
		errs = append(errs, s.deleteTopics(ctx), s.deleteGroup(ctx))
	}
	if s.client != nil {
		s.client.Close()
	}
	poolClosed := make(chan struct{})
	go func() {
		defer close(poolClosed)
		if s.pool != nil {
			s.pool.Close()
		}
	}()
	if s.madeSchema && s.server == nil && remove {
		errs = append(errs, s.dropSchema(ctx))
	}
	if s.cluster != nil {
		s.cluster.Close()
	}
	if s.server != nil {
		errs = append(errs, s.server.Stop(ctx))
	}
	select { // a pool waits for whoever has a connection, and the server is gone by now
	case <-poolClosed:
	case <-ctx.Done():
	}
	return errors.Join(errs...)
}

// deleteGroup removes the run's consumer group. A consumer that was killed is in it
// until its session has ended.
func (s *stack) deleteGroup(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout+3*time.Second)
	defer cancel()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := s.admin.DeleteGroup(ctx, s.names.Queue)
		switch {
		case err == nil, errors.Is(err, kerr.GroupIDNotFound):
			return nil
		case !errors.Is(err, kerr.NonEmptyGroup):
			return fmt.Errorf("the consumer group %s may still be there: delete it: %w", s.names.Queue, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the consumer group %s is still there: delete it: %w", s.names.Queue, err)
		case <-tick.C:
		}
	}
}

// deleteTopics removes the run's topics.
func (s *stack) deleteTopics(ctx context.Context) error {
	var errs []error
	responses, err := s.admin.DeleteTopics(ctx, s.names.topics()...)
	if err != nil {
		errs = append(errs, err)
	}
	for _, r := range responses {
		if r.Err != nil && !isUnknownTopic(r.Err) {
			errs = append(errs, r.Err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the topics %s may still be there: delete them: %w", strings.Join(s.names.topics(), ", "), err)
	}
	return nil
}

func (s *stack) dropSchema(ctx context.Context) error {
	conn, err := s.connect(ctx)
	if err == nil {
		defer closeConn(conn)
		_, err = conn.Exec(ctx, "drop schema if exists "+pgschema.Schema(s.names.Schema).Quoted()+" cascade")
	}
	if err != nil {
		return fmt.Errorf("the schema %s may still be there: drop it: %w", s.names.Schema, err)
	}
	return nil
}

// reach tells a person how to get at what is kept.
func (s *stack) reach() Reach {
	r := Reach{
		Brokers: strings.Join(s.brokers, ","), DSN: s.config.ShownDSN, Schema: s.names.Schema,
		Orders: s.names.Orders, Effects: s.names.Effects, Dead: s.names.DeadLetters,
	}
	if s.server != nil {
		r.DSN = s.server.DSN("")
	}
	return r
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

func isUnknownTopic(err error) bool { return errors.Is(err, kerr.UnknownTopicOrPartition) }
