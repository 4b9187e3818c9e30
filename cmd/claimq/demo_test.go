package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/kafkatest"
	"github.com/claimq/claimq/internal/pgtest"
)

// demoTakes bounds a whole demo of few orders on a busy machine.
const demoTakes = 2 * time.Minute

// A demoRun is `claimq demo` as a process, with a directory of its own for
// everything temporary.
type demoRun struct {
	t      *testing.T
	cmd    *exec.Cmd
	dir    string
	out    syncBuffer // standard output
	stderr io.Closer
	lines  *bufio.Scanner
	said   []string // on standard error
}

func startDemo(t *testing.T, environ []string, args ...string) *demoRun {
	t.Helper()
	// Short, for sockets, and open to the user that Postgres runs under.
	dir, err := os.MkdirTemp("", "cqd") //nolint:usetesting // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d := &demoRun{t: t, cmd: command(t, append([]string{"demo"}, args...)...), dir: dir}
	d.cmd.Env = append(d.cmd.Env, "TMPDIR="+dir, "PATH="+os.Getenv("PATH"), "HOME="+os.Getenv("HOME"))
	d.cmd.Env = append(d.cmd.Env, environ...)
	d.cmd.Stdout = &d.out
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.stderr, d.lines = stderr, bufio.NewScanner(stderr)
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timeout := time.AfterFunc(demoTakes, func() { _ = d.cmd.Process.Kill() })
	t.Cleanup(func() { timeout.Stop() })
	return d
}

// until reads what it says until a line holds text, and returns that line.
func (d *demoRun) until(text string) string {
	d.t.Helper()
	for d.lines.Scan() {
		d.said = append(d.said, d.lines.Text())
		if strings.Contains(d.lines.Text(), text) {
			return d.lines.Text()
		}
	}
	d.t.Fatalf("it never said %q:\n%s\n%s", text, strings.Join(d.said, "\n"), d.out.String())
	return ""
}

// end waits for the end and returns the exit code.
func (d *demoRun) end() int {
	d.t.Helper()
	for d.lines.Scan() {
		d.said = append(d.said, d.lines.Text())
	}
	_ = d.cmd.Wait() // the exit code is looked at
	return d.cmd.ProcessState.ExitCode()
}

func (d *demoRun) signal(s syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.t.Fatalf("%s: %v", s, err)
	}
}

// leavesNothing checks that no process of the run and none of its files is left. A
// guard of a server needs a moment to see that it is not needed any more.
func (d *demoRun) leavesNothing() {
	d.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		files, _ := filepath.Glob(filepath.Join(d.dir, "*"))
		processes := processesWith("TMPDIR=" + d.dir)
		if len(files)+len(processes) == 0 {
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("left behind: files %q, processes %q; it said:\n%s", files, processes, strings.Join(d.said, "\n"))
		}
		<-tick.C
	}
}

// processesWith lists the command lines of processes that have a setting in their
// environment. It needs /proc; elsewhere it finds none.
func processesWith(setting string) (list []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range names {
		environ, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+setting+"\x00")) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
		list = append(list, strings.ReplaceAll(string(line), "\x00", " "))
	}
	return list
}

// A syncBuffer is written to while the test reads.
type syncBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *syncBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(text)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// account is what a test looks at of the JSON.
type account struct {
	Sent, Lost, Doubled int
	AppliedOnce         int `json:"applied_once"`
	Killed              int `json:"killed_with_uncommitted"`
	Broken              []string
}

func TestTheDemoHoldsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	d := startDemo(t, nil, "--orders", "600", "--seed", "3", "--json")
	code := d.end()
	var a account
	if err := json.Unmarshal([]byte(d.out.String()), &a); err != nil {
		t.Fatalf("exit code %d, no account: %v\n%s", code, err, strings.Join(d.said, "\n"))
	}
	if code != 0 || a.Sent != 600 || a.Lost != 0 || a.Doubled != 0 || a.AppliedOnce < 500 || a.Killed < 2 || len(a.Broken) != 0 {
		t.Errorf("exit code %d, account %+v", code, a)
	}
	d.leavesNothing()
}

