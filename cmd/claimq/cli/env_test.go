package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testEnv is an Env with everything in memory.
type testEnv struct {
	Env
	t              *testing.T
	stdout, stderr *buffer
	variables      []string
}

// buffer is a bytes.Buffer that a command may write to while the test reads.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// newTestEnv returns an Env with the given variables, NAME=value, and no others.
func newTestEnv(t *testing.T, variables ...string) *testEnv {
	t.Helper()
	e := &testEnv{t: t, stdout: &buffer{}, stderr: &buffer{}, variables: variables}
	e.Env = Env{
		Stdin:   strings.NewReader(""),
		Stdout:  e.stdout,
		Stderr:  e.stderr,
		Environ: func() []string { return e.variables },
		Now:     func() time.Time { return time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC) },
	}
	return e
}

// run runs claimq with what Stdout and Stderr hold emptied first.
func (e *testEnv) run(args ...string) int {
	e.t.Helper()
	e.stdout, e.stderr = &buffer{}, &buffer{}
	e.Stdout, e.Stderr = e.stdout, e.stderr
	return Run(e.context(), args, e.Env)
}

// mustRun runs claimq and fails the test unless it ends with ExitOK.
func (e *testEnv) mustRun(args ...string) string {
	e.t.Helper()
	if code := e.run(args...); code != ExitOK {
		e.t.Fatalf("claimq %s: exit code %d\n%s", strings.Join(args, " "), code, e.stderr)
	}
	return e.stdout.String()
}

// refuse runs claimq, which is to end with the code, and returns what it says on Stderr.
func (e *testEnv) refuse(code int, args ...string) string {
	e.t.Helper()
	if got := e.run(args...); got != code {
		e.t.Fatalf("claimq %s: exit code %d, want %d\nstdout:\n%s\nstderr:\n%s", strings.Join(args, " "), got, code, e.stdout, e.stderr)
	}
	return e.stderr.String()
}

func (e *testEnv) context() context.Context { return e.t.Context() }

// writeFile writes a file in a directory of the test's own.
func writeFile(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantAll checks that a text has all parts.
func wantAll(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("there is no %q in:\n%s", part, text)
		}
	}
}
