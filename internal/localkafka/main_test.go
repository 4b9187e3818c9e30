package localkafka_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/claimq/claimq/internal/localkafka"
)

// childVariable makes the test binary a parent that starts a broker and can be
// killed.
const childVariable = "CLAIMQ_LOCALKAFKA_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		runChild()
		return
	}
	goleak.VerifyTestMain(m)
}

func runChild() {
	cluster, err := localkafka.Start(context.Background(), localkafka.Config{})
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
	lines := []string{strconv.Itoa(cluster.Broker(1).PID()), cluster.Dir, strconv.Itoa(os.Geteuid())}
	if _, err := os.Stdout.WriteString(strings.Join(lines, "\n") + "\n"); err != nil {
		os.Exit(1)
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	if err := cluster.Stop(context.Background()); err != nil {
		println(err.Error())
		os.Exit(1)
	}
}

func start(t *testing.T, config localkafka.Config) *localkafka.Cluster {
	t.Helper()
	cluster, err := localkafka.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(cluster.LogTail(20))
		}
		if err := cluster.Discard(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return cluster
}

func client(t *testing.T, brokers []string, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(brokers...), kgo.RetryTimeout(15 * time.Second)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// eventually polls a condition for up to twenty seconds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within twenty seconds: %s", what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
