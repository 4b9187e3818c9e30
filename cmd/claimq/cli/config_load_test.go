package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// loadText loads a configuration file with this text.
func loadText(t *testing.T, text string, variables ...string) (*Config, error) {
	t.Helper()
	env := newTestEnv(t, variables...)
	env.flags.config = writeFile(t, "claimq.yaml", text)
	return env.load()
}

func mustLoad(t *testing.T, text string, variables ...string) *Config {
	t.Helper()
	config, err := loadText(t, text, variables...)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	return config
}

// refusal returns the text of the error that loading the configuration gives, with
// the directory of the file left out.
func refusal(t *testing.T, text string, variables ...string) string {
	t.Helper()
	_, err := loadText(t, text, variables...)
	if err == nil {
		t.Fatalf("this configuration was accepted:\n%s", text)
	}
	if code := exitCode(err); code != ExitConfig {
		t.Errorf("exit code %d, want %d", code, ExitConfig)
	}
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		if at := strings.Index(line, "claimq.yaml"); at >= 0 {
			lines[i] = line[at:]
		}
	}
	return strings.Join(lines, "\n")
}

func TestEveryFieldOfAFileIsRead(t *testing.T) {
	t.Parallel()
	got := mustLoad(t, `
database:
  dsn: postgres://claimq@db/orders
  schema: dedup
  max_connections: 30
  pooler: true
kafka:
  brokers: [kafka-1:9092, kafka-2:9092]
  client_id: "77"
  tls: {enabled: true, server_name: kafka}
  sasl: {mechanism: OAUTHBEARER, token: secret-token, extensions: {logicalCluster: lkc-1}}
http: {listen: ":9467"}
log: {level: debug, format: json}
relay: {enabled: false, slices: 4}
queues:
  orders.eu:
    topics: orders
    owner: {team: payments, contact: "#payments"}
    id: [header:id, "join(json:a,json:b)"]
    retry: {max_attempts: 5, initial_delay: 10s, delay_factor: 1.5, max_delay: 1d12h, jitter: 0}
    batch: {messages: 10, bytes: 1MiB, wait: 0}
    start: 2026-01-31T10:00:00Z
    max_buffered: 1048576
    retention: 14d
    routes:
      - {name: cancelled, header: type, value: cancelled, handler: {sql: select 1, each: true}}
`)
	enabled, noJitter := true, 0.0
	want := defaultConfig()
	want.Database = DatabaseConfig{DSN: "postgres://claimq@db/orders", Schema: "dedup", MaxConnections: 30, Pooler: true}
	want.Kafka = KafkaConfig{
		Brokers:  Strings{"kafka-1:9092", "kafka-2:9092"},
		ClientID: "77",
		TLS:      TLSConfig{Enabled: &enabled, ServerName: "kafka"},
		SASL:     SASLConfig{Mechanism: "OAUTHBEARER", Token: "secret-token", Extensions: map[string]string{"logicalCluster": "lkc-1"}},
	}
	want.HTTP.Listen = ":9467"
	want.Log = LogConfig{Level: "debug", Format: "json"}
	want.Relay = RelayConfig{Slices: 4}
	want.Queues = map[string]QueueConfig{"orders.eu": {
		Topics:      Strings{"orders"},
		Owner:       OwnerConfig{Team: "payments", Contact: "#payments"},
		ID:          Sources{"header:id", "join(json:a,json:b)"},
		Retry:       RetryConfig{MaxAttempts: 5, InitialDelay: Duration(10 * time.Second), DelayFactor: 1.5, MaxDelay: Duration(36 * time.Hour), Jitter: &noJitter},
		Batch:       BatchConfig{Messages: 10, Bytes: 1 << 20},
		Start:       "2026-01-31T10:00:00Z",
		MaxBuffered: 1 << 20,
		Retention:   Duration(14 * 24 * time.Hour),
		Routes:      []RouteConfig{{Name: "cancelled", Header: "type", Value: "cancelled", Handler: &HandlerConfig{SQL: "select 1", Each: true}}},
	}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Config{})); diff != "" {
		t.Errorf("the configuration differs (-want +got):\n%s", diff)
	}
}

func TestWithoutAFileThereAreTheDefaults(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t)
	got, err := env.load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(defaultConfig(), got, cmpopts.IgnoreUnexported(Config{})); diff != "" {
		t.Errorf("not the defaults (-want +got):\n%s", diff)
	}
}

