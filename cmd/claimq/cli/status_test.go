package cli

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/kafkatest"
)

func TestStatusOfQueues(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	wantAll(t, env.mustRun("status"), "No queue is known yet")
	dbExec(t, db, `insert into claimq.queues (name, group_name, rule, config, owner_team, owner_contact) values
		('orders', 'orders', 'r', '{"claims": "id"}', 'shop', '#shop-oncall'), ('audit', 'audit', 'r', '{"claims": "none"}', '', '')`)
	dbExec(t, db, `update claimq.queues set paused_at = now() - interval '3 minutes', paused_by = 'ada', paused_why = 'target down' where name = 'audit'`)
	dbExec(t, db, `insert into claimq.workers (instance, queues, host, version, stats, seen_at) values
		('w1', '{orders}', 'h', 'v', '{"orders": {"processed_hour": 1200, "handler_ms_avg": 2.34, "lag": 17, "fenced": 2}}', now()),
		('w2', '{orders}', 'h', 'v', '{}', now() - interval '1 hour')`)
	dbExec(t, db, `insert into claimq.delayed_keys (queue, order_key, ready_at) values (1, gen_random_uuid(), now() + interval '1 hour'), (1, gen_random_uuid(), now() - interval '1 second')`)
	dbExec(t, db, `insert into claimq.delayed (id, queue, kind, order_key, due_at, record_topic, record_at)
		select gen_random_uuid(), 1, 'failed', k.order_key, k.ready_at, 't', now() from claimq.delayed_keys k, generate_series(1, 2)`)
	dbExec(t, db, `insert into claimq.positions (slot, id, queue, topics, partitions, epochs, offsets, leader_epochs, written_at)
		values (0, gen_random_uuid(), 1, '{1}', '{0}', '{1}', '{5}', '{0}', now() - interval '90 seconds')`)
	dbExec(t, db, `insert into claimq.outbox (bucket, id, topic) values (0, gen_random_uuid(), 'effects')`)

	said := env.mustRun("status")
	lines := strings.Split(said, "\n")
	wantAll(t, strings.Join(strings.Fields(lines[0]), " "), "QUEUE STATE SCHEDULED READY BLOCKED LAST HOUR AVG BROKEN LAG WORKERS OWNER POSITION REMEMBERS SINCE")
	wantAll(t, strings.Join(strings.Fields(lines[1]), " "), "audit paused 0 0 0 - - 0 - 0 - - claims nothing")
	wantAll(t, strings.Join(strings.Fields(lines[2]), " "), "orders running 1 1 2 1200 2.3 ms 0 17 1 shop 1m3")
	wantAll(t, said, "outbox: 1 to publish", "audit: paused 3m ago by ada: target down", "orders: 1 worker is silent", "fenced 2 times", "contact: #shop-oncall")

	report := decodeJSON[statusReport](t, env.mustRun("status", "--queue", "orders", "--json"))
	if len(report.Queues) != 1 || report.Queues[0].Name != "orders" || report.Outbox.Waiting != 1 || report.At.IsZero() {
		t.Errorf("status --json: %+v", report)
	}
	if q := report.Queues[0]; q.Ready != 1 || q.Scheduled != 1 || q.Blocked != 2 || *q.ProcessedHour != 1200 || q.RememberedSince == nil {
		t.Errorf("status --json of orders: %+v", q)
	}
}

func TestStatusNamesTheNearestQueue(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	addQueue(t, db, "orders")
	wantAll(t, env.refuse(ExitNothing, "status", "--queue", "order"), `did you mean "orders"?`)
	wantAll(t, env.refuse(ExitUsage, "status", "--every", "1ms"), "--every")
}

func TestStatusAsksKafkaForTheLagOfAQueueWithoutAWorker(t *testing.T) {
	t.Parallel()
	f := newPositionFixture(t)
	f.stand(1, 0, 4)
	f.stand(1, 1, 9)
	report := decodeJSON[statusReport](t, f.mustRun("status", "--json"))
	if lag := report.Queues[0].Lag; lag == nil || *lag != 7 {
		t.Errorf("the lag is %v, want 6 + 1", lag)
	}
	f.cluster.Close()
	report = decodeJSON[statusReport](t, f.mustRun("status", "--json"))
	if lag := report.Queues[0].Lag; lag != nil {
		t.Errorf("without Kafka the lag is %d, want none", *lag)
	}
	wantAll(t, f.stderr.String(), "lag of queues without a worker is not known")
}

func TestStatusDoesNotAskKafkaWhenWorkersTellTheLag(t *testing.T) {
	t.Parallel()
	f := newPositionFixture(t)
	f.stand(1, 0, 4)
	dbExec(t, f.db, `insert into claimq.workers (instance, queues, host, version, stats) values ('w1', '{q}', 'h', 'v', '{"q": {"lag": 3}}')`)
	f.cluster.Close()
	report := decodeJSON[statusReport](t, f.mustRun("status", "--json"))
	if lag := report.Queues[0].Lag; lag == nil || *lag != 3 || f.stderr.String() != "" {
		t.Errorf("the lag is %v and standard error %q, want the worker's 3 and nothing", lag, f.stderr)
	}
}

// A watch shows what changes, and ends without failure by a signal.
func TestStatusWatchEndsByASignal(t *testing.T) {
	t.Parallel()
	env, db := databaseEnv(t)
	addQueue(t, db, "orders")
	signals := make(chan os.Signal, 1)
	env.Signals = signals
	env.stdout, env.stderr = &buffer{}, &buffer{}
	env.Stdout, env.Stderr = env.stdout, env.stderr
	done := make(chan int, 1)
	go func() { done <- Run(t.Context(), []string{"status", "--watch", "--every", "100ms"}, env.Env) }()
	waitForText(t, env.stdout, "stopped")
	dbExec(t, db, `insert into claimq.workers (instance, queues, host, version) values ('w1', '{orders}', 'h', 'v')`)
	waitForText(t, env.stdout, "running")
	signals <- os.Interrupt
	select {
	case code := <-done:
		if code != ExitOK {
			t.Errorf("the watch ended with %d\n%s", code, env.stderr)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the watch did not end within 10 s of its signal")
	}
	if strings.Contains(env.stdout.String(), "\x1b") {
		t.Error("a terminal's commands are written to what is none")
	}
}

// waitForText waits until a command has written a text.
func waitForText(t *testing.T, written *buffer, text string) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !strings.Contains(written.String(), text) {
		select {
		case <-look.C:
		case <-deadline.C:
			t.Fatalf("there was no %q within 10 s in:\n%s", text, written)
		}
	}
}

// The producer's records and what claimq shows of them stay in step.
func TestStatusLagFollowsTheTopic(t *testing.T) {
	t.Parallel()
	f := newPositionFixture(t)
	f.stand(1, 0, 10)
	kafkatest.ProduceOn(t, f.cluster.ListenAddrs(), "orders", &kgo.Record{Value: []byte("x")}, &kgo.Record{Value: []byte("y")})
	report := decodeJSON[statusReport](t, f.mustRun("status", "--json", "-q", "q"))
	if lag := report.Queues[0].Lag; lag == nil || *lag != 2 {
		t.Errorf("the lag is %v, want 2", lag)
	}
}
