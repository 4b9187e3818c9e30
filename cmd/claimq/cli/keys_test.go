package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/kafkatest"
	"github.com/claimq/claimq/internal/keystry"
)

// fakeKafka is a Kafka in the process with one partition for each topic.
func fakeKafka(t *testing.T, topics ...string) *kfake.Cluster {
	t.Helper()
	return kafkatest.Fake(t, kfake.NumBrokers(1), kfake.SeedTopics(1, topics...))
}

func brokersOf(cluster *kfake.Cluster) string { return strings.Join(cluster.ListenAddrs(), ",") }

func withID(id, value string) *kgo.Record {
	return &kgo.Record{Value: []byte(value), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}}
}

// trialTopic holds two distinct messages, a repeat, a conflict, one without an id,
// and a conversation of four.
func trialTopic(t *testing.T) *kfake.Cluster {
	t.Helper()
	cluster := fakeKafka(t, "orders")
	records := []*kgo.Record{
		withID("o-1", `{"total":1,"trace":"a"}`), withID("o-2", `{"total":2}`), withID("o-1", `{"total":1,"trace":"a"}`),
		withID("o-1", `{"total":1,"trace":"b"}`),
		{Value: []byte(`{}`)},
	}
	for i := range 4 {
		records = append(records, withID("conversation", fmt.Sprintf(`{"step":%d}`, i)))
	}
	kafkatest.ProduceOn(t, cluster.ListenAddrs(), "orders", records...)
	return cluster
}

func TestKeysTryTellsWhatARuleWouldDo(t *testing.T) {
	t.Parallel()
	cluster := trialTopic(t)
	env := newTestEnv(t, "CLAIMQ_BROKERS="+brokersOf(cluster))
	said := env.mustRun("keys", "try", "--topic", "orders", "--id", "header:id")
	wantAll(t, said,
		"9 records of orders, the newest of 1 partition",
		"distinct           3  33.3 %  handled",
		"repeats            1  11.1 %  dropped as duplicates",
		"conflicts          4  44.4 %",
		"without an id      1  11.1 %",
		"unreadable         0   0.0 %",
		"step", "trace",
		"conversation", "a whole conversation shares",
		"orders[0]@3", "orders[0]@0", "differs in trace",
		"Nothing was written.",
	)
	if strings.Contains(said, `"total"`) {
		t.Errorf("payloads are printed:\n%s", said)
	}
}

func TestKeysTryAsJSON(t *testing.T) {
	t.Parallel()
	cluster := trialTopic(t)
	env := newTestEnv(t, "CLAIMQ_BROKERS="+brokersOf(cluster))
	report := decodeJSON[keystry.Report](t, env.mustRun("keys", "try", "-t", "orders", "--id", "header:id", "--json"))
	if report.Records != 9 || report.Distinct != 3 || report.Repeats != 1 || report.Conflicts != 4 || report.Missing != 1 || report.SharedIDs != 1 {
		t.Errorf("keys try --json: %+v", report)
	}
}

func TestKeysTryOfAQueueAndOfAChangeToItsRule(t *testing.T) {
	t.Parallel()
	cluster := trialTopic(t)
	config := writeFile(t, "claimq.yaml", `
queues:
  orders:
    topics: [orders]
    id: header:id
    on_missing: offset
    handler: {sql: "select @ids"}
`)
	env := newTestEnv(t, "CLAIMQ_BROKERS="+brokersOf(cluster))
	report := decodeJSON[keystry.Report](t, env.mustRun("keys", "try", "-c", config, "--queue", "orders", "--json"))
	if report.ByOffset != 1 || report.Conflicts != 4 || report.Missing != 0 {
		t.Errorf("the queue's own rule: %+v", report)
	}
	report = decodeJSON[keystry.Report](t, env.mustRun("keys", "try", "-c", config, "--queue", "orders", "--json",
		"--fingerprint", "raw ignore(trace)", "--on-missing", "reject"))
	if report.Repeats != 2 || report.Conflicts != 3 || report.Missing != 1 {
		t.Errorf("with trace left out of the fingerprint and ids required: %+v", report)
	}
	report = decodeJSON[keystry.Report](t, env.mustRun("keys", "try", "-c", config, "--queue", "orders", "--json", "--id", "json:step", "--last", "4"))
	if report.Records != 4 || report.Distinct != 4 {
		t.Errorf("another id rule over the last four: %+v", report)
	}
}