func TestMistakesAreNamedByPlaceWithTheNearestName(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, want string }{
		"unknown section": {
			"databse:\n  dsn: x\n",
			"claimq.yaml:1: databse: there is no such field; did you mean database? known here: database, http, kafka, log, queues, relay",
		},
		"unknown field of a queue": {
			"queues:\n  orders:\n    retry:\n      max_atempts: 4\n",
			"claimq.yaml:4: queues.orders.retry.max_atempts: there is no such field; did you mean max_attempts?",
		},
		"unknown field in a list": {
			"queues:\n  orders.eu:\n    routes:\n      - name: a\n      - nam: b\n",
			"claimq.yaml:5: queues.orders.eu.routes[1].nam: there is no such field; did you mean name?",
		},
		"a number where a text is": {
			"queues:\n  q:\n    routes:\n      - name: 4\n",
			"claimq.yaml:4: queues.q.routes[0].name: a text (numbers, true and false stand in quotes to be one) is needed, not a whole number",
		},
		"a text where a number is": {
			"queues:\n  q:\n    concurrency: four\n",
			"claimq.yaml:3: queues.q.concurrency: a whole number is needed, not a text",
		},
		"a number without unit": {
			"queues:\n  q:\n    handler_timeout: 30\n",
			"claimq.yaml:3: queues.q.handler_timeout: a duration with its unit, as 90s, 12h or 8d, is needed, not a whole number",
		},
		"a list where a section is": {
			"database: [a]\n",
			"claimq.yaml:1: database: a section with fields is needed, not a list",
		},
		"a section where a text is": {
			"http:\n  listen: {host: a}\n",
			"claimq.yaml:2: http.listen: a text (numbers, true and false stand in quotes to be one) is needed, not a section with fields",
		},
		"a text where a section is": {
			"queues: orders\n",
			"claimq.yaml:1: queues: a section with fields is needed, not a text",
		},
		"a duration in words": {
			"queues:\n  q:\n    retention: a week\n",
			"claimq.yaml:3: queues.q.retention: a duration is needed: a number with its unit",
		},
		"a size in an unknown unit": {
			"queues:\n  q:\n    batch: {bytes: 4 pages}\n",
			"claimq.yaml:3: queues.q.batch.bytes: the unit \"pages\" is unknown; the units are B, KB, MB, GB, KiB, MiB, GiB",
		},
		"case counts": {
			"queues:\n  q:\n    Topics: [a]\n",
			"claimq.yaml:3: queues.q.Topics: there is no such field; did you mean topics?",
		},
		"the same key twice": {
			"queues:\n  q: {}\n  q: {}\n",
			`already defined at line 2`,
		},
		"not YAML": {
			"queues: [\n",
			"claimq.yaml: yaml: line 1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := refusal(t, test.text); !strings.Contains(got, test.want) {
				t.Errorf("the error is\n%s\nand not\n%s", got, test.want)
			}
		})
	}
}

func TestAllMistakesAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	got := refusal(t, "databse: {}\nlog: {level: 4, formt: json}\nqueues:\n  q: {concurrency: x, retention: y}\n",
		"CLAIMQ_LOG__LEVLE=debug")
	wantAll(t, got, "databse", "log.level", "log.formt", "queues.q.concurrency", "queues.q.retention", "CLAIMQ_LOG__LEVLE")
	if lines := strings.Count(got, "\n") + 1; lines != 6 {
		t.Errorf("%d lines, want 6:\n%s", lines, got)
	}
}

func TestAMissingFileSaysSo(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t)
	path := filepath.Join(t.TempDir(), "none.yaml")
	got := env.refuse(ExitConfig, "config", "check", "-c", path)
	wantAll(t, got, path, "no such file")
}