func TestASignalAtAnyMomentLeavesNothing(t *testing.T) {
	t.Parallel()
	const interrupted = 130
	for name, c := range map[string]struct {
		at      string
		signals []syscall.Signal
	}{
		"while Kafka starts":          {"starting a Kafka", []syscall.Signal{syscall.SIGINT}},
		"while Postgres starts":       {"starting a Postgres", []syscall.Signal{syscall.SIGINT}},
		"twice while Postgres starts": {"starting a Postgres", []syscall.Signal{syscall.SIGINT, syscall.SIGINT}},
		"while a consumer starts":     {"consumer 1 starts", []syscall.Signal{syscall.SIGTERM}},
		"while a process joins":       {"consumer 2 joins", []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}},
		"while both consume":          {"more orders come in", []syscall.Signal{syscall.SIGHUP}},
		"after the kill":              {"kill -9", []syscall.Signal{syscall.SIGINT, syscall.SIGINT, syscall.SIGINT}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startDemo(t, nil, "--orders", "1000")
			d.until(c.at)
			for _, s := range c.signals {
				d.signal(s)
			}
			if code := d.end(); code != interrupted {
				t.Errorf("exit code %d, want %d:\n%s", code, interrupted, strings.Join(d.said, "\n"))
			}
			d.leavesNothing()
		})
	}
}

func TestADemoThatIsKilledLeavesNothing(t *testing.T) {
	t.Parallel()
	d := startDemo(t, nil, "--orders", "1000")
	d.until("more orders come in")
	d.signal(syscall.SIGKILL)
	d.end()
	d.leavesNothing()
}

func TestAReaderThatGoesAwayLeavesNothing(t *testing.T) {
	t.Parallel()
	d := startDemo(t, nil, "--orders", "1000")
	d.until("consumer 1 starts")
	if err := d.stderr.Close(); err != nil {
		t.Fatal(err)
	}
	if code := d.end(); code == 0 {
		t.Error("exit code 0, without an account that anybody has seen")
	}
	d.leavesNothing()
}

func TestAKeptDemoStaysUpUntilASignal(t *testing.T) {
	t.Parallel()
	d := startDemo(t, nil, "--orders", "300", "--keep")
	d.until("comparing")
	dsn := d.keptAt(regexp.MustCompile(`Postgres +(\S+)`))
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatalf("the database that is kept: %v", err)
	}
	var orders int
	if err := conn.QueryRow(t.Context(), "select count(*) from claimq.demo_orders").Scan(&orders); err != nil || orders < 200 {
		t.Errorf("%d orders are kept: %v", orders, err)
	}
	_ = conn.Close(t.Context())
	d.signal(syscall.SIGINT)
	if code := d.end(); code != 0 {
		t.Errorf("exit code %d, want 0: the account held\n%s", code, strings.Join(d.said, "\n"))
	}
	d.leavesNothing()
}

// keptAt waits until the demo has told how to reach it, which comes on standard
// output, and returns what the pattern finds there.
func (d *demoRun) keptAt(pattern *regexp.Regexp) string {
	d.t.Helper()
	deadline := time.Now().Add(demoTakes)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(deadline) {
		if found := pattern.FindStringSubmatch(d.out.String()); found != nil {
			return found[1]
		}
		<-tick.C
	}
	d.t.Fatalf("it never told how to reach it:\n%s", d.out.String())
	return ""
}

