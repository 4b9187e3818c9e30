package keystry_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/kafkatest"
	"github.com/claimq/claimq/internal/keystry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a Kafka with the topic orders.
func fake(t *testing.T, partitions int32) (*kfake.Cluster, []kgo.Opt) {
	t.Helper()
	cluster := kafkatest.Fake(t, kfake.NumBrokers(1), kfake.SeedTopics(partitions, "orders"))
	return cluster, []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)}
}

func message(id, value string) *kgo.Record {
	r := &kgo.Record{Value: []byte(value)}
	if id != "" {
		r.Headers = []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}
	}
	return r
}

func produce(t *testing.T, cluster *kfake.Cluster, records ...*kgo.Record) {
	t.Helper()
	kafkatest.ProduceOn(t, cluster.ListenAddrs(), "orders", records...)
}

func try(t *testing.T, client []kgo.Opt, last int, rules dedup.Rules) keystry.Report {
	t.Helper()
	report, err := keystry.Try(t.Context(), client, keystry.Options{Topics: []string{"orders"}, Last: last, Rules: rules, Queue: "q"})
	if err != nil {
		t.Fatalf("Try: %v", err)
	}
	return report
}

var byHeader = dedup.Rules{ID: []dedup.Source{dedup.Header("id")}}

// counts are the five kinds, which together are all records.
func counts(r keystry.Report) []int {
	return []int{r.Distinct, r.Repeats, r.Conflicts, r.Missing, r.Undecodable}
}

func wantWarning(t *testing.T, r keystry.Report, part string) {
	t.Helper()
	for _, w := range r.Warnings {
		if strings.Contains(w, part) {
			return
		}
	}
	t.Errorf("no warning holds %q: %q", part, r.Warnings)
}