func TestTheEnvironmentRulesOverTheFileAndFlagsOverBoth(t *testing.T) {
	t.Parallel()
	env := newTestEnv(t,
		"CLAIMQ_DATABASE__DSN=postgres://env/db",
		"CLAIMQ_DSN=postgres://short/db",
		"CLAIMQ_KAFKA__BROKERS=a:1,b:2",
		"CLAIMQ_RELAY__ENABLED=false",
		"CLAIMQ_QUEUES__ORDERS_EU__CONCURRENCY=7",
		"CLAIMQ_QUEUES__ORDERS_EU__RETRY__DELAY_FACTOR=1.5",
		"CLAIMQ_QUEUES__ORDERS_EU__RETENTION=3d",
		"CLAIMQ_QUEUES__ORDERS_EU__ID=header:a\njson:b",
		"CLAIMQ_QUEUES__ORDERS_EU__HANDLER__EACH=true",
		"CLAIMQ_KAFKA__SASL__EXTENSIONS__CLUSTER=c",
		"CLAIMQ_PORT_9467_TCP_ADDR=10.0.0.1", // Kubernetes
	)
	env.flags.config = writeFile(t, "claimq.yaml", `
database: {dsn: postgres://file/db, schema: from_file}
kafka: {brokers: [x:1]}
queues:
  orders.eu: {topics: [orders], concurrency: 2, handler: {sql: select 1}}
`)
	env.flags.schema = "from_flag"
	got, err := env.load()
	if err != nil {
		t.Fatal(err)
	}
	queue := got.Queues["orders.eu"]
	for _, check := range []struct {
		name      string
		got, want any
	}{
		{"dsn", string(got.Database.DSN), "postgres://env/db"},
		{"schema", got.Database.Schema, "from_flag"},
		{"brokers", got.Kafka.Brokers, Strings{"a:1", "b:2"}},
		{"relay.enabled", got.Relay.Enabled, false},
		{"concurrency", queue.Concurrency, 7},
		{"delay_factor", queue.Retry.DelayFactor, 1.5},
		{"retention", time.Duration(queue.Retention), 72 * time.Hour},
		{"id", queue.ID, Sources{"header:a", "json:b"}},
		{"handler", *queue.Handler, HandlerConfig{SQL: "select 1", Each: true}},
		{"topics", queue.Topics, Strings{"orders"}},
		{"extensions", got.Kafka.SASL.Extensions, map[string]string{"cluster": "c"}},
	} {
		if diff := cmp.Diff(check.want, check.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", check.name, diff)
		}
	}
}

func TestAWrongVariableIsRefused(t *testing.T) {
	t.Parallel()
	file := "queues:\n  a.b: {topics: [t]}\n  a-b: {topics: [t]}\n  c: {topics: [t]}\n"
	for variable, want := range map[string]string{
		"CLAIMQ_DATABSE__DSN=x":                "CLAIMQ_DATABSE__DSN: there is no field databse; did you mean CLAIMQ_DATABASE?",
		"CLAIMQ_DATABASE__DNS=x":               "CLAIMQ_DATABASE__DNS: there is no field database.dns; did you mean CLAIMQ_DATABASE__DSN?",
		"CLAIMQ_QUEUES__A_B__CONCURRENCY=1":    "CLAIMQ_QUEUES__A_B__CONCURRENCY: 2 queues of the configuration file are written A_B",
		"CLAIMQ_QUEUES__NONE__CONCURRENCY=1":   "CLAIMQ_QUEUES__NONE__CONCURRENCY: 0 queues",
		"CLAIMQ_QUEUES__C__CONCURRENCY=many":   "queues.c.concurrency: a whole number is needed",
		"CLAIMQ_QUEUES__C__HIDE_IDS=perhaps":   "queues.c.hide_ids: true or false is needed",
		"CLAIMQ_QUEUES__C__ROUTES=x":           "queues.c.routes is a section and cannot be set as a whole",
		"CLAIMQ_QUEUES__C__TOPICS__X=x":        "queues.c.topics has no parts",
		"CLAIMQ_QUEUES__C__RETRY=x":            "queues.c.retry is a section",
		"CLAIMQ_QUEUES__C__RETENTION=forever":  "queues.c.retention: a duration is needed",
		"CLAIMQ_QUEUES__C__BATCH__BYTES=heavy": "queues.c.batch.bytes: a size is needed",
	} {
		t.Run(variable, func(t *testing.T) {
			t.Parallel()
			if got := refusal(t, file, variable); !strings.Contains(got, want) {
				t.Errorf("the error is\n%s\nand not\n%s", got, want)
			}
		})
	}
}

func TestASettingTakesThePlaceOfItsFileInALowerLayer(t *testing.T) {
	t.Parallel()
	config := mustLoad(t, "database: {dsn_file: /run/dsn, password: plain}\n",
		"CLAIMQ_DSN=postgres://env/db", "CLAIMQ_DATABASE__PASSWORD_FILE=/run/password")
	want := DatabaseConfig{DSN: "postgres://env/db", PasswordFile: "/run/password"}
	if diff := cmp.Diff(want, config.Database); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := mustLoad(t, "database: {dsn: postgres://a/b, dsn_file: /run/dsn}\n").address(); err == nil {
		t.Error("both in one layer are accepted")
	}
}

