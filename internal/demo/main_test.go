package demo_test

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"

	"github.com/claimq/claimq/internal/demo"
)

// workerVariable makes the test binary the second consumer.
const workerVariable = "CLAIMQ_DEMO_TEST_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		if demo.RunWorker(context.Background(), os.Stdin, os.Stdout, os.Stderr, demo.Given{}) != nil {
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// worker is this binary as the second consumer.
func worker() *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerVariable+"=1")
	return cmd
}
