package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/internal/pgtest"
)

// patience bounds every wait of a test for something that must happen.
const patience = 30 * time.Second

// A rig is a Kafka in this process, a schema of its own in the real Postgres, a
// business table, and what the tests ask them.
type rig struct {
	t        *testing.T
	db       *pgtest.DB
	kafka    *kfake.Cluster
	producer *kgo.Client
	topic    string
	registry *prometheus.Registry
	metrics  *consumer.Metrics
	atGate   atomic.Int32 // handlers that wait in gated
}

func newRig(t *testing.T, partitions int32) *rig {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, "orders"), kfake.SleepOutOfOrder())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	r := &rig{t: t, db: pgtest.New(t), kafka: cluster, topic: "orders", registry: prometheus.NewRegistry()}
	if r.metrics, err = consumer.NewMetrics(r.registry); err != nil {
		t.Fatal(err)
	}
	if r.producer, err = kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.producer.Close)
	r.exec(`create table ` + r.db.Schema + `.effects (n bigint generated always as identity, id text not null, value bytea, seen int not null default 1)`)
	return r
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.db.Pool.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// count asks for one number; %s in sql is the schema.
func (r *rig) count(sql string, args ...any) (n int) {
	r.t.Helper()
	if err := r.db.Pool.QueryRow(r.t.Context(), fmt.Sprintf(sql, r.db.Schema), args...).Scan(&n); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// strings asks for a column of text.
func (r *rig) strings(sql string, args ...any) []string {
	r.t.Helper()
	rows, err := r.db.Pool.Query(r.t.Context(), fmt.Sprintf(sql, r.db.Schema), args...)
	if err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
	return list
}

// eventually waits for a condition that something else makes true.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("after %s: still not: %s", patience, what)
		}
		<-tick.C
	}
}

// produce appends records and waits for them.
func (r *rig) produce(records ...*kgo.Record) {
	r.t.Helper()
	for _, record := range records {
		if record.Topic == "" {
			record.Topic = r.topic
		}
	}
	if err := r.producer.ProduceSync(r.t.Context(), records...).FirstErr(); err != nil {
		r.t.Fatal(err)
	}
}

// message makes a record of a partition with an id, an order key and a value.
func message(partition int32, id, key, value string) *kgo.Record {
	record := &kgo.Record{Partition: partition, Value: []byte(value), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}}
	if key != "" {
		record.Key = []byte(key)
	}
	return record
}

func (r *rig) messages(partition int32, from, to int) []*kgo.Record {
	var records []*kgo.Record
	for i := from; i < to; i++ {
		id := "m" + strconv.Itoa(i)
		records = append(records, message(partition, id, "k"+strconv.Itoa(i%7), "value of "+id))
	}
	return records
}

// config is a queue with short times.
func (r *rig) config() consumer.Config {
	return consumer.Config{
		Queue: "orders-q", Topics: []string{r.topic}, Schema: r.db.Schema,
		Rules:            dedup.Rules{ID: []dedup.Source{dedup.Header("id")}},
		Handler:          r.insert(),
		Start:            consumer.StartEarliest(),
		SessionTimeout:   6 * time.Second,
		RebalanceTimeout: 20 * time.Second,
		HandlerTimeout:   10 * time.Second,
		RevokeBudget:     time.Second,
		StopBudget:       5 * time.Second,
		CommitInterval:   100 * time.Millisecond,
		Metrics:          r.metrics,
		Logger:           slog.New(slog.NewTextHandler(testWriter{r.t}, &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
}

// insert writes one row a message.
func (r *rig) insert() consumer.Handler {
	sql := `insert into ` + r.db.Schema + `.effects (id, value) values ($1, $2)`
	return consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
		_, err := tx.Exec(ctx, sql, m.Identity.ID, m.Record.Value)
		return err
	})
}

// start starts a consumer and stops it at the end of the test.
func (r *rig) start(c consumer.Config) *consumer.Consumer {
	r.t.Helper()
	q, err := r.tryStart(c, r.db.Pool)
	if err != nil {
		r.t.Fatal(err)
	}
	return q
}

func (r *rig) tryStart(c consumer.Config, pool *pgxpool.Pool) (*consumer.Consumer, error) {
	q, err := consumer.New(pool, []kgo.Opt{kgo.SeedBrokers(r.kafka.ListenAddrs()...)}, c)
	if err != nil {
		return nil, err
	}
	if err := q.Start(r.t.Context()); err != nil {
		return nil, err
	}
	r.t.Cleanup(func() { r.stop(q) })
	return q, nil
}

func (r *rig) stop(q *consumer.Consumer) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := q.Stop(ctx); err != nil {
		r.t.Errorf("stop: %v", err)
	}
}

// outcome reads the counter of an outcome.
func (r *rig) outcome(name string) int {
	r.t.Helper()
	return r.metric("claimq_messages_total", "outcome", name)
}

// metric sums a counter over its series that have a label's value; "" is all.
func (r *rig) metric(name, label, value string) int {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			matches := label == ""
			for _, l := range m.GetLabel() {
				matches = matches || l.GetName() == label && l.GetValue() == value
			}
			if matches {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return int(sum)
}

// position is a partition's position in Postgres, -1 without one.
func (r *rig) position(partition int32) int {
	r.t.Helper()
	return r.count(`select coalesce((select max(p.next_offset) from %[1]s.queues q, %[1]s.positions_of(q.id) p where p.partition = $1), -1)`, partition)
}

// testWriter sends log lines to the test's log, until the test has ended.
type testWriter struct{ t *testing.T }

var logMu sync.Mutex

func (w testWriter) Write(line []byte) (int, error) {
	logMu.Lock()
	defer logMu.Unlock()
	if w.t.Context().Err() == nil {
		w.t.Logf("%s", line)
	}
	return len(line), nil
}

var errBoom = errors.New("boom")

// never is a retry policy whose second attempt no test lives to see; soon is one
// that comes at once.
var (
	never = delayq.Policy{InitialDelay: time.Hour}
	soon  = delayq.Policy{InitialDelay: time.Millisecond, NoJitter: true, Factor: 1}
)