func TestReferencesAreFilledIn(t *testing.T) {
	t.Parallel()
	secret := writeFile(t, "password", "p${ENV:NOT}w\n")
	config := mustLoad(t, fmt.Sprintf(`
database:
  dsn: postgres://${ENV:DB_USER}@db/orders
  password: ${FILE:%s}
  password_file: ""
  direct_dsn_file: relative/dsn
queues:
  q:
    topics: ["${ENV:TOPIC}", plain]
    handler: {sql: "select '$${ENV:DB_USER}', '${other}', $1"}
`, secret), "DB_USER=claimq", "TOPIC=orders")
	if got := string(config.Database.DSN); got != "postgres://claimq@db/orders" {
		t.Errorf("dsn = %s", got)
	}
	if got := string(config.Database.Password); got != "p${ENV:NOT}w" {
		t.Errorf("a filled-in text is looked at again, or its line break is kept: %q", got)
	}
	if got := filepath.Dir(config.Database.DirectDSNFile); got != filepath.Join(filepath.Dir(config.file), "relative") {
		t.Errorf("a relative path begins at %s and not at the configuration's directory", got)
	}
	if diff := cmp.Diff(Strings{"orders", "plain"}, config.Queues["q"].Topics); diff != "" {
		t.Error(diff)
	}
	if got := config.Queues["q"].Handler.SQL; got != "select '${ENV:DB_USER}', '${other}', $1" {
		t.Errorf("sql = %s", got)
	}
}

func TestAReferenceToNothingIsRefused(t *testing.T) {
	t.Parallel()
	got := refusal(t, "database:\n  dsn: ${ENV:NONE}\n  password: ${FILE:none}\n  schema: ${VAULT:x}\n")
	wantAll(t, got,
		"claimq.yaml:2: database.dsn: ${ENV:NONE}: the environment has no such variable",
		"claimq.yaml:3: database.password: ${FILE:none}: open ",
		"claimq.yaml:4: database.schema: ${VAULT:x}: a reference is ${ENV:NAME} or ${FILE:path}",
	)
	empty := writeFile(t, "empty", "\n")
	wantAll(t, refusal(t, "database: {password: '${FILE:"+empty+"}'}"), "is empty")
}

const topSecret = "hunter2-s3cr3t"

func TestNoErrorTellsAPassword(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a list":                  "database: {password: [" + topSecret + "]}",
		"a section":               "database: {password: {" + topSecret + ": 1}}",
		"an alias":                "database:\n  password: *" + topSecret + "\n",
		"a tab":                   "database:\n\tpassword: " + topSecret + "\n",
		"an open quote":           "database:\n  password: '" + topSecret + "\n",
		"text behind a quote":     "database:\n  password: 'a'" + topSecret + "\n",
		"a tag":                   "database:\n  password: !" + topSecret + " x\n",
		"a sasl password":         "kafka: {sasl: {password: [" + topSecret + "]}}",
		"a password for a number": "database: {max_connections: " + topSecret + "}",
		"a password for a bool":   "database: {pooler: " + topSecret + "}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := loadText(t, text); err != nil && strings.Contains(err.Error(), topSecret) && name != "a section" {
				t.Errorf("the error tells it: %v", err)
			}
		})
	}
	for _, dsn := range []string{
		"postgres://u:" + topSecret + "@host:notaport/db",
		"postgres://u:" + topSecret + "/x@host/db",
		"postgres://u:%zz" + topSecret + "@host/db",
		"postgres://u:" + topSecret + "#x@host/db",
		"postgres://u:" + topSecret + "@host/db?sslmode=none",
		"postgres://u:a@" + topSecret + "@host:x/db",
		"postgres://host/db?password=" + topSecret + "&connect_timeout=x",
		"host=h password=" + topSecret + " sslmode=none",
		"host=h password='" + topSecret,
		"host=h password=a " + topSecret,
		"host=h port=x password=" + topSecret,
		"mysql://u:" + topSecret + "@h/d?sslmode=disable",
		topSecret,
	} {
		config := &Config{Database: DatabaseConfig{DSN: Secret(dsn)}}
		_, err := config.poolConfig()
		if err == nil {
			t.Errorf("%s is accepted", dsn)
			continue
		}
		if exitCode(err) != ExitConfig {
			t.Errorf("%s: exit code %d", dsn, exitCode(err))
		}
		if strings.Contains(err.Error(), topSecret) {
			t.Errorf("the error tells the password: %v", err)
		}
	}
}

func TestASecretIsNotPrinted(t *testing.T) {
	t.Parallel()
	config := mustLoad(t, "database: {dsn: postgres://u:"+topSecret+"@h/d, password: "+topSecret+"}\nkafka: {sasl: {token: "+topSecret+"}}\n")
	asJSON, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("configuration", "config", config, "password", config.Database.Password)
	for _, text := range []string{
		fmt.Sprint(config), fmt.Sprintf("%+v", config), fmt.Sprintf("%#v", *config), fmt.Sprintf("%q", config.Database.Password),
		string(asJSON), log.String(), fmt.Sprint(errors.New(config.Database.DSN.String())),
	} {
		if strings.Contains(text, topSecret) {
			t.Errorf("it is in: %s", text)
		}
	}
	if got := Secret("").String(); got != "" {
		t.Errorf("an empty secret looks like one: %q", got)
	}
}
