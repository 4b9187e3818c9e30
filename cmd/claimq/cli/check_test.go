package cli

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// golden compares a text with a file in testdata, or writes the file with -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs; run this test with -update when that is right (-file +got):\n%s", path, diff)
	}
}

// exampleCopy is the example with the secrets' files and the certificates that it
// names made or left out.
func exampleCopy(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/claimq.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	secret := writeFile(t, "password", "p\n")
	return writeFile(t, "claimq.yaml", strings.NewReplacer(
		"/run/secrets/database-password", secret, "/run/secrets/kafka-password", secret).Replace(string(text)))
}

func TestTheExampleIsRightAndItsContractIsTold(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t)
	golden(t, "check_example.txt", env.mustRun("config", "check", "-c", exampleCopy(t)))
}

func TestTheContractAsJSON(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t)
	var report checkReport
	if err := json.Unmarshal([]byte(env.mustRun("config", "check", "--json", "-c", exampleCopy(t))), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Queues) != 2 || report.Queues[0].Queue != "orders" || report.Queues[1].Order == "" {
		t.Errorf("%+v", report)
	}
}

// connections are the sections that every configuration needs.
const connections = "database: {dsn: postgres://db/x}\nkafka: {brokers: [b]}\n"

func TestContractsOfOtherQueues(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t)
	golden(t, "check_others.txt", env.mustRun("config", "check", "-c", writeFile(t, "claimq.yaml", connections+`
queues:
  plain:
    topics: [t]
    id: key
    handler: {sql: "insert into x select unnest(@ids)"}
  none:
    topics: [a, b]
    claims: none
    order: none
    handler: {sql: "insert into x select unnest(@keys)"}
  odd:
    topics: [t]
    group: other
    id: key
    on_missing: offset
    fingerprint: none
    repeats: log
    order: partition
    on_dead: block
    start: 2026-01-31T10:00:00Z
    retry: {max_attempts: 12, initial_delay: 1s, jitter: 0}
    replay_window: 1d
    handler: {sql: "insert into x values (@id)", each: true}
  once:
    topics: [t]
    id: key
    retry: {max_attempts: 1}
    handler: {sql: "insert into x values (@id)", each: true}
`)))
}

func TestWhatCannotWorkIsRefusedInTheFilesWords(t *testing.T) {
	t.Parallel()
	handler := "    handler: {sql: \"insert into x select unnest(@ids)\"}\n"
	for name, test := range map[string]struct{ queue, want string }{
		"no topics":       {"    id: key\n" + handler, "claimq.yaml:4: queues.q.topics: is missing"},
		"no id":           {"    topics: [t]\n" + handler, "claimq.yaml:4: queues.q.id: is missing"},
		"no handler":      {"    topics: [t]\n    id: key\n", "queues.q.handler: is missing, and there are no routes"},
		"no operation":    {"    topics: [a, b]\n    id: key\n" + handler, "queues.q.operation: is missing, and 2 topics are read"},
		"bad source":      {"    topics: [t]\n    id: [key, heder:x]\n" + handler, "claimq.yaml:6: queues.q.id[1]: source \"heder:x\": unknown kind"},
		"constant id":     {"    topics: [t]\n    id: topic\n" + handler, "queues.q.id: "},
		"bad fingerprint": {"    topics: [t]\n    id: key\n    fingerprint: row\n" + handler, "claimq.yaml:7: queues.q.fingerprint: "},
		"bad order":       {"    topics: [t]\n    id: key\n    order: keys\n" + handler, `claimq.yaml:7: queues.q.order: "keys" is unknown; did you mean key? there is: key, partition, none`},
		"bad on_missing":  {"    topics: [t]\n    id: key\n    on_missing: rejct\n" + handler, "claimq.yaml:7: queues.q.on_missing: "},
		"bad start":       {"    topics: [t]\n    id: key\n    start: yesterday\n" + handler, "claimq.yaml:7: queues.q.start: \"yesterday\" is none of committed, earliest, latest"},
		"bad policy":      {"    topics: [t]\n    id: key\n    retry: {delay_factor: 0.5}\n" + handler, "claimq.yaml:7: queues.q.retry: delay_factor: 0.5 is not between"},
		"own topic":       {"    topics: [t]\n    id: key\n    dead_letter_topic: t\n" + handler, "claimq.yaml:7: queues.q.dead_letter_topic: "},
		"arithmetic":      {"    topics: [t]\n    id: key\n    resend_horizon: 9d\n" + handler, "claimq.yaml:7: queues.q.resend_horizon: ids are remembered for 192h0m0s and it reaches 216h0m0s"},
		"sum":             {"    topics: [t]\n    id: key\n    resend_horizon: 5d\n    replay_window: 5d\n" + handler, "queues.q.retention: "},
		"timeouts":        {"    topics: [t]\n    id: key\n    handler_timeout: 2m\n" + handler, "claimq.yaml:7: queues.q.handler_timeout: "},
		"bad statement":   {"    topics: [t]\n    id: key\n    handler: {sql: 'select @vlaue'}\n", "claimq.yaml:7: queues.q.handler.sql: "},
		"empty statement": {"    topics: [t]\n    id: key\n    handler: {each: true}\n", "claimq.yaml:7: queues.q.handler.sql: is missing"},
		"no such file":    {"    topics: [t]\n    id: key\n    handler: {sql_file: none.sql}\n", "claimq.yaml:7: queues.q.handler.sql_file: open "},
		"two statements":  {"    topics: [t]\n    id: key\n    handler: {sql: x, sql_file: y}\n", "queues.q.handler.sql_file: sql is set too"},
		"empty route":     {"    topics: [t]\n    id: key\n    routes: [{name: a}]\n", "claimq.yaml:7: queues.q.routes[0].handler: is missing"},
		"route's topic":   {"    topics: [t]\n    id: key\n    routes:\n      - {name: a, topic: u, handler: {sql: 'select @ids'}}\n", "queues.q.routes: route \"a\" takes topic \"u\""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := newTestEnv(t)
			got := env.refuse(ExitConfig, "config", "check", "-c", writeFile(t, "claimq.yaml", connections+"queues:\n  q:\n"+test.queue))
			if !strings.Contains(got, test.want) {
				t.Errorf("the error is\n%s\nand not\n%s", got, test.want)
			}
			if lines := strings.Count(got, "\n"); lines != 1 {
				t.Errorf("%d lines for one mistake:\n%s", lines, got)
			}
		})
	}
}