func TestTryTellsEachKind(t *testing.T) {
	t.Parallel()
	cluster, client := fake(t, 1)
	null := &kgo.Record{Value: []byte(`{"total":4}`), Headers: []kgo.RecordHeader{{Key: "id"}}}
	// The third repeats the first, the fourth conflicts with it, the last two have no id.
	produce(t, cluster,
		message("a", `{"total":1,"trace":"x"}`),
		message("b", `{"total":2}`),
		message("a", `{"total":1,"trace":"x"}`),
		message("a", `{"total":1,"trace":"y"}`),
		message("", `{"total":3}`),
		null,
	)
	r := try(t, client, 100, byHeader)
	if diff := cmp.Diff([]int{2, 1, 1, 2, 0}, counts(r)); diff != "" {
		t.Errorf("distinct, repeats, conflicts, missing, undecodable (-want +got):\n%s", diff)
	}
	place := func(offset int64) keystry.Place {
		return keystry.Place{Topic: "orders", Partition: 0, Offset: offset}
	}
	first := place(0)
	want := keystry.Samples{
		Repeats:   []keystry.Sample{{Place: place(2), ID: "a", First: &first}},
		Conflicts: []keystry.Sample{{Place: place(3), ID: "a", First: &first, Fields: []string{"trace"}}},
		Missing:   []keystry.Sample{{Place: place(4)}, {Place: place(5)}},
	}
	if diff := cmp.Diff(want, r.Samples); diff != "" {
		t.Errorf("the samples (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]keystry.FieldCount{{Path: "trace", Count: 1}}, r.ConflictFields); diff != "" {
		t.Errorf("the conflicts' fields (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]keystry.Range{{Topic: "orders", From: 0, To: 6, Records: 6}}, r.Ranges); diff != "" {
		t.Errorf("what was read (-want +got):\n%s", diff)
	}
	wantWarning(t, r, "1 message has the id of an earlier one")
	wantWarning(t, r, `"trace"`)
	wantWarning(t, r, "2 messages have no id")
	if r.SharedIDs != 0 {
		t.Errorf("%d ids look shared, want none: two payloads are a producer's mistake", r.SharedIDs)
	}
}

func TestTryTellsWhatTheRuleCannotRead(t *testing.T) {
	t.Parallel()
	cluster, client := fake(t, 1)
	produce(t, cluster, message("", `{"id":"a"}`), message("", `no json`), message("", `{"id":{}}`))
	r := try(t, client, 100, dedup.Rules{ID: []dedup.Source{dedup.JSON("id")}})
	if diff := cmp.Diff([]int{1, 0, 0, 0, 2}, counts(r)); diff != "" {
		t.Errorf("distinct, repeats, conflicts, missing, undecodable (-want +got):\n%s", diff)
	}
	if len(r.Samples.Undecodable) != 2 || r.Samples.Undecodable[0].Reason == "" || r.Samples.Undecodable[0].Offset != 1 {
		t.Errorf("the samples are %+v", r.Samples.Undecodable)
	}
	for _, s := range r.Samples.Undecodable {
		if strings.Contains(s.Reason, "no json") {
			t.Errorf("the reason quotes the payload: %s", s.Reason)
		}
	}
	wantWarning(t, r, "2 messages cannot be read by the rule")
}

// A correlation id stands on every message of a conversation.
func TestTryFindsAnIDThatAConversationShares(t *testing.T) {
	t.Parallel()
	cluster, client := fake(t, 1)
	start := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	var records []*kgo.Record
	for i := range 40 {
		m := message(fmt.Sprintf("conversation-%d", i%2), fmt.Sprintf(`{"step":%d}`, i))
		m.Timestamp = start.Add(time.Duration(i) * time.Minute)
		records = append(records, m)
	}
	records = append(records, message("single", `{}`))
	produce(t, cluster, records...)
	r := try(t, client, 100, byHeader)
	if r.SharedIDs != 2 || len(r.Shared) != 2 {
		t.Fatalf("%d ids look shared, want 2: %+v", r.SharedIDs, r.Shared)
	}
	want := keystry.Shared{
		ID: "conversation-0", First: keystry.Place{Topic: "orders"}, Records: 20, Payloads: 20,
		From: start, To: start.Add(38 * time.Minute),
	}
	if diff := cmp.Diff(want, r.Shared[0]); diff != "" {
		t.Errorf("the worst (-want +got):\n%s", diff)
	}
	wantWarning(t, r, "a whole conversation shares")
}

// Without a fingerprint such messages are no conflicts, and all the same lost.
func TestTryFindsASharedIDWithoutFingerprint(t *testing.T) {
	t.Parallel()
	cluster, client := fake(t, 1)
	produce(t, cluster, message("c", "1"), message("c", "2"), message("c", "3"))
	rules := byHeader
	rules.Fingerprint = dedup.None()
	r := try(t, client, 100, rules)
	if diff := cmp.Diff([]int{1, 2, 0, 0, 0}, counts(r)); diff != "" {
		t.Errorf("distinct, repeats, conflicts, missing, undecodable (-want +got):\n%s", diff)
	}
	if r.SharedIDs != 1 {
		t.Errorf("%d ids look shared, want 1", r.SharedIDs)
	}
	wantWarning(t, r, "the fingerprint is none")
}

func TestTryKnowsMessagesWithoutAnIDByTheirOffset(t *testing.T) {
	t.Parallel()
	cluster, client := fake(t, 1)
	produce(t, cluster, message("", "x"), message("", "x"))
	rules := byHeader
	rules.OnMissing = dedup.MissingOffset
	r := try(t, client, 100, rules)
	if r.Distinct != 2 || r.ByOffset != 2 || r.Missing != 0 {
		t.Errorf("distinct %d, by offset %d, missing %d, want 2, 2, 0", r.Distinct, r.ByOffset, r.Missing)
	}
	wantWarning(t, r, "handled twice")
}

func TestTryReadsTheNewest(t *testing.T) {
	t.Parallel()
	cluster, client := fake(t, 3)
	var records []*kgo.Record
	for partition, n := range []int{2, 50, 100} {
		for i := range n {
			m := message(fmt.Sprintf("%d-%d", partition, i), "x")
			m.Partition = int32(partition)
			records = append(records, m)
		}
	}
	produce(t, cluster, records...)
	for _, tt := range []struct {
		last int
		from []int64
	}{
		{30, []int64{0, 36, 86}}, // the two of the first, 14 each of the others
		{1000, []int64{0, 0, 0}},
		{152, []int64{0, 0, 0}},
		{3, []int64{1, 49, 99}},
		{1, []int64{1, 49, 99}}, // one each at least
	} {
		r := try(t, client, tt.last, byHeader)
		var from []int64
		read := 0
		for _, part := range r.Ranges {
			from = append(from, part.From)
			read += part.Records
			if int64(part.Records) != part.To-part.From {
				t.Errorf("last %d: partition %d has %d records from %d to %d", tt.last, part.Partition, part.Records, part.From, part.To)
			}
		}
		if diff := cmp.Diff(tt.from, from); diff != "" {
			t.Errorf("last %d: the beginnings (-want +got):\n%s", tt.last, diff)
		}
		if read != r.Records || r.Distinct != read {
			t.Errorf("last %d: %d records, %d of them distinct, and the ranges hold %d", tt.last, r.Records, r.Distinct, read)
		}
	}
}

func TestTryAcrossTopics(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Fake(t, kfake.NumBrokers(1), kfake.SeedTopics(1, "orders", "refunds"))
	client := []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)}
	kafkatest.ProduceOn(t, cluster.ListenAddrs(), "orders", message("a", "1"))
	kafkatest.ProduceOn(t, cluster.ListenAddrs(), "refunds", message("a", "1"))
	o := keystry.Options{Topics: []string{"orders", "refunds"}, Last: 10, Rules: byHeader, Queue: "q"}
	r, err := keystry.Try(t.Context(), client, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Distinct != 1 || r.Repeats != 1 {
		t.Errorf("without an operation: distinct %d, repeats %d, want 1 and 1", r.Distinct, r.Repeats)
	}
	o.Rules.Operation = []dedup.Source{dedup.Topic()}
	if r, err = keystry.Try(t.Context(), client, o); err != nil {
		t.Fatal(err)
	}
	if r.Distinct != 2 || r.Repeats != 0 {
		t.Errorf("with the topic as operation: distinct %d, repeats %d, want 2 and 0", r.Distinct, r.Repeats)
	}
}

// Records of an aborted transaction are not there for a reader of committed ones,
// and at the end of a partition no record comes that would show its end.
func TestTryLeavesOutAbortedTransactions(t *testing.T) {
	t.Parallel()
	cluster, client := fake(t, 1)
	produce(t, cluster, message("a", "1"))
	aborting := kafkatest.Client(t, cluster.ListenAddrs(), kgo.TransactionalID("t"), kgo.DefaultProduceTopic("orders"))
	if err := aborting.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := aborting.ProduceSync(t.Context(), message("a", "2")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := aborting.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	r := try(t, client, 100, byHeader)
	if diff := cmp.Diff([]int{1, 0, 0, 0, 0}, counts(r)); diff != "" {
		t.Errorf("distinct, repeats, conflicts, missing, undecodable (-want +got):\n%s", diff)
	}
	if len(r.Unread) != 0 {
		t.Errorf("unread: %+v, want all read", r.Unread)
	}
}

func TestTryOfAnEmptyTopic(t *testing.T) {
	t.Parallel()
	_, client := fake(t, 2)
	r := try(t, client, 100, byHeader)
	if r.Records != 0 || len(r.Ranges) != 0 {
		t.Errorf("%d records in %+v", r.Records, r.Ranges)
	}
	wantWarning(t, r, "nothing to try")
}

func TestTryOfATopicThatThereIsNot(t *testing.T) {
	t.Parallel()
	_, client := fake(t, 1)
	_, err := keystry.Try(t.Context(), client, keystry.Options{Topics: []string{"ordres"}, Last: 1, Rules: byHeader, Queue: "q"})
	var missing *keystry.MissingTopicError
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), `did you mean "orders"?`) {
		t.Errorf("Try = %v, want a MissingTopicError with the nearest name", err)
	}
}

func TestTryGivesUpOnBrokersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	cluster, client := fake(t, 1)
	cluster.Close()
	_, err := keystry.Try(t.Context(), client, keystry.Options{Topics: []string{"orders"}, Last: 1, Rules: byHeader, Queue: "q", Patience: 200 * time.Millisecond})
	var network net.Error
	if !errors.As(err, &network) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Try = %v, want a network error, or the end of its patience", err)
	}
}

func TestTryRefusesWhatCannotBeTried(t *testing.T) {
	t.Parallel()
	_, client := fake(t, 1)
	for name, o := range map[string]keystry.Options{
		"no records": {Topics: []string{"orders"}, Rules: byHeader},
		"no rule":    {Topics: []string{"orders"}, Last: 1},
	} {
		if _, err := keystry.Try(t.Context(), client, o); err == nil {
			t.Errorf("%s: Try takes it", name)
		}
	}
}

func TestTryEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cluster, client := fake(t, 1)
	produce(t, cluster, message("a", "1"))
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	cluster.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		cancel()
		cluster.SleepControl(func() { <-release })
		return nil, nil, false
	})
	_, err := keystry.Try(ctx, client, keystry.Options{Topics: []string{"orders"}, Last: 1, Rules: byHeader, Queue: "q"})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Try = %v, want the context's error", err)
	}
}

// A broker that sends nothing does not hold the command up for ever, and what was
// not read is told.
func TestTryGivesUpOnASilentBroker(t *testing.T) {
	t.Parallel()
	cluster, client := fake(t, 1)
	produce(t, cluster, message("a", "1"))
	cluster.ControlKey(int16(kmsg.Fetch), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		response := request.ResponseKind().(*kmsg.FetchResponse)
		return response, nil, true
	})
	r, err := keystry.Try(t.Context(), client, keystry.Options{
		Topics: []string{"orders"}, Last: 1, Rules: byHeader, Queue: "q", Patience: 50 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]keystry.Place{{Topic: "orders", Offset: 1}}, r.Unread); diff != "" {
		t.Errorf("unread (-want +got):\n%s", diff)
	}
}

// Nothing is left behind in Kafka: no group, no offset, no record, no topic.
func TestTryWritesNothing(t *testing.T) {
	t.Parallel()
	cluster, client := fake(t, 1)
	produce(t, cluster, message("a", "1"), message("a", "2"))
	admin := kadm.NewClient(kafkatest.Client(t, cluster.ListenAddrs()))
	look := func() string {
		groups, err := admin.ListGroups(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		topics, err := admin.ListTopics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ends, err := admin.ListEndOffsets(t.Context(), "orders")
		if err != nil {
			t.Fatal(err)
		}
		end, _ := ends.Lookup("orders", 0)
		return fmt.Sprint(groups.Groups(), topics.Names(), end.Offset)
	}
	before := look()
	try(t, client, 100, byHeader)
	if after := look(); after != before {
		t.Errorf("before: %s\nafter: %s", before, after)
	}
}
