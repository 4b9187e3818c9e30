package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/claimq/claimq/internal/localkafka"
	"github.com/claimq/claimq/internal/localpg"
	"github.com/claimq/claimq/internal/localproc"
)

func TestCommandFindsTheStackAndItsExitCodeIsPassedOn(t *testing.T) {
	t.Parallel()
	told := filepath.Join(t.TempDir(), "environment")
	code, err := run(options{bouncer: true, command: []string{"sh", "-c", `env >"$0"; exit 42`, told}})
	if err != nil || code != 42 {
		t.Errorf("exit code %d (%v), want 42", code, err)
	}
	environment, err := os.ReadFile(told)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CLAIMQ_TEST_DSN=postgres://", "CLAIMQ_TEST_PGBOUNCER=postgres://"} {
		if !strings.Contains(string(environment), want) {
			t.Errorf("the command's environment lacks %s", want)
		}
	}
}

func TestExitCodeTellsHowTheCommandEnded(t *testing.T) {
	t.Parallel()
	for want, command := range map[int][]string{
		0:            {"true"},
		1:            {"false"},
		128 + 9:      {"sh", "-c", "kill -9 $$"},
		exitNotFound: {"/does/not/exist"},
	} {
		code, err := runCommand(command, nil, nil)
		if code != want || (err != nil) != (want == exitNotFound) {
			t.Errorf("%v: exit code %d (%v), want %d", command, code, err, want)
		}
	}
}

func TestSignalsReachTheCommandAndItsChildren(t *testing.T) {
	t.Parallel()
	told := filepath.Join(t.TempDir(), "told")
	signals := make(chan os.Signal, 1)
	result := make(chan int, 1)
	go func() {
		code, err := runCommand([]string{"sh", "-c", `sleep 300 & echo $! >"$0"; wait`, told}, nil, signals)
		if err != nil {
			t.Error(err)
		}
		result <- code
	}()
	child := 0
	eventually(t, "the command has started its child", func() bool {
		text, _ := os.ReadFile(told)
		var err error
		child, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	signals <- syscall.SIGTERM
	if code := <-result; code != exitSignalBase+int(syscall.SIGTERM) {
		t.Errorf("exit code %d, want %d", code, exitSignalBase+int(syscall.SIGTERM))
	}
	eventually(t, "the command's child ends", func() bool { return !localproc.Alive(child) })
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within fifteen seconds: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestMissingPartIsAnErrorUnlessAllowed(t *testing.T) {
	t.Parallel()
	lack := errors.Join(errors.New("kafka"), localkafka.ErrNoJava)
	if err := missing(options{}, lack, localkafka.ErrNoJava); !errors.Is(err, localkafka.ErrNoJava) {
		t.Errorf("a missing part that is not allowed to be missing: %v", err)
	}
	if err := missing(options{allowMissing: true}, lack, localkafka.ErrNoJava); err != nil {
		t.Errorf("a missing part that may be missing: %v", err)
	}
	other := errors.New("broken")
	if err := missing(options{allowMissing: true}, other, localkafka.ErrNoJava); !errors.Is(err, other) {
		t.Errorf("a part that is there and broken: %v", err)
	}
}

func TestMissingPostgresIsToldAndNothingIsRun(t *testing.T) {
	t.Setenv(localpg.BinDirVariable, t.TempDir())
	mark := filepath.Join(t.TempDir(), "mark")
	code, err := run(options{command: []string{"touch", mark}})
	if code != exitStack || !errors.Is(err, localpg.ErrNoBinaries) {
		t.Errorf("exit code %d (%v), want %d", code, err, exitStack)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the command ran without its stack")
	}
}

func TestKilledTeststackLeavesNoServer(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "teststack")
	if output, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	cmd := exec.Command(binary, "-kafka=false", "-pgbouncer=false", "--", "sh", "-c",
		`cat "$(psql -XAt "$CLAIMQ_TEST_DSN" -c 'show data_directory')/postmaster.pid" | head -2; exec sleep 60`)
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 0, 200)
	for strings.Count(string(text), "\n") < 2 {
		chunk := make([]byte, 100)
		n, err := output.Read(chunk)
		text = append(text, chunk[:n]...)
		if err != nil {
			t.Fatalf("the command ended early, after %q", text)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = output.Close()
	_ = cmd.Wait()
	lines := strings.Split(string(text), "\n")
	pid, err := strconv.Atoi(lines[0])
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server ends", func() bool { return !localproc.Alive(pid) })
	eventually(t, "its files are removed", func() bool { _, err := os.Stat(lines[1]); return err != nil })
}