func TestABadNameOfAQueueIsRefused(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t)
	got := env.refuse(ExitConfig, "config", "check", "-c", writeFile(t, "claimq.yaml",
		connections+"queues:\n  'a b': {topics: [t], id: key, handler: {sql: 'select unnest(@ids)'}}\n"))
	wantAll(t, got, "queues.a b", "a queue needs a name of letters, digits")
}

func TestGoodQueuesAreShownBesideRefusedOnes(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t)
	got := env.refuse(ExitConfig, "config", "check", "-c", writeFile(t, "claimq.yaml", `
log: {level: loud}
http: {listen: "9467"}
relay: {slices: 65}
kafka: {brokers: ["a:b:c"], sasl: {mechanism: plain}}
queues:
  bad: {}
  good: {topics: [t], id: key, handler: {sql: 'select unnest(@ids)'}}
`))
	wantAll(t, got, "database.dsn: no database is named", `log.level: "loud" is unknown`, "claimq.yaml:4: relay.slices: 65 is not between 1 and 64",
		`claimq.yaml:3: http.listen: "9467" is neither host:port, nor :port, nor off`, "queues.bad.topics", "queues.bad.id", "queues.bad.handler")
	wantAll(t, env.stdout.String(), "queue good")
}

func TestWithoutQueuesThereIsNothingToCheck(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t)
	wantAll(t, env.refuse(ExitConfig, "config", "check"), "no queue is configured", "no broker is named", "no database is named")
}

func TestTheLogsFormIsChosen(t *testing.T) {
	t.Parallel()
	for form, want := range map[string]string{"json": `"level":"WARN","msg":"hello","queue":"q"}`, "text": `level=WARN msg=hello queue=q`} {
		env := newTestEnv(t)
		config := defaultConfig()
		config.Log = LogConfig{Level: "warn", Format: form}
		logger, err := env.logger(config)
		if err != nil {
			t.Fatal(err)
		}
		logger.Info("not this")
		logger.Warn("hello", "queue", "q")
		if got := env.stderr.String(); !strings.Contains(got, want) || strings.Contains(got, "not this") {
			t.Errorf("%s: %s", form, got)
		}
	}
}

// What Kafka's client tells of itself is for who debugs; its warnings are for all.
func TestKafkasClientIsQuietUnlessDebugging(t *testing.T) {
	t.Parallel()
	for level, wanted := range map[string]bool{"debug": true, "info": false, "error": false} {
		env := newTestEnv(t)
		config := defaultConfig()
		config.Log.Level = level
		logger, err := env.logger(config)
		if err != nil {
			t.Fatal(err)
		}
		client := slog.New(clientLog{logger.Handler()}).With("a", 1).WithGroup("g")
		client.Info("joined")
		client.Warn("lost")
		got := env.stderr.String()
		if strings.Contains(got, "joined") != wanted || strings.Contains(got, "lost") != (level != "error") {
			t.Errorf("at %s: %s", level, got)
		}
	}
}
