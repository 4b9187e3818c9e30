package cli

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/pgtest"
)

// topicWith makes a topic that keeps records as told.
func topicWith(t *testing.T, cluster *kfake.Cluster, topic string, configs map[string]string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	values := map[string]*string{}
	for name, value := range configs {
		values[name] = &value
	}
	response, err := kadm.NewClient(client).CreateTopic(context.WithoutCancel(t.Context()), 1, 1, values, topic)
	if err != nil || response.Err != nil {
		t.Fatalf("create topic %s: %v %v", topic, err, response.Err)
	}
}

func TestTopicsThatKeepLongerThanIdsAreRememberedAreWarnedOf(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	table := sink(t, db)
	kafka := startKafka(t)
	const day = 24 * 60 * 60 * 1000
	topicWith(t, kafka, "short", map[string]string{"retention.ms": fmt.Sprint(7 * day)})
	topicWith(t, kafka, "equal", map[string]string{"retention.ms": fmt.Sprint(8 * day)})
	topicWith(t, kafka, "long", map[string]string{"retention.ms": fmt.Sprint(30 * day)})
	topicWith(t, kafka, "forever", map[string]string{"retention.ms": "-1"})
	topicWith(t, kafka, "compacted", map[string]string{"cleanup.policy": "compact", "retention.ms": fmt.Sprint(day)})
	topicWith(t, kafka, "both", map[string]string{"cleanup.policy": "compact,delete", "retention.ms": fmt.Sprint(7 * day)})
	queues := fmt.Sprintf(`
  all:
    topics: [short, equal, long, forever, compacted, both]
    id: header:id
    operation: topic
    handler: {sql: "insert into %[1]s select 'q', unnest(@ids)"}
  positions:
    topics: [long]
    claims: none
    handler: {sql: "insert into %[1]s select 'q', unnest(@key_texts)"}
`, table)
	env := newTestEnv(t)
	got := env.mustRun("config", "check", "--online", "-c", runFile(t, db.DSN, db.Schema, kafka.ListenAddrs(), queues))
	wantAll(t, got,
		"warning: topic long keeps records for 30d (retention.ms) and queue all remembers ids for 8d: if it is read again from further back than that, the older records run again",
		"warning: topic forever keeps records for ever (retention.ms)",
		"warning: topic compacted keeps records for ever (it is compacted)")
	if n := strings.Count(got, "warning:"); n != 3 {
		t.Errorf("%d warnings, want 3:\n%s", n, got)
	}
}

func TestAnOnlineCheckFindsWhatRunWouldRefuse(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	table := sink(t, db)
	kafka := startKafka(t, "a")
	brokers := kafka.ListenAddrs()
	check := func(code int, queues string, want ...string) {
		t.Helper()
		env := newTestEnv(t)
		wantAll(t, env.refuse(code, "config", "check", "--online", "-c", runFile(t, db.DSN, db.Schema, brokers, queues)), want...)
		wantAll(t, env.stdout.String(), "queue first")
	}
	good := queueYAML("first", table, "a")
	check(ExitOK, good)
	check(ExitFailed, good+queueYAML("second", table, "none"), `queue "second": Kafka has no topic none`)
	check(ExitConfig, queueYAML("first", db.Schema+".none", "a"), "queues.first.handler.sql: ", "SQLSTATE 42P01")

	p := start(t, newTestEnv(t), "-c", runFile(t, db.DSN, db.Schema, brokers, good))
	p.waitReady()
	p.stop()
	check(ExitOK, good)
	check(ExitConfig, strings.Replace(good, "header:id", "key", 1), "its id rule has changed")
	check(ExitConfig, good+"    group: other\n", `run by consumer group "first" and this worker's is "other"`)
}

func TestAnOnlineCheckTellsWhatCannotBeReached(t *testing.T) {
	t.Parallel()
	gate := newGate(t, "127.0.0.1:1")
	env := newTestEnv(t)
	file := runFile(t, "postgres://u:"+topSecret+"@"+gate.address()+"/d", "claimq", []string{gate.address()}, queueYAML("first", "x", "a"))
	got := env.refuse(ExitFailed, "config", "check", "--online", "-c", file)
	wantAll(t, got, "claimq: Kafka: ", "kafka.tls", "claimq: database: failed to connect to")
	if strings.Contains(got, topSecret) {
		t.Errorf("the password is told:\n%s", got)
	}
	// What needs no connection is told all the same.
	wantAll(t, env.stdout.String(), "queue first")
	env.mustRun("config", "check", "-c", file)
}
