// Package kafkatest gives each test its own topics in a real Kafka, or a Kafka
// of its own inside the process.
//
// The real one is named by CLAIMQ_TEST_KAFKA, which "make test" and
// internal/cmd/teststack start and set. The one in the process (kfake) is
// where faults are driven which a real broker shows only by luck.
package kafkatest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/localkafka"
)

// BrokersVariable names the environment variable that says where the shared
// test brokers are: host:port, separated by commas.
const BrokersVariable = "CLAIMQ_TEST_KAFKA"

// timeout bounds each call to a broker here: a broker that does not answer is
// to fail its test and not the whole run.
const timeout = 30 * time.Second

// Brokers returns the shared brokers' addresses, or fails the test and says
// what to run.
func Brokers(t testing.TB) []string {
	t.Helper()
	value := os.Getenv(BrokersVariable)
	if value == "" {
		t.Fatalf("%s is not set: this test needs a real Kafka. Run\n\n\tmake test\n\nor, for some packages only,\n\n\tgo run ./internal/cmd/teststack -- go test ./...\n\nor set %s to the brokers of a cluster of your own", BrokersVariable, BrokersVariable)
	}
	return strings.Split(value, ",")
}

// Topic makes a topic with a unique name in the shared Kafka, and deletes it
// when the test ends.
func Topic(t testing.TB, partitions int) string {
	t.Helper()
	return TopicOn(t, Brokers(t), partitions, nil)
}

// TopicOn is [Topic] for any brokers, with configs of the topic such as
// cleanup.policy. At cleanup it is no failure that these brokers are gone.
func TopicOn(t testing.TB, brokers []string, partitions int, configs map[string]string) string {
	t.Helper()
	name := UniqueName(t)
	admin := kadm.NewClient(Client(t, brokers))
	pointers := make(map[string]*string, len(configs))
	for key, value := range configs {
		pointers[key] = &value
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if _, err := admin.CreateTopic(ctx, int32(partitions), -1, pointers, name); err != nil { //nolint:gosec // a test has few
		t.Fatalf("create topic %s: %v", name, err)
	}
	awaitLeaders(t, admin, name, partitions)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		if strings.Join(brokers, ",") != os.Getenv(BrokersVariable) {
			_, _ = admin.DeleteTopic(ctx, name)
			return
		}
		if _, err := admin.DeleteTopic(ctx, name); err != nil {
			t.Errorf("delete topic %s: %v", name, err)
		}
	})
	return name
}

// awaitLeaders waits until a new topic can be used: brokers hear of it after
// its creation has been acknowledged.
func awaitLeaders(t testing.TB, admin *kadm.Client, name string, partitions int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		topics, err := admin.ListTopics(ctx, name)
		led := 0
		topics.EachPartition(func(p kadm.PartitionDetail) {
			if p.Err == nil && p.Leader >= 0 {
				led++
			}
		})
		if err == nil && led == partitions {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("topic %s has leaders for %d partitions of %d (%v)", name, led, partitions, err)
		case <-tick.C:
		}
	}
}

// UniqueName returns a name for a topic or a group that no other test has, and
// that shows which test made it.
func UniqueName(t testing.TB) string {
	t.Helper()
	suffix := make([]byte, 6)
	_, _ = rand.Read(suffix) // never fails (crypto/rand)
	test := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, t.Name())
	const longest = 100 // of Kafka's 249, so that a suffix can be added
	if len(test) > longest {
		test = test[len(test)-longest:]
	}
	return test + "-" + hex.EncodeToString(suffix)
}

// Client makes a client that is closed when the test ends. It gives up on
// unreachable brokers after a while.
func Client(t testing.TB, brokers []string, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(brokers...),
		kgo.RetryTimeout(timeout / 2),
		kgo.MetadataMinAge(50 * time.Millisecond),
	}, options...)...)
	if err != nil {
		t.Fatalf("make a Kafka client: %v", err)
	}
	t.Cleanup(client.Close)
	return client
}

// Produce writes records to a topic of the shared Kafka, with acks from all, and
// returns when all are there. A record's Partition counts; its Topic is set.
// Offsets and the like are filled in.
func Produce(t testing.TB, topic string, records ...*kgo.Record) {
	t.Helper()
	ProduceOn(t, Brokers(t), topic, records...)
}

// ProduceOn is [Produce] for any brokers.
func ProduceOn(t testing.TB, brokers []string, topic string, records ...*kgo.Record) {
	t.Helper()
	client := Client(t, brokers, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	defer client.Close()
	for _, record := range records {
		record.Topic = topic
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatalf("produce to %s: %v", topic, err)
	}
}

// Fetch reads exactly count records from the beginning of a topic, in order per
// partition, or fails the test after a while.
func Fetch(t testing.TB, brokers []string, topic string, count int) []*kgo.Record {
	t.Helper()
	client := Client(t, brokers, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	var records []*kgo.Record
	for len(records) < count {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("read %d records of %s and not %d", len(records), topic, count)
		}
		fetches.EachError(func(topic string, partition int32, err error) {
			t.Logf("fetch %s/%d: %v", topic, partition, err)
		})
		records = append(records, fetches.Records()...)
	}
	return records
}

// Fake starts a Kafka inside the process, which ends with the test; topics come
// with kfake.SeedTopics.
func Fake(t testing.TB, options ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		t.Fatalf("start kfake: %v", err)
	}
	t.Cleanup(cluster.Close)
	return cluster
}

// Cluster starts real brokers for this test alone, and ends them with it.
func Cluster(t testing.TB, config localkafka.Config) *localkafka.Cluster {
	t.Helper()
	cluster, err := localkafka.Start(t.Context(), config)
	if err != nil {
		t.Fatalf("start a Kafka for this test: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the logs of the test's own Kafka end with:\n%s", cluster.LogTail(30))
		}
		if err := cluster.Discard(); err != nil {
			t.Errorf("stop the Kafka of this test: %v", err)
		}
	})
	return cluster
}
