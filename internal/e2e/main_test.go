package e2e

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain makes a worker of the binary when it was started as one. Otherwise it
// runs more tests at once than there are processors: nearly all of their time is
// waiting, for sessions to end and for other processes.
func TestMain(m *testing.M) {
	if text, worker := os.LookupEnv(workerVariable); worker {
		if err := runWorker(text); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = flag.Set("test.parallel", "6")
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		removeBinary()
		os.Exit(code)
	}))
}
