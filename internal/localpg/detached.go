package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/claimq/claimq/internal/localproc"
)

// DirPID returns the process number of the server that runs over the files in
// dir, or zero when none does.
func DirPID(dir string) int {
	text, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil || pid <= 1 || !localproc.Alive(pid) {
		return 0
	}
	return pid
}

// StopDir stops the server that [Server.Detach] has left running over the
// files in dir, and keeps the files. When ctx ends before the server does the
// server is told to shut down at once. It does nothing when none runs.
func StopDir(ctx context.Context, dir string) error {
	pid := DirPID(dir)
	if pid == 0 {
		removeSharedMemory(filepath.Join(dir, "data"))
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop postgres (process %d): %w", pid, err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for localproc.Alive(pid) {
		select {
		case <-ctx.Done():
			_ = syscall.Kill(pid, syscall.SIGQUIT)
			return fmt.Errorf("stop postgres (process %d): %w; told to shut down at once", pid, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}
