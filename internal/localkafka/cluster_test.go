package localkafka_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/localkafka"
	"github.com/claimq/claimq/internal/localproc"
)

func TestOneBrokerTakesRecordsKeepsThemAndGoesAway(t *testing.T) {
	t.Parallel()
	cluster := start(t, localkafka.Config{Settings: map[string]string{"message.max.bytes": "2000000"}})
	broker := cluster.Broker(1)
	begin := time.Now()
	step := func(what string) { t.Logf("%s: after %v", what, time.Since(begin)) }
	kafka := client(t, cluster.Brokers(), kgo.ConsumeTopics("kept"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.UnknownTopicRetries(0), kgo.MetadataMinAge(100*time.Millisecond))
	admin := kadm.NewClient(kafka)

	err := kafka.ProduceSync(t.Context(), &kgo.Record{Topic: "mistyped"}).FirstErr()
	if !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("a record to a topic that does not exist got %v: topics are made by themselves", err)
	}
	step("produced to a topic that does not exist")
	if _, err := admin.CreateTopic(t.Context(), 1, -1, nil, "kept"); err != nil {
		t.Fatal(err)
	}
	record := &kgo.Record{Topic: "kept", Value: []byte("before the restart")}
	if err := kafka.ProduceSync(t.Context(), record).FirstErr(); err != nil {
		t.Fatal(err)
	}
	step("produced")
	configs, err := admin.DescribeBrokerConfigs(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if !hasConfig(configs, "message.max.bytes", "2000000") {
		t.Error("Settings did not reach the broker")
	}

	addr, pid := broker.Addr(), broker.PID()
	broker.Kill()
	if broker.Running() || localproc.Alive(pid) {
		t.Fatal("broker runs after Kill")
	}
	if err := broker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	step("restarted")
	if broker.Addr() != addr || broker.PID() == pid {
		t.Errorf("after a restart: address %s (was %s), process %d (was %d)", broker.Addr(), addr, broker.PID(), pid)
	}
	fetches := kafka.PollFetches(t.Context())
	if records := fetches.Records(); len(records) != 1 || string(records[0].Value) != "before the restart" {
		t.Errorf("read back %d records (%v)", len(records), fetches.Err())
	}

	step("read back")
	if err := cluster.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	step("stopped")
	if broker.Running() || exists(cluster.Dir) {
		t.Error("process or files are left after Stop")
	}
	if err := cluster.Stop(t.Context()); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
}

func hasConfig(all kadm.ResourceConfigs, key, want string) bool {
	for _, resource := range all {
		for _, config := range resource.Configs {
			if config.Key == key {
				return config.MaybeValue() == want
			}
		}
	}
	return false
}

func TestThreeBrokersSurviveOneKilledOneFrozenOneRestarted(t *testing.T) {
	t.Parallel()
	cluster := start(t, localkafka.Config{Brokers: 3})
	// Short timeouts: a request to a frozen broker is given up after three
	// seconds and not after ten.
	kafka := client(t, cluster.Brokers(), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MetadataMinAge(100*time.Millisecond), kgo.ProduceRequestTimeout(2*time.Second),
		kgo.RequestTimeoutOverhead(time.Second), kgo.DialTimeout(time.Second))
	admin := kadm.NewClient(kafka)
	begin := time.Now()
	created, err := admin.CreateTopic(t.Context(), 3, -1, nil, "copies")
	if err != nil {
		t.Fatal(err)
	}
	if created.ReplicationFactor != 3 {
		t.Errorf("a topic has %d replicas, want 3", created.ReplicationFactor)
	}
	produce := func(when string) {
		t.Helper()
		for partition := range int32(3) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			record := &kgo.Record{Topic: "copies", Partition: partition, Value: []byte(when)}
			if err := kafka.ProduceSync(ctx, record).FirstErr(); err != nil {
				t.Errorf("produce %s: %v", when, err)
			}
			cancel()
		}
		t.Logf("%s: after %v", when, time.Since(begin))
	}
	produce("with three brokers")
	cluster.Broker(2).Kill()
	produce("with one killed")
	if err := cluster.Broker(2).Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the restarted broker is in sync again", func() bool {
		topics, err := admin.ListTopics(t.Context(), "copies")
		if err != nil {
			return false
		}
		inSync := 0
		topics.EachPartition(func(p kadm.PartitionDetail) { inSync += len(p.ISR) })
		return inSync == 9
	})
	if err := cluster.Broker(3).Freeze(); err != nil {
		t.Fatal(err)
	}
	produce("with one frozen")
	if err := cluster.Broker(3).Thaw(); err != nil {
		t.Fatal(err)
	}
	t.Logf("thawed: after %v", time.Since(begin))
	if err := cluster.WaitReady(t.Context()); err != nil {
		t.Error(err)
	}
	t.Logf("all see one another again: after %v", time.Since(begin))
}

