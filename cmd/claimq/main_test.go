package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asCommand makes this test binary the command itself.
const asCommand = "CLAIMQ_TEST_IS_THE_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = []string{asCommand + "=1", "CLAIMQ_DSN=postgres://nobody@127.0.0.1:1/none", "CLAIMQ_BROKERS=127.0.0.1:1"}
	return cmd
}

func TestTheExitCodeIsTheCommands(t *testing.T) {
	t.Parallel()
	for code, args := range map[int][]string{
		0:  {"version"},
		1:  {"migrate", "status"},
		64: {"nonsense"},
		78: {"run"},
	} {
		var stderr bytes.Buffer
		cmd := command(t, args...)
		cmd.Stderr = &stderr
		_ = cmd.Run() // the exit code is looked at
		if got := cmd.ProcessState.ExitCode(); got != code {
			t.Errorf("claimq %s: exit code %d, want %d: %s", strings.Join(args, " "), got, code, stderr.String())
		}
	}
}

func TestSignalsEndAProcess(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/claimq.yaml"
	text := "http: {listen: 'off'}\nqueues: {q: {topics: [t], id: key, handler: {sql: 'select unnest(@ids)'}}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		cmd := command(t, "run", "-c", file)
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timeout := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if strings.Contains(lines.Text(), "cannot be reached yet") {
				_ = cmd.Process.Signal(signal)
			}
		}
		err = cmd.Wait()
		timeout.Stop()
		if err != nil {
			t.Errorf("after %s: %v", signal, err)
		}
	}
}
