package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/claimq/claimq/internal/localproc"
)

// A process is a worker or a command that runs beside the test.
type process struct {
	*localproc.Process
	t    *testing.T
	name string
	log  string // the file with its output
	// over: the test ends it, or expects its end.
	over atomic.Bool
}

// processes are those of all tests that run, by the test.
var processes struct {
	sync.Mutex
	of map[*testing.T][]*process
}

// register makes a process known to eventually.
func (p *process) register() {
	processes.Lock()
	defer processes.Unlock()
	if processes.of == nil {
		processes.of = map[*testing.T][]*process{}
	}
	processes.of[p.t] = append(processes.of[p.t], p)
}

// failIfOver ends a test that waits for something while one of its processes has
// ended by itself.
func failIfOver(t *testing.T) {
	t.Helper()
	processes.Lock()
	of := processes.of[t]
	processes.Unlock()
	for _, p := range of {
		if !p.Running() && !p.over.Load() {
			t.Fatalf("%s has ended by itself: %v", p.name, p.Err())
		}
	}
}

// launch starts a process that ends with the test, or with the test's process.
func launch(t *testing.T, name, path string, args, env []string) *process {
	t.Helper()
	guard, err := localproc.NewGuard("", syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, name: name}
	p.log = filepath.Join(t.TempDir(), "output")
	p.Process, err = localproc.Start(localproc.Spec{Path: path, Args: args, Env: env, LogFile: p.log, Guard: guard})
	if err != nil {
		t.Fatal(err)
	}
	p.register()
	t.Cleanup(func() {
		p.Kill()
		_ = guard.Release()
		if t.Failed() {
			t.Logf("the output of %s ends with:\n%s", name, localproc.Tail(p.log, 60))
		}
	})
	return p
}

// worker starts this test's binary again, as a worker.
func worker(t *testing.T, order workerOrder) *process {
	t.Helper()
	text, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return launch(t, order.Name, self, nil, []string{workerVariable + "=" + string(text)})
}

// output is all that the process has said.
func (p *process) output() string {
	p.t.Helper()
	text, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

func (p *process) said(text string) bool { return strings.Contains(p.output(), text) }

// joins is how often a worker has joined its group.
func (p *process) joins() int { return strings.Count(p.output(), joined) }

// wait returns the exit code once the process has ended by itself.
func (p *process) wait() int {
	p.t.Helper()
	p.over.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.t.Fatalf("%s has not ended; it says:\n%s", p.name, localproc.Tail(p.log, 40))
	}
	return p.code()
}

func (p *process) code() int {
	var ended *exec.ExitError
	switch err := p.Err(); {
	case err == nil:
		return 0
	case errors.As(err, &ended):
		return ended.ExitCode()
	default:
		p.t.Fatal(err)
		return -1
	}
}

// stop asks the process to end and expects that it does so in order.
func (p *process) stop() {
	p.t.Helper()
	p.over.Store(true)
	if err := p.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if code := p.wait(); code != 0 {
		p.t.Errorf("%s ended with exit code %d after SIGTERM; it says:\n%s", p.name, code, localproc.Tail(p.log, 20))
	}
}

// kill ends the process as a crash would.
func (p *process) kill() {
	p.over.Store(true)
	p.Kill()
}

func (p *process) freeze() {
	p.t.Helper()
	if err := p.Freeze(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) thaw() {
	p.t.Helper()
	if err := p.Thaw(); err != nil {
		p.t.Fatal(err)
	}
}