func TestTheDemoOnGivenServersRemovesWhatItMade(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keep, interrupt bool
		code            int
	}{
		"removed":                          {},
		"interrupted":                      {interrupt: true, code: 130},
		"kept":                             {keep: true},
		"asked to be kept and interrupted": {keep: true, interrupt: true, code: 130},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keep := c.keep && !c.interrupt
			args := []string{"--orders", "400", "--brokers", strings.Join(kafkatest.Brokers(t), ","), "--dsn", pgtest.DSN(t)}
			if c.keep {
				args = append(args, "--keep")
			}
			d := startDemo(t, nil, args...)
			names := regexp.MustCompile(`schema (\S+), topics (.*)`).FindStringSubmatch(d.until("schema claimq_demo_"))
			schema, topics := names[1], strings.Split(names[2], ", ")
			t.Cleanup(func() { removeDemo(t, schema, topics) })
			switch {
			case c.interrupt:
				d.until("kill -9")
				d.signal(syscall.SIGINT)
			case keep:
				d.until("comparing")
				d.keptAt(regexp.MustCompile(`schema (\S+),`))
				d.signal(syscall.SIGTERM)
			}
			if code := d.end(); code != c.code {
				t.Errorf("exit code %d, want %d:\n%s\n%s", code, c.code, strings.Join(d.said, "\n"), d.out.String())
			}
			d.leavesNothing()
			if there := demoSchemaExists(t, schema); there != keep {
				t.Errorf("schema %s: there %t, want %t", schema, there, keep)
			}
			if group := strings.TrimSuffix(topics[0], ".orders"); demoGroupExists(t, group) != keep {
				t.Errorf("group %s: want it there %t", group, keep)
			}
			if found := demoTopics(t, topics); (found == len(topics)) != keep || (found == 0) == keep {
				t.Errorf("%d of the topics %q are there; want all: %t", found, topics, keep)
			}
		})
	}
}

// removeDemo removes what a kept demo has left on the shared servers.
func removeDemo(t *testing.T, schema string, topics []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, pgtest.DSN(t))
	if err != nil {
		t.Errorf("clean up: %v", err)
		return
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "drop schema if exists "+pgx.Identifier{schema}.Sanitize()+" cascade"); err != nil {
		t.Errorf("clean up: %v", err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Brokers(t)...))
	if err != nil {
		t.Errorf("clean up: %v", err)
		return
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).DeleteTopics(ctx, topics...); err != nil {
		t.Errorf("clean up: %v", err)
	}
}

func demoSchemaExists(t *testing.T, schema string) (there bool) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), "select to_regnamespace($1) is not null", schema).Scan(&there); err != nil {
		t.Fatal(err)
	}
	return there
}

func demoGroupExists(t *testing.T, group string) bool {
	t.Helper()
	groups, err := kadm.NewClient(kafkatest.Client(t, kafkatest.Brokers(t))).ListGroups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, there := groups[group]
	return there
}

// demoTopics counts the topics that exist. A broker goes on telling of a deleted
// topic for a moment.
func demoTopics(t *testing.T, topics []string) (found int) {
	t.Helper()
	admin := kadm.NewClient(kafkatest.Client(t, kafkatest.Brokers(t)))
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		details, err := admin.ListTopics(t.Context(), topics...)
		if err != nil {
			t.Fatal(err)
		}
		found = 0
		for _, topic := range topics {
			if d, ok := details[topic]; ok && d.Err == nil {
				found++
			}
		}
		if found == 0 || found == len(topics) || time.Now().After(deadline) {
			return found
		}
		<-tick.C
	}
}

func TestADemoThatCannotStartSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		environ []string
		args    []string
		code    int
		says    []string
	}{
		"no Postgres":       {[]string{"CLAIMQ_PG_BIN=/nowhere"}, nil, 1, []string{"CLAIMQ_PG_BIN=/nowhere", "--dsn"}},
		"a wrong address":   {nil, []string{"--dsn", "postgres://nobody@127.0.0.1:1/none"}, 1, []string{"database", "--dsn"}},
		"no broker":         {nil, []string{"--brokers", "127.0.0.1:1"}, 1, []string{"no broker answers at 127.0.0.1:1", "--brokers"}},
		"too few orders":    {nil, []string{"--orders", "10"}, 64, []string{"--orders must be between 200"}},
		"a file of nothing": {nil, []string{"-c", "/nowhere.yaml"}, 78, []string{"/nowhere.yaml"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startDemo(t, c.environ, c.args...)
			code := d.end()
			said := strings.Join(d.said, "\n")
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, text := range c.says {
				if !strings.Contains(said, text) {
					t.Errorf("it does not say %q:\n%s", text, said)
				}
			}
			d.leavesNothing()
		})
	}
}
