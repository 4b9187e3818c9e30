package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/pgtest"
)

// patience is how long a condition is waited for.
const patience = 30 * time.Second

// eventually polls a condition until it holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// startKafka starts an in-process Kafka with topics of two partitions.
func startKafka(t *testing.T, topics ...string) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, topics...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster
}

func produce(t *testing.T, brokers []string, topic string, ids ...string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, id := range ids {
		record := &kgo.Record{Topic: topic, Key: []byte(id), Value: []byte(`{"id":"` + id + `"}`), Headers: []kgo.RecordHeader{{Key: "id", Value: []byte(id)}}}
		if err := client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// A process is a `claimq run` inside the test.
type process struct {
	*testEnv
	signals chan os.Signal
	ended   chan int
	code    int
	over    bool
}

// start runs `claimq run` in the background. It is ended with the test.
func start(t *testing.T, env *testEnv, args ...string) *process {
	t.Helper()
	return startCommand(t, env, "run", args...)
}

// startCommand is start for a command that runs until it is stopped.
func startCommand(t *testing.T, env *testEnv, command string, args ...string) *process {
	t.Helper()
	p := &process{testEnv: env, signals: make(chan os.Signal), ended: make(chan int, 1)}
	env.Signals = p.signals
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	env.stdout, env.stderr = &buffer{}, &buffer{}
	env.Stdout, env.Stderr = env.stdout, env.stderr
	go func() { p.ended <- Run(ctx, append([]string{command}, args...), env.Env) }()
	t.Cleanup(func() {
		cancel()
		p.wait()
		if t.Failed() {
			t.Logf("the log of claimq run:\n%s", env.stderr)
		}
	})
	return p
}

// wait returns the exit code once the process has ended.
func (p *process) wait() int {
	p.t.Helper()
	if p.over {
		return p.code
	}
	select {
	case p.code = <-p.ended:
		p.over = true
	case <-time.After(patience):
		p.t.Fatalf("claimq run has not ended; it said:\n%s", p.stderr)
	}
	return p.code
}

// stop asks it to end and returns its exit code.
func (p *process) stop() int {
	p.t.Helper()
	p.signals <- syscall.SIGTERM
	return p.wait()
}

var servingAt = regexp.MustCompile(`/readyz.* address=(\S+)`)

// get asks the process over HTTP.
func (p *process) get(path string) (status int, body string) {
	p.t.Helper()
	var address string
	eventually(p.t, "it serves", func() bool {
		if match := servingAt.FindStringSubmatch(p.stderr.String()); match != nil {
			address = match[1]
		}
		return address != ""
	})
	request, err := http.NewRequestWithContext(context.WithoutCancel(p.t.Context()), http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		p.t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(text)
}

func (p *process) waitReady() {
	p.t.Helper()
	var body string
	eventually(p.t, "ready", func() bool {
		var status int
		status, body = p.get("/readyz")
		return status == http.StatusOK
	})
	if body != `{"ready":true,"problems":[]}`+"\n" {
		p.t.Errorf("ready with %s", body)
	}
}

// runFile is a configuration for the test's database and Kafka; queues are YAML
// under "queues:".
func runFile(t *testing.T, dsn, schema string, brokers []string, queues string) string {
	t.Helper()
	return writeFile(t, "claimq.yaml", fmt.Sprintf(`
database: {dsn: %q, schema: %s}
kafka: {brokers: [%s]}
http: {listen: 127.0.0.1:0}
queues:
%s`, dsn, schema, strings.Join(brokers, ","), queues))
}

// sink makes a table for what handlers write and returns its name.
func sink(t *testing.T, db *pgtest.DB) string {
	t.Helper()
	if _, err := db.Pool.Exec(t.Context(), "create table "+db.Schema+".sink (queue text, id text)"); err != nil {
		t.Fatal(err)
	}
	return db.Schema + ".sink"
}

func count(t *testing.T, db *pgtest.DB, query string) (n int) {
	t.Helper()
	if err := db.Pool.QueryRow(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func queueYAML(name, table, topic string) string {
	return fmt.Sprintf("  %s:\n    topics: [%s]\n    id: header:id\n    handler: {sql: \"insert into %s select '%s', unnest(@ids)\"}\n", name, topic, table, name)
}

func TestRunHandlesTwoQueuesServesAndStopsOnASignal(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	table := sink(t, db)
	kafka := startKafka(t, "a", "b")
	produce(t, kafka.ListenAddrs(), "a", "1", "2", "2", "3")
	produce(t, kafka.ListenAddrs(), "b", "1")
	file := runFile(t, db.DSN, db.Schema, kafka.ListenAddrs(), queueYAML("first", table, "a")+queueYAML("second", table, "b")+queueYAML("third", table, "none"))
	p := start(t, newTestEnv(t), "-c", file, "--queues", "first,second")
	p.waitReady()
	eventually(t, "four rows", func() bool { return count(t, db, "select count(*) from "+table) == 4 })
	if n := count(t, db, "select count(distinct (queue, id)) from "+table); n != 4 {
		t.Errorf("%d distinct rows", n)
	}
	if status, body := p.get("/livez"); status != http.StatusOK || body != "{\"live\":true}\n" {
		t.Errorf("livez: %d %s", status, body)
	}
	eventually(t, "the duplicate is counted", func() bool {
		_, metrics := p.get("/metrics")
		return regexp.MustCompile(`claimq_messages_total\{outcome="duplicate",queue="first"\} 1`).MatchString(metrics)
	})
	_, metrics := p.get("/metrics")
	wantAll(t, metrics, "go_goroutines", "process_open_fds", `claimq_relay_leased_slices`, "claimq_outbox_depth_records 0",
		`client="queue first"`, `client="queue second"`, `claimq_kafka_fetch_bytes_total{client="queue first"`)
	if code := p.stop(); code != ExitOK {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	wantAll(t, p.stderr.String(), "claimq has stopped", "signal=terminated")
	if n := count(t, db, "select count(*) from "+db.Schema+".workers"); n != 0 {
		t.Errorf("%d workers are still listed", n)
	}
	// A second run finds nothing to do.
	again := start(t, newTestEnv(t), "-c", file, "--queues", "first,second")
	again.waitReady()
	produce(t, kafka.ListenAddrs(), "a", "2", "4")
	eventually(t, "the new row", func() bool { return count(t, db, "select count(*) from "+table) == 5 })
	if code := again.stop(); code != ExitOK {
		t.Errorf("exit code %d", code)
	}
	if n := count(t, db, "select count(*) from "+table); n != 5 {
		t.Errorf("%d rows in the end", n)
	}
}

func TestADeadLetterGoesOutThroughTheRelay(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	table := sink(t, db)
	kafka := startKafka(t, "a", "a.dead")
	queue := queueYAML("first", table, "a") + "    dead_letter_topic: a.dead\n"
	p := start(t, newTestEnv(t), "-c", runFile(t, db.DSN, db.Schema, kafka.ListenAddrs(), queue))
	p.waitReady()
	client, err := kgo.NewClient(kgo.SeedBrokers(kafka.ListenAddrs()...), kgo.ConsumeTopics("a.dead"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "a", Value: []byte("without an id")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	fetches := client.PollFetches(ctx)
	if records := fetches.Records(); fetches.Err() != nil || len(records) != 1 || string(records[0].Value) != "without an id" {
		t.Fatalf("the dead letter topic has %v, %v", records, fetches.Err())
	}
	eventually(t, "the relay's figures", func() bool {
		_, metrics := p.get("/metrics")
		return strings.Contains(metrics, "claimq_relay_published_total 1\n") &&
			strings.Contains(metrics, `claimq_kafka_produce_bytes_total{client="relay"`) && strings.Contains(metrics, `claimq_messages_total{outcome="dead",queue="first"} 1`)
	})
	if _, metrics := p.get("/metrics"); strings.Contains(metrics, `buffered_produce_bytes{client="relay"}`) {
		t.Error("a figure of one of the relay's clients stands for all of them")
	}
	if code := p.stop(); code != ExitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestRunMigratesWhenToldAndRefusesOtherwise(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t, pgtest.DSN(t))
	kafka := startKafka(t, "a")
	file := runFile(t, db.DSN, db.Schema, kafka.ListenAddrs(), queueYAML("first", "pg_temp.none", "a"))
	got := runOnce(t, newTestEnv(t), ExitFailed, "-c", file)
	wantAll(t, got, "the database has no claimq schema", "run `claimq migrate up`")

	// The handler's table is asked for too, before the first message.
	wantAll(t, runOnce(t, newTestEnv(t), ExitConfig, "-c", file, "--migrate"), "queues.first.handler.sql", "SQLSTATE 42P01")
	if _, err := db.Pool.Exec(t.Context(), "create table "+db.Schema+".sink (queue text, id text)"); err != nil {
		t.Fatal(err)
	}
	file = runFile(t, db.DSN, db.Schema, kafka.ListenAddrs(), queueYAML("first", db.Schema+".sink", "a"))
	p := start(t, newTestEnv(t), "-c", file, "--migrate")
	p.waitReady()
	if code := p.stop(); code != ExitOK {
		t.Errorf("exit code %d", code)
	}

	if _, err := db.Pool.Exec(t.Context(), "update "+db.Schema+".schema_version set version = 999"); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"-c", file}, {"-c", file, "--migrate"}} {
		wantAll(t, runOnce(t, newTestEnv(t), ExitFailed, args...), "is at version 999", "start a newer claimq")
	}
}

// runOnce runs claimq, which is to end by itself with the code, and returns its log.
func runOnce(t *testing.T, env *testEnv, code int, args ...string) string {
	t.Helper()
	p := start(t, env, args...)
	if got := p.wait(); got != code {
		t.Fatalf("exit code %d, want %d:\n%s", got, code, p.stderr)
	}
	return p.stderr.String()
}

func TestRunEndsWhereWaitingDoesNotHelp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	table := sink(t, db)
	kafka := startKafka(t, "a")
	brokers := kafka.ListenAddrs()
	good := queueYAML("first", table, "a")

	t.Run("missing topic", func(t *testing.T) {
		t.Parallel()
		got := runOnce(t, newTestEnv(t), ExitFailed, "-c", runFile(t, db.DSN, db.Schema, brokers, good+queueYAML("second", table, "nowhere")))
		wantAll(t, got, `queue "second"`, "nowhere", "create it, or correct `topics`")
	})
	t.Run("no such database", func(t *testing.T) {
		t.Parallel()
		config, err := pgx.ParseConfig(db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		dsn := fmt.Sprintf("host=%s port=%d user=%s dbname=there_is_none", config.Host, config.Port, config.User)
		got := runOnce(t, newTestEnv(t), ExitFailed, "-c", runFile(t, dsn, db.Schema, brokers, good))
		wantAll(t, got, "there is no such database")
	})
	t.Run("the address is taken", func(t *testing.T) {
		t.Parallel()
		env := newTestEnv(t, "CLAIMQ_HTTP__LISTEN="+brokers[0])
		wantAll(t, runOnce(t, env, ExitFailed, "-c", runFile(t, db.DSN, db.Schema, brokers, good)), "http.listen", "address of its own")
	})
	t.Run("an unknown queue", func(t *testing.T) {
		t.Parallel()
		got := runOnce(t, newTestEnv(t), ExitUsage, "-c", runFile(t, db.DSN, db.Schema, brokers, good), "--queues", "frist")
		wantAll(t, got, "did you mean first?")
	})
	t.Run("a queue twice", func(t *testing.T) {
		t.Parallel()
		runOnce(t, newTestEnv(t), ExitUsage, "-c", runFile(t, db.DSN, db.Schema, brokers, good), "--queues", "first,first")
	})
	t.Run("accept for a queue that does not run", func(t *testing.T) {
		t.Parallel()
		got := runOnce(t, newTestEnv(t), ExitUsage, "-c", runFile(t, db.DSN, db.Schema, brokers, good), "--accept", "second")
		wantAll(t, got, `"second" is none of first`)
	})
	t.Run("no queue", func(t *testing.T) {
		t.Parallel()
		wantAll(t, runOnce(t, newTestEnv(t, "CLAIMQ_DSN="+db.DSN, "CLAIMQ_BROKERS="+brokers[0]), ExitConfig), "there is nothing to run")
	})
}

func TestRunRefusesAChangedRuleUnlessItIsAccepted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	table := sink(t, db)
	kafka := startKafka(t, "a")
	queue := queueYAML("first", table, "a")
	before := runFile(t, db.DSN, db.Schema, kafka.ListenAddrs(), queue)
	after := runFile(t, db.DSN, db.Schema, kafka.ListenAddrs(), strings.Replace(queue, "header:id", "json:id", 1))
	p := start(t, newTestEnv(t), "-c", before)
	p.waitReady()
	p.stop()

	wantAll(t, runOnce(t, newTestEnv(t), ExitFailed, "-c", after), "its id rule has changed", "--accept first")
	p = start(t, newTestEnv(t), "-c", after, "--accept", "first")
	p.waitReady()
	if code := p.stop(); code != ExitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestReadinessTellsWhatIsWaitedForAndRecovers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	table := sink(t, db)
	way := newGate(t, pgtest.HostPort(t, db.DSN))
	brokers := newGate(t, "127.0.0.1:1")
	kafka := startKafka(t, "a")
	config, err := pgx.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	dsn := fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable", config.User, topSecret, way.address(), config.Database)
	p := start(t, newTestEnv(t), "-c", runFile(t, dsn, db.Schema, []string{brokers.address()}, queueYAML("first", table, "a")))

	problems := func() (status int, list []problem) {
		status, body := p.get("/readyz")
		var answer readiness
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		return status, answer.Problems
	}
	eventually(t, "it waits for the database", func() bool {
		status, list := problems()
		return status == http.StatusServiceUnavailable && len(list) == 2 &&
			strings.HasPrefix(list[0].Problem, "database cannot be reached: ") && list[1] == problem{Queue: "first", Problem: "the queue does not run: it is starting"}
	})
	if status, _ := p.get("/livez"); status != http.StatusOK {
		t.Errorf("livez is %d while it waits: a restart would not help", status)
	}
	eventually(t, "a second try is logged", func() bool { return strings.Count(p.stderr.String(), "what=database") >= 2 })
	way.open()
	eventually(t, "it waits for Kafka", func() bool {
		_, list := problems()
		return len(list) > 0 && strings.HasPrefix(list[0].Problem, "Kafka cannot be reached: Kafka: no broker answers: see kafka.brokers")
	})
	brokers.openTo(kafka.ListenAddrs()[0])
	p.waitReady()
	if code := p.stop(); code != ExitOK {
		t.Errorf("exit code %d", code)
	}
	if strings.Contains(p.stderr.String(), topSecret) {
		t.Errorf("the log tells the password:\n%s", p.stderr)
	}
}

func TestASignalEndsAWaitingRun(t *testing.T) {
	t.Parallel()
	gate := newGate(t, "127.0.0.1:1")
	file := runFile(t, "postgres://u:"+topSecret+"@"+gate.address()+"/db", "claimq", []string{gate.address()}, queueYAML("first", "x", "a"))
	p := start(t, newTestEnv(t), "-c", file)
	eventually(t, "it waits", func() bool { return strings.Contains(p.stderr.String(), "what=database") })
	if code := p.stop(); code != ExitOK {
		t.Errorf("exit code %d", code)
	}
	if strings.Contains(p.stderr.String(), topSecret) {
		t.Errorf("the log tells the password:\n%s", p.stderr)
	}
}

func TestASecondSignalEndsItAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	table := sink(t, db)
	kafka := startKafka(t, "a")
	// A handler that waits for a lock that the test holds.
	queue := fmt.Sprintf("  first:\n    topics: [a]\n    id: header:id\n    lock_timeout: 60s\n    stop_budget: 5s\n    handler: {sql: \"insert into %s select 'first', unnest(@ids)\"}\n", table)
	p := start(t, newTestEnv(t), "-c", runFile(t, db.DSN, db.Schema, kafka.ListenAddrs(), queue))
	p.waitReady()
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "lock table "+table+" in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	produce(t, kafka.ListenAddrs(), "a", "1")
	eventually(t, "the handler waits", func() bool {
		return count(t, db, "select count(*) from pg_locks where not granted and relation = '"+table+"'::regclass") == 1
	})
	began := time.Now()
	p.signals <- syscall.SIGINT
	p.signals <- syscall.SIGINT
	if code := p.wait(); code != ExitFailed {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it took %s", took)
	}
	wantAll(t, p.stderr.String(), "stopped at once by a second signal")
	// The rest ends in the background of the test's process, within its budget.
	eventually(t, "what was under way has ended", func() bool { return strings.Contains(p.stderr.String(), "claimq has stopped") })
}
