package localproc

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childVariable makes the test binary a parent that starts a guarded tree of
// processes and waits to be killed; its value is the directory to guard.
const childVariable = "CLAIMQ_LOCALPROC_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childVariable); dir != "" {
		runChild(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func runChild(dir string) {
	guard, err := NewGuard(dir, 15)
	if err != nil {
		os.Exit(1)
	}
	process, err := Start(Spec{Path: "/bin/sh", Args: []string{"-c", "exec sleep 300"}, LogFile: filepath.Join(dir, "log"), Guard: guard})
	if err != nil {
		os.Exit(1)
	}
	_, _ = os.Stdout.WriteString(strconv.Itoa(process.PID()) + "\n")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// tree starts a shell with a child of its own, both of which run until they are
// ended, and returns the child's number too.
func tree(t *testing.T) (process *Process, child int) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	process, err := Start(Spec{Path: "/bin/sh", Args: []string{"-c", "sleep 300 & echo $!; wait"}, LogFile: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	eventually(t, "the shell tells its child's number", func() bool {
		text, err := os.ReadFile(log)
		if err != nil {
			return false
		}
		child, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	return process, child
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

// state is the one letter that ps shows for a process: T is stopped.
func state(t *testing.T, pid int) string {
	t.Helper()
	output, err := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return string(output[:1])
}