func TestSecureListenerLetsInOnlyWhoMayComeIn(t *testing.T) {
	t.Parallel()
	cluster := start(t, localkafka.Config{
		TLS:   true,
		SASL:  []localkafka.Mechanism{localkafka.Plain, localkafka.ScramSHA256, localkafka.ScramSHA512},
		Users: map[string]string{"alice": "alice-secret", "bob": "bob_secret"},
	})
	roots := trust(t, cluster.CAFile)
	for name, mechanism := range mechanisms("alice", "alice-secret") {
		if err := client(t, cluster.SecureBrokers(), kgo.SASL(mechanism), kgo.DialTLSConfig(roots)).Ping(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, mechanism := range mechanisms("alice", "bob_secret") {
		err := client(t, cluster.SecureBrokers(), kgo.SASL(mechanism), kgo.DialTLSConfig(roots)).Ping(t.Context())
		if !errors.Is(err, kerr.SaslAuthenticationFailed) {
			t.Errorf("%s with another user's password got %v, want SaslAuthenticationFailed", name, err)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := client(t, cluster.SecureBrokers(), kgo.RequestRetries(0)).Ping(short); err == nil {
		t.Error("a plain client came in at the secure listener")
	}
	if err := client(t, cluster.Brokers()).Ping(t.Context()); err != nil {
		t.Errorf("the plain listener: %v", err)
	}
}

func TestKilledParentLeavesNoBrokerAndNoFileAndAnotherUserCanStart(t *testing.T) {
	t.Parallel()
	jars, err := localkafka.Jars(t.Context(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	work := worldReadable(t, jars)
	cmd := exec.Command(filepath.Join(work, "child"))
	cmd.Env = append(os.Environ(), childVariable+"=1", localkafka.JarsVariable+"="+filepath.Join(work, "jars"))
	cmd.Dir, cmd.Stderr = "/", os.Stderr
	if os.Geteuid() == 0 {
		const nobody = 65534
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for scanner := bufio.NewScanner(output); len(lines) < 3 && scanner.Scan(); {
		lines = append(lines, scanner.Text())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if len(lines) < 3 {
		t.Fatalf("the child ended early, after %q", lines)
	}
	if lines[2] == "0" {
		t.Error("the child ran as root")
	}
	pid, err := strconv.Atoi(lines[0])
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the broker of a killed parent ends", func() bool { return !localproc.Alive(pid) })
	eventually(t, "its files are removed", func() bool { return !exists(lines[1]) })
}

// worldReadable makes a directory that any user can enter, with this test's
// binary and the jars in it.
func worldReadable(t *testing.T, jars string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cq-child-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, copied := range [][]string{{self, filepath.Join(dir, "child")}, {jars, filepath.Join(dir, "jars")}} {
		if output, err := exec.Command("cp", "-r", copied[0], copied[1]).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	if output, err := exec.Command("chmod", "-R", "a+rX", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return dir
}

func TestWrongConfigIsToldByField(t *testing.T) {
	t.Parallel()
	for field, config := range map[string]localkafka.Config{
		"Brokers": {Brokers: 10},
		"Users":   {SASL: []localkafka.Mechanism{localkafka.Plain}},
		"alice":   {Users: map[string]string{"alice": `quote"`}},
	} {
		if _, err := localkafka.Start(t.Context(), config); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("the error does not name %s: %v", field, err)
		}
	}
}

func TestBrokerThatCannotStartSaysWhyAndLeavesNothing(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	dir := filepath.Join(parent, "kafka")
	_, err := localkafka.Start(t.Context(), localkafka.Config{Dir: dir, Settings: map[string]string{"num.io.threads": "none"}})
	if err == nil || !strings.Contains(err.Error(), "num.io.threads") {
		t.Errorf("the error does not say what was wrong: %v", err)
	}
}

func TestMissingJavaAndMavenAreToldWithThePackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("JAVA_HOME", "")
	if _, err := localkafka.FindJava(t.Context()); !errors.Is(err, localkafka.ErrNoJava) || !strings.Contains(err.Error(), "openjdk") {
		t.Errorf("without Java: %v", err)
	}
	t.Setenv(localkafka.JarsVariable, "")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	if _, err := localkafka.Jars(t.Context(), t.Logf); !errors.Is(err, localkafka.ErrNoMaven) || !strings.Contains(err.Error(), "apt-get install maven") {
		t.Errorf("without Maven: %v", err)
	}
	t.Setenv(localkafka.JarsVariable, t.TempDir())
	if _, err := localkafka.Jars(t.Context(), t.Logf); err == nil || !strings.Contains(err.Error(), localkafka.JarsVariable) {
		t.Errorf("with a directory without jars: %v", err)
	}
}
