package e2e

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/migrations"
	"github.com/claimq/claimq/outbox"
)

// patience bounds every wait for something that must happen.
const patience = 2 * time.Minute

// eventually waits for a condition that something else makes true.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	eventuallyWithin(t, patience, what, condition)
}

// eventuallyWithin is eventually for what takes longer.
func eventuallyWithin(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		failIfOver(t)
		if time.Now().After(deadline) {
			t.Fatalf("after %s: still not: %s", limit, what)
		}
		<-tick.C
	}
}

// migrated brings a server's schema up and makes the business table.
func migrated(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if err := migrations.Up(t.Context(), conn, migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `create table effects (id text not null, value text not null)`); err != nil {
		t.Fatal(err)
	}
}

func openPool(t *testing.T, dsn string, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 10
	config.ConnConfig.ConnectTimeout = 3 * time.Second
	config.ConnConfig.DefaultQueryExecMode = mode
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// queue is a config whose handler makes a row and emits an effect for each message.
func queue(t *testing.T, topic string) consumer.Config {
	t.Helper()
	return consumer.Config{
		Queue: "q-" + topic, Topics: []string{topic},
		Rules: dedup.Rules{ID: []dedup.Source{dedup.Header("id")}},
		Handler: consumer.Pipelined(func(_ context.Context, b *pgx.Batch, m *consumer.Message) error {
			b.Queue(`insert into public.effects (id, value) values ($1, $2)`, m.Identity.ID, string(m.Record.Value))
			return m.Emit(outbox.Effect{Name: "done", Topic: topic + "-effects", Key: m.Record.Key, Value: m.Record.Value})
		}),
		Start:            consumer.StartEarliest(),
		SessionTimeout:   6 * time.Second,
		RebalanceTimeout: 20 * time.Second,
		HandlerTimeout:   10 * time.Second,
		RevokeBudget:     time.Second,
		CommitInterval:   100 * time.Millisecond,
		Batch:            consumer.BatchLimits{Messages: 50},
		Logger:           logger(t),
	}
}

func start(t *testing.T, pool *pgxpool.Pool, brokers []string, config consumer.Config, kafka ...kgo.Opt) *consumer.Consumer {
	t.Helper()
	q, err := consumer.New(pool, append(kafka, kgo.SeedBrokers(brokers...)), config)
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := q.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return q
}

func startRelay(t *testing.T, pool *pgxpool.Pool, brokers []string) *outbox.Relay {
	t.Helper()
	return startRelayIn(t, pool, brokers, migrations.DefaultSchema)
}

func startRelayIn(t *testing.T, pool *pgxpool.Pool, brokers []string, schema string, kafka ...kgo.Opt) *outbox.Relay {
	t.Helper()
	relay, err := outbox.NewRelay(pool, append(kafka, kgo.SeedBrokers(brokers...)), outbox.RelayConfig{Schema: schema, Logger: logger(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := relay.Stop(ctx); err != nil {
			t.Errorf("stop the relay: %v", err)
		}
	})
	return relay
}

func client(t *testing.T, brokers []string, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append(options, kgo.SeedBrokers(brokers...))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// produce writes messages m<from>..m<to-1>, spread by key.
func produce(t *testing.T, c *kgo.Client, topic string, from, to int) {
	t.Helper()
	records := make([]*kgo.Record, 0, to-from)
	for i := from; i < to; i++ {
		records = append(records, message(topic, i))
	}
	if err := c.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// number asks a database for one number; while the database is away it is -1.
func number(t *testing.T, pool *pgxpool.Pool, sql string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var n int
	if err := pool.QueryRow(ctx, sql).Scan(&n); err != nil {
		return -1
	}
	return n
}

// published reads a topic to its present end and returns how often each value
// stands there under each header id.
func published(t *testing.T, brokers []string, topic string) map[string]map[string]int {
	t.Helper()
	c := client(t, brokers, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ends, err := kadm.NewClient(c).ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += o.Offset })
	found := map[string]map[string]int{}
	for left > 0 {
		fetches := c.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			value := string(r.Value)
			if found[value] == nil {
				found[value] = map[string]int{}
			}
			for _, h := range r.Headers {
				if h.Key == outbox.HeaderID {
					found[value][string(h.Value)]++
				}
			}
		})
	}
	return found
}

// logger writes to the test's log until the test has ended, and remembers.
func logger(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(&testLog{t: t}, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// quiet is for tests in which every message is told.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

type testLog struct {
	t  *testing.T
	mu sync.Mutex
}

func (l *testLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.t.Context().Err() == nil {
		l.t.Logf("%s", line)
	}
	return len(line), nil
}

// freshProducer knows nothing of what a topic was before.
func freshProducer(t *testing.T, brokers []string, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	return client(t, brokers, append(options, kgo.MetadataMinAge(100*time.Millisecond))...)
}

// produceTo is produce for partitions of the caller's choice, in turn by key.
func produceTo(t *testing.T, brokers []string, topic string, partitions []int32, from, to int) {
	t.Helper()
	c := freshProducer(t, brokers, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	records := make([]*kgo.Record, 0, to-from)
	for i := from; i < to; i++ {
		r := message(topic, i)
		r.Partition = partitions[i%11%len(partitions)]
		records = append(records, r)
	}
	if err := c.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// message is message number i.
func message(topic string, i int) *kgo.Record {
	id := "m" + strconv.Itoa(i)
	return &kgo.Record{
		Topic: topic, Key: []byte("k" + strconv.Itoa(i%11)), Value: []byte("value of " + id),
		Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}},
	}
}
