package kafkatest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/claimq/claimq/internal/kafkatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTopicIsUniqueHasItsPartitionsAndIsDeleted(t *testing.T) {
	t.Parallel()
	admin := kadm.NewClient(kafkatest.Client(t, kafkatest.Brokers(t)))
	var names []string
	t.Run("body of a test", func(t *testing.T) {
		names = []string{kafkatest.Topic(t, 3), kafkatest.Topic(t, 3)}
		if names[0] == names[1] {
			t.Errorf("both topics are named %s", names[0])
		}
		topics, err := admin.ListTopics(t.Context(), names...)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if n := len(topics[name].Partitions); n != 3 {
				t.Errorf("%s has %d partitions, want 3", name, n)
			}
		}
	})
	// The controller has deleted them; a broker may tell of them a moment longer.
	deadline := time.Now().Add(20 * time.Second)
	for _, name := range names {
		for there := true; there; {
			topics, err := admin.ListTopics(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if there = topics.Has(name); there && time.Now().After(deadline) {
				t.Fatalf("%s is there after its test", name)
			}
			if there {
				time.Sleep(20 * time.Millisecond)
			}
		}
	}
}

func TestTopicTakesConfigs(t *testing.T) {
	t.Parallel()
	topic := kafkatest.TopicOn(t, kafkatest.Brokers(t), 1, map[string]string{"cleanup.policy": "compact", "segment.ms": "1234"})
	admin := kadm.NewClient(kafkatest.Client(t, kafkatest.Brokers(t)))
	configs, err := admin.DescribeTopicConfigs(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	if configs[0].Err != nil {
		t.Fatal(configs[0].Err)
	}
	got := map[string]string{}
	for _, config := range configs[0].Configs {
		got[config.Key] = config.MaybeValue()
	}
	if got["cleanup.policy"] != "compact" || got["segment.ms"] != "1234" {
		t.Errorf("cleanup.policy is %q, segment.ms %q", got["cleanup.policy"], got["segment.ms"])
	}
}

func TestProducedRecordsAreReadBackFromTheirPartitions(t *testing.T) {
	t.Parallel()
	fake := kafkatest.Fake(t, kfake.NumBrokers(1), kfake.SeedTopics(2, "orders"))
	for name, where := range map[string]struct {
		brokers []string
		topic   string
	}{
		"real": {kafkatest.Brokers(t), kafkatest.Topic(t, 2)},
		"fake": {fake.ListenAddrs(), "orders"},
	} {
		t.Run(name, func(t *testing.T) {
			records := make([]*kgo.Record, 10)
			want := make([]string, len(records))
			for i := range records {
				records[i] = &kgo.Record{Partition: int32(i % 2), Value: fmt.Append(nil, i)}
				want[i] = fmt.Sprintf("partition %d offset %d value %d", i%2, i/2, i)
			}
			kafkatest.ProduceOn(t, where.brokers, where.topic, records...)
			var got []string
			for _, record := range kafkatest.Fetch(t, where.brokers, where.topic, len(records)) {
				got = append(got, fmt.Sprintf("partition %d offset %d value %s", record.Partition, record.Offset, record.Value))
			}
			slices.Sort(got)
			slices.Sort(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}

func TestUniqueNameIsALegalTopicNameForAnyTest(t *testing.T) {
	t.Parallel()
	t.Run(strings.Repeat("é/ long", 60), func(t *testing.T) {
		name := kafkatest.UniqueName(t)
		if len(name) > 120 || strings.ContainsAny(name, "/ é_.") {
			t.Errorf("%q", name)
		}
		if name == kafkatest.UniqueName(t) {
			t.Errorf("twice %q", name)
		}
	})
}

// failRecorder keeps the message of a Fatalf and panics in its place.
type failRecorder struct {
	testing.TB
	message string
}

func (r *failRecorder) Helper() {}

func (r *failRecorder) Fatalf(format string, args ...any) {
	r.message = fmt.Sprintf(format, args...)
	panic(r)
}

func TestMissingBrokersAreToldWithTheCommandToRun(t *testing.T) {
	t.Setenv(kafkatest.BrokersVariable, "")
	recorder := &failRecorder{TB: t}
	func() {
		defer func() { _ = recover() }()
		kafkatest.Brokers(recorder)
	}()
	for _, want := range []string{"make test", "internal/cmd/teststack", kafkatest.BrokersVariable} {
		if !strings.Contains(recorder.message, want) {
			t.Errorf("the failure does not name %q: %s", want, recorder.message)
		}
	}
}
