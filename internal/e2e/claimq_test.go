package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/claimq/claimq/internal/localproc"
)

// binary builds the command once for all tests.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "cq-e2e-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "claimq")
	if out, err := exec.Command("go", "build", "-o", path, "../../cmd/claimq").CombinedOutput(); err != nil {
		return "", errors.Join(err, fmt.Errorf("build the command: %s", out))
	}
	return path, nil
})

var binaryDir string

func removeBinary() {
	if binaryDir != "" {
		_ = os.RemoveAll(binaryDir)
	}
}

// claimq starts the command with a configuration file.
func claimq(t *testing.T, config string, args ...string) *process {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "claimq.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return launch(t, "claimq "+strings.Join(args, " "), path, append([]string{"--config", file}, args...), nil)
}

// claimqDone runs the command to its end, which must be a good one.
func claimqDone(t *testing.T, config string, args ...string) string {
	t.Helper()
	p := claimq(t, config, args...)
	if code := p.wait(); code != 0 {
		t.Fatalf("claimq %s: exit code %d:\n%s", strings.Join(args, " "), code, p.output())
	}
	return p.output()
}

// ordersTable is what ordersSQL fills.
const ordersTable = `create table %s.orders (
	n bigint generated always as identity, id text primary key, key text, customer text, doc jsonb, headers jsonb,
	topic text, partition int, "offset" bigint)`

// ordersSQL is a handler for JSON values.
const ordersSQL = `insert into SCHEMA.orders (id, key, customer, doc, headers, topic, partition, "offset")
        select m.id, m.key, m.doc->>'customer', m.doc, m.headers, m.topic, m.partition, m."offset"
          from unnest(@ids, @key_texts, @values, @headers_list, @topics, @partitions, @offsets)
               as m (id, key, doc, headers, topic, partition, "offset")`

// ordersConfig is a file for `claimq run` on the shop, whose queue is named as the
// topic. more are lines of the queue.
func (s *shop) ordersConfig(more ...string) string {
	s.t.Helper()
	if _, err := s.db.Pool.Exec(s.t.Context(), strings.Replace(fmt.Sprintf(ordersTable, s.db.Schema), "create table", "create table if not exists", 1)); err != nil {
		s.t.Fatal(err)
	}
	lines := []string{
		"database:", "  dsn: " + s.db.DSN, "  schema: " + s.db.Schema,
		"kafka:", "  brokers: " + strings.Join(s.brokers, ","),
		"http:", "  listen: 127.0.0.1:0",
		"queues:", "  " + s.topic + ":", "    topics: " + s.topic,
		"    id: [header:idempotency-key, json:order_id]",
		"    start: earliest",
		"    session_timeout: 3s",
		"    retry: {initial_delay: 200ms}",
		"    handler:", "      sql: |",
	}
	for line := range strings.Lines(strings.ReplaceAll(ordersSQL, "SCHEMA", s.db.Schema)) {
		lines = append(lines, "        "+strings.TrimSpace(line))
	}
	for _, line := range more {
		lines = append(lines, "    "+line)
	}
	return strings.Join(lines, "\n") + "\n"
}

// ended is what a process has said when it ends by itself, with its exit code.
func (p *process) ended() (code int, output string) {
	p.t.Helper()
	code = p.wait()
	return code, localproc.Tail(p.log, 50)
}
