package dlq_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/dlq"
)

// driverEnv makes this test binary a driver of a replay: "dsn schema replay".
const driverEnv = "CLAIMQ_TEST_DRIVE_REPLAY"

// TestDriverProcess is the driver that the test below kills; by itself it checks
// that a driver says what is wrong with a replay that is not there.
func TestDriverProcess(t *testing.T) { //nolint:paralleltest // a process of its own when it drives
	fields := strings.Fields(os.Getenv(driverEnv))
	if len(fields) == 0 {
		w := newWorld(t)
		if r, err := w.store.DriveReplay(w.ctx(), w.db.Pool, uuid.New(), nil); r != nil || err != nil {
			t.Errorf("driving no replay: %+v, %v", r, err)
		}
		return
	}
	pool, err := pgxpool.New(t.Context(), fields[0])
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	store, err := dlq.New(dlq.Config{Schema: fields[1]})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.DriveReplay(t.Context(), pool, uuid.MustParse(fields[2]), nil); err != nil {
		t.Fatal(err)
	}
}

// C35: kill -9 of the command in the middle, again and again, while workers handle
// what comes and lose leases: each letter is handled to its end once, and the counts
// add up.
func TestKilledDriversAndLostLeasesLoseAndDoubleNothing(t *testing.T) {
	t.Parallel()
	const letters = 3000
	w := newWorld(t)
	w.dead(letters, nil)
	order := w.order()
	order.InFlight = 300
	id := w.startReplay(order)
	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	var workers sync.WaitGroup
	var mu sync.Mutex
	handled := 0
	for n := range 2 {
		workers.Go(func() {
			for turn := n; ctx.Err() == nil; turn++ {
				runs := w.lease()
				if len(runs) == 0 {
					select {
					case <-time.After(5 * time.Millisecond):
					case <-ctx.Done():
					}
					continue
				}
				if turn%7 == 0 { // killed with these in hand: the leases end
					for _, run := range runs {
						w.exec(`update claimq.delayed_keys set ready_at = now() where lease_token = $1`, run.Token)
					}
					continue
				}
				done, err := w.work(runs, func(i *delayq.Item) bool { return i.Source.Offset%10 == 3 })
				if err != nil {
					t.Errorf("a worker: %v", err)
				}
				mu.Lock()
				handled += done
				mu.Unlock()
			}
		})
	}
	drive := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^TestDriverProcess$")
		cmd.Env = append(os.Environ(), driverEnv+"="+w.db.DSN+" "+w.db.Schema+" "+id.String())
		w.must(cmd.Start())
		return cmd
	}
	for kill := 1; kill <= 3; kill++ {
		cmd := drive()
		for w.replay(id).Listed > int64(letters-kill*letters/5) {
			if ctx.Err() != nil {
				t.Fatal("the driver does not get on")
			}
		}
		w.must(cmd.Process.Signal(syscall.SIGKILL))
		if err := cmd.Wait(); err == nil {
			t.Error("a killed driver ended well")
		}
		w.consistent()
	}
	w.must(drive().Wait())
	cancel()
	workers.Wait()
	r := w.replay(id)
	if diff := cmp.Diff(dlq.Progress{Resolved: letters * 9 / 10, Dead: letters / 10}, r.Progress); diff != "" || r.State != dlq.ReplayFinished {
		t.Errorf("it is %s (-want +got):\n%s", r.State, diff)
	}
	if handled != letters {
		t.Errorf("%d were handled to an end, want each of %d once", handled, letters)
	}
	w.consistent()
}
