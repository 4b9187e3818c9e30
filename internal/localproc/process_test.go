package localproc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestKillEndsTheWholeTree(t *testing.T) {
	t.Parallel()
	process, child := tree(t)
	process.Kill()
	if process.Running() || Alive(process.PID()) || Alive(child) {
		t.Errorf("after Kill: root runs %v, child runs %v", Alive(process.PID()), Alive(child))
	}
	if process.Err() == nil {
		t.Error("a killed process ended without an error")
	}
	process.Kill() // does nothing
}

func TestFreezeAndThawReachTheWholeTree(t *testing.T) {
	t.Parallel()
	process, child := tree(t)
	if err := process.Freeze(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{process.PID(), child} {
		eventually(t, "the process is stopped", func() bool { return state(t, pid) == "T" })
	}
	if !process.Running() {
		t.Error("a frozen process counts as ended")
	}
	if err := process.Thaw(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{process.PID(), child} {
		eventually(t, "the process runs again", func() bool { return state(t, pid) == "S" })
	}
}

func TestStopWakesAFrozenProcess(t *testing.T) {
	t.Parallel()
	process, _ := tree(t)
	if err := process.Freeze(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := process.Stop(ctx, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := process.Freeze(); err == nil {
		t.Error("a process that has ended was frozen")
	}
	if err := process.Stop(ctx, syscall.SIGTERM); err != nil {
		t.Errorf("a second Stop: %v", err)
	}
}

func TestStopKillsWhatIgnoresIt(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	process, err := Start(Spec{Path: "/bin/sh", Args: []string{"-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"}, LogFile: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	eventually(t, "the process ignores the signal", func() bool { return Tail(log, 1) == "deaf" })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := process.Stop(ctx, syscall.SIGTERM); !errors.Is(err, ErrKilled) {
		t.Errorf("Stop returned %v, want ErrKilled", err)
	}
	if Alive(process.PID()) {
		t.Error("the process runs after Stop")
	}
}

func TestStartThatFailsNamesTheBinary(t *testing.T) {
	t.Parallel()
	_, err := Start(Spec{Path: "/does/not/exist", LogFile: filepath.Join(t.TempDir(), "log")})
	if err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("the error does not name the binary: %v", err)
	}
	if _, err := Start(Spec{Path: "/bin/true", LogFile: "/does/not/exist/log"}); err == nil {
		t.Error("a log that cannot be opened was accepted")
	}
}

func TestGuardEndsProcessAndRemovesDirWhenTheParentIsKilled(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "guarded dir")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childVariable+"="+dir)
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
	line, readErr := bufio.NewReader(output).ReadString('\n')
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err := errors.Join(readErr, err); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the guarded process ends", func() bool { return !Alive(pid) })
	eventually(t, "the guarded directory is removed", func() bool {
		_, err := os.Stat(dir)
		return errors.Is(err, os.ErrNotExist)
	})
}

func TestReleasedGuardTouchesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	guard, err := NewGuard(dir, syscall.SIGTERM)
	if err != nil {
		t.Fatal(err)
	}
	process, err := Start(Spec{Path: "/bin/sleep", Args: []string{"300"}, LogFile: filepath.Join(dir, "log"), Guard: guard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	for range 2 {
		if err := guard.Release(); err != nil { // waits for the guard's end
			t.Fatal(err)
		}
	}
	if !process.Running() {
		t.Error("a released guard ended the process")
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("a released guard removed the directory: %v", err)
	}
	var none *Guard
	if err := errors.Join(none.Watch(1), none.KeepDir(), none.Release()); err != nil {
		t.Errorf("no guard: %v", err)
	}
}

func TestLockKeepsASecondHolderOutUntilItIsFreed(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "lock")
	unlock, err := Lock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Lock(short, name); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), name) {
		t.Errorf("a second holder got %v", err)
	}
	unlock()
	again, err := Lock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestFreePortIsFreeAndBelowTheRangeOfOutgoingConnections(t *testing.T) {
	t.Parallel()
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	if port < firstPort || port > lastPort {
		t.Errorf("port %d is outside of %d to %d", port, firstPort, lastPort)
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if PortFree(port) {
		t.Errorf("port %d counts as free while somebody listens on it", port)
	}
}

func TestTailReturnsTheLastLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 3*tailBytes)
	for name, test := range map[string]struct {
		text  string
		lines int
		want  string
	}{
		"some":          {"one\ntwo\nthree\n", 2, "two\nthree"},
		"all":           {"one\ntwo\n", 5, "one\ntwo"},
		"one":           {"one\ntwo", 1, "two"},
		"empty":         {"", 3, ""},
		"one long line": {long, 2, long[:tailBytes]},
	} {
		file := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Tail(file, test.lines); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	if got := Tail("/does/not/exist", 3); !strings.HasPrefix(got, "(no log") {
		t.Errorf("without a log: %q", got)
	}
}

func TestMentionsKnowsAProcessByItsCommandLine(t *testing.T) {
	t.Parallel()
	process, _ := tree(t)
	if !Mentions(process.PID(), "sleep 300") || Mentions(process.PID(), "something else") {
		t.Error("the command line is not what was started")
	}
	process.Kill()
	if Mentions(process.PID(), "sleep 300") {
		t.Error("a process that has ended is known by its command line")
	}
}

func TestProcessListsFromProcAndFromPSAgree(t *testing.T) {
	t.Parallel()
	process, child := tree(t)
	for name, list := range map[string][]processEntry{"default": processes(), "ps": processesFromPS()} {
		parents := map[int]int{}
		for _, entry := range list {
			parents[entry.pid] = entry.parent
		}
		if parents[child] != process.PID() || parents[process.PID()] != os.Getpid() {
			t.Errorf("%s: the child's parent is %d (want %d), the root's %d (want %d)", name, parents[child], process.PID(), parents[process.PID()], os.Getpid())
		}
	}
}
