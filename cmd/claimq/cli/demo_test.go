package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/claimq/claimq/internal/demo"
)

// demoConfigOf is what the demo would run with.
func demoConfigOf(t *testing.T, e *testEnv, args ...string) demo.Config {
	t.Helper()
	var got demo.Config
	root := newRoot(&e.Env)
	command, _, err := root.Find([]string{"demo"})
	if err != nil {
		t.Fatal(err)
	}
	command.RunE = func(cmd *cobra.Command, _ []string) error {
		got, err = e.demoConfig(cmd, demoFlags{orders: demo.DefaultOrders})
		return err
	}
	root.SetArgs(append([]string{"demo"}, args...))
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestTheDemoLeavesServersOfTheEnvironmentAlone(t *testing.T) {
	t.Parallel()
	e := newTestEnv(t, "CLAIMQ_DSN=postgres://production/shop", "CLAIMQ_BROKERS=production:9092")
	if d := demoConfigOf(t, e); d.Kafka != nil || d.Postgres != nil {
		t.Errorf("it would use %v and %v", d.Brokers, d.ShownDSN)
	}
	// One server of the command line does not bring the other one in.
	if d := demoConfigOf(t, e, "--brokers", "mine"); d.Kafka == nil || d.Postgres != nil || !slices.Equal(d.Brokers, []string{"mine:9092"}) {
		t.Errorf("with --brokers it would use %v and %q", d.Brokers, d.ShownDSN)
	}
	e = newTestEnv(t, "CLAIMQ_DSN=postgres://production/shop", "CLAIMQ_BROKERS=production:9092")
	if d := demoConfigOf(t, e, "--dsn", "postgres://me@mine/shop"); d.Kafka != nil || d.Postgres == nil {
		t.Errorf("with --dsn it would use %v and %q", d.Brokers, d.ShownDSN)
	}
}

func TestTheDemoShowsNoPasswordAndPutsNoneOnACommandLine(t *testing.T) {
	t.Parallel()
	e := newTestEnv(t)
	d := demoConfigOf(t, e, "--dsn", "postgres://me:hunter2@mine:5433/shop", "--brokers", "mine")
	if d.ShownDSN != "postgres://me@mine:5433/shop" {
		t.Errorf("shown is %q", d.ShownDSN)
	}
	worker := d.Worker()
	if line := strings.Join(worker.Args[1:], " "); line != "demo worker --brokers mine:9092" {
		t.Errorf("the worker's arguments are %q", line)
	}
	if !slices.Contains(worker.Env, "CLAIMQ_DSN=postgres://me:hunter2@mine:5433/shop") {
		t.Errorf("the worker's environment %q does not lead to the database", worker.Env)
	}
}

func TestTheDemoTakesBothServersFromAFileThatIsNamed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "claimq.yaml")
	if err := os.WriteFile(file, []byte("database: {dsn: postgres://me@mine/shop}\nkafka: {brokers: [mine]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := demoConfigOf(t, newTestEnv(t), "-c", file)
	if d.Kafka == nil || d.Postgres == nil || !slices.Contains(d.Worker().Args, file) {
		t.Errorf("it would use %v, %q, and start %q", d.Brokers, d.ShownDSN, d.Worker().Args)
	}
}

func TestTheDemosWorkerIsHiddenAndSaysWhoStartsIt(t *testing.T) {
	t.Parallel()
	e := newTestEnv(t)
	if code := e.run("demo", "worker"); code != ExitFailed || !strings.Contains(e.stdout.String(), "started by `claimq demo`") {
		t.Errorf("exit code %d, told %q", code, e.stdout.String())
	}
	if e.run("demo", "--help"); strings.Contains(e.stdout.String(), "worker") {
		t.Errorf("help shows the worker:\n%s", e.stdout.String())
	}
}

func TestWhatIsKeptIsToldWithCommandsThatReachIt(t *testing.T) {
	t.Parallel()
	e := newTestEnv(t)
	e.printReach(demo.Reach{Brokers: "a:1", DSN: "postgres://me@mine/shop", Schema: "claimq_demo_1", Orders: "o", Effects: "e", Dead: "d"})
	for _, text := range []string{"claimq status --dsn 'postgres://me@mine/shop' --schema claimq_demo_1\n", "topics o, e, d", "claimq_demo_1.demo_orders"} {
		if !strings.Contains(e.stdout.String(), text) {
			t.Errorf("%q is missing in:\n%s", text, e.stdout.String())
		}
	}
}