func TestKeysTryOfAnEmptyTopicFindsNothing(t *testing.T) {
	t.Parallel()
	cluster := fakeKafka(t, "orders")
	env := newTestEnv(t, "CLAIMQ_BROKERS="+brokersOf(cluster))
	env.refuse(ExitNothing, "keys", "try", "--topic", "orders", "--id", "key")
	wantAll(t, env.stdout.String(), "nothing to try the rule on")
}

func TestKeysTryLeavesNothingInKafka(t *testing.T) {
	t.Parallel()
	cluster := trialTopic(t)
	admin := kadm.NewClient(kafkatest.Client(t, cluster.ListenAddrs()))
	newTestEnv(t, "CLAIMQ_BROKERS="+brokersOf(cluster)).mustRun("keys", "try", "--topic", "orders", "--id", "header:id")
	groups, err := admin.ListGroups(t.Context())
	if err != nil || len(groups) != 0 {
		t.Errorf("the groups are %v, %v, want none", groups, err)
	}
	ends, err := admin.ListEndOffsets(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if end, _ := ends.Lookup("orders", 0); end.Offset != 9 {
		t.Errorf("the topic ends at %d, want 9 as before", end.Offset)
	}
}

func TestKeysTryRefusesWhatCannotBeTried(t *testing.T) {
	t.Parallel()
	cluster := fakeKafka(t, "orders")
	config := writeFile(t, "claimq.yaml", "queues:\n  orders: {topics: orders, id: key, handler: {sql: select @ids}}\n")
	env := newTestEnv(t, "CLAIMQ_BROKERS="+brokersOf(cluster))
	for _, tt := range []struct {
		code int
		said []string
		args []string
	}{
		{ExitUsage, []string{"no topic is named"}, []string{"--id", "key"}},
		{ExitUsage, []string{"no id rule", "--id header:NAME"}, []string{"--topic", "orders"}},
		{ExitUsage, []string{"--id", `did you mean "header"?`}, []string{"--topic", "orders", "--id", "heder:id"}},
		{ExitUsage, []string{"--tenant", "--operation"}, []string{"--topic", "orders", "--id", "key", "--tenant", "x", "--operation", "y"}},
		{ExitUsage, []string{"--fingerprint"}, []string{"--topic", "orders", "--id", "key", "--fingerprint", "rawr"}},
		{ExitUsage, []string{"--on-missing"}, []string{"--topic", "orders", "--id", "key", "--on-missing", "x"}},
		{ExitUsage, []string{"same for every message"}, []string{"--topic", "orders", "--id", "const:x"}},
		{ExitUsage, []string{"--last"}, []string{"--topic", "orders", "--id", "key", "--last", "0"}},
		{ExitUsage, []string{`did you mean orders?`}, []string{"-c", config, "--queue", "order"}},
		{ExitNothing, []string{`did you mean "orders"?`}, []string{"--topic", "order", "--id", "key"}},
	} {
		wantAll(t, env.refuse(tt.code, append([]string{"keys", "try"}, tt.args...)...), tt.said...)
	}
}

func TestKeysTryWithoutKafka(t *testing.T) {
	t.Parallel()
	wantAll(t, newTestEnv(t).refuse(ExitConfig, "keys", "try", "--topic", "orders", "--id", "key"), "no broker is named")
}

func TestKeysTryWithBrokersThatAreNotThere(t *testing.T) {
	t.Parallel()
	cluster := fakeKafka(t, "orders")
	brokers := brokersOf(cluster)
	cluster.Close()
	env := newTestEnv(t, "CLAIMQ_BROKERS="+brokers)
	wantAll(t, env.refuse(ExitFailed, "keys", "try", "--topic", "orders", "--id", "key"), "no broker answers")
}
