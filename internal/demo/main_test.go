package demo_test

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/claimq/claimq/internal/demo"
)

// workerVariable makes the test binary the second consumer.
const workerVariable = "CLAIMQ_DEMO_TEST_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		if demo.RunWorker(context.Background(), os.Stdin, os.Stdout, os.Stderr, givenServers) != nil {
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// givenServers are where the worker finds servers that are not the run's own.
func givenServers() ([]kgo.Opt, *pgxpool.Config, error) {
	pool, err := pgxpool.ParseConfig(os.Getenv("CLAIMQ_TEST_DSN"))
	return []kgo.Opt{kgo.SeedBrokers(os.Getenv("CLAIMQ_TEST_KAFKA"))}, pool, err
}

func worker() *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerVariable+"=1")
	return cmd
}
