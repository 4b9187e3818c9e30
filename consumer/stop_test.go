package consumer_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/claimq/claimq/consumer"
)

func TestStopInMidBatch(t *testing.T) {
	t.Parallel()
	for name, budget := range map[string]time.Duration{"finishes within its budget": patience, "is rolled back after it": 50 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.StopBudget, c.Concurrency = budget, 1
			release := make(chan struct{})
			c.Handler = r.gated(func(string) <-chan struct{} { return release })
			q := r.start(c)
			r.produce(r.messages(0, 0, 5)...)
			eventually(t, "a batch runs", func() bool { return r.atGate.Load() == 1 })
			stopped := make(chan struct{})
			go func() { r.stop(q); r.stop(q); close(stopped) }()
			want := 0
			if budget == patience {
				close(release)
				want = 1 // at least the batch that ran
			}
			<-stopped
			if err := q.Err(); err != nil {
				t.Errorf("it ended with %v", err)
			}
			if n := r.count(`select count(*) from %s.effects`); n < want || budget != patience && n != 0 {
				t.Errorf("%d effects", n)
			}
			if n := r.count(`select count(*) from %s.claims`); n != r.position(0) || n != r.count(`select count(*) from %s.effects`) {
				t.Errorf("%d claims, %d effects, position %d", n, r.count(`select count(*) from %s.effects`), r.position(0))
			}
			if n := r.count(`select count(*) from %s.workers`); n != 0 {
				t.Errorf("%d workers are listed", n)
			}
			if budget != patience {
				close(release)
			}
			r.start(c)
			eventually(t, "the rest is done by the next one", func() bool { return r.position(0) == 5 })
			if n := r.count(`select count(*) from %s.effects`); n != 5 {
				t.Errorf("%d effects, want 5", n)
			}
		})
	}
}

func TestStopBeforeStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	q, err := consumer.New(r.db.Pool, []kgo.Opt{kgo.SeedBrokers(r.kafka.ListenAddrs()...)}, r.config())
	if err != nil {
		t.Fatal(err)
	}
	r.stop(q)
	r.stop(q)
	select {
	case <-q.Done():
	default:
		t.Error("Done is open after Stop")
	}
}

// A stop ends in bounded time whatever the database does, and what was in hand is
// done by the next worker.
func TestStopDuringAnOutage(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	pool, proxy := r.throughProxy()
	c := r.config()
	c.StopBudget = 200 * time.Millisecond
	q, err := r.tryStart(c, pool)
	if err != nil {
		t.Fatal(err)
	}
	r.produce(r.messages(0, 0, 10)...)
	r.outcomes(map[string]int{"processed": 10})
	proxy.closed.Store(true)
	proxy.cut()
	r.produce(r.messages(1, 10, 20)...)
	eventually(t, "it cannot work", func() bool { return r.metric("claimq_batch_retries_total", "", "") > 0 })
	start := time.Now()
	r.stop(q)
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	proxy.closed.Store(false)
	if _, err := r.tryStart(c, pool); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is done", func() bool { return r.position(0) == 10 && r.position(1) == 10 })
	r.once(append(r.idsOf(0, 10), r.idsOf(10, 20)...)...)
}

func (r *rig) idsOf(from, to int) (ids []string) {
	for _, record := range r.messages(0, from, to) {
		ids = append(ids, string(record.Headers[0].Value))
	}
	return ids
}

// A worker that is assigned partitions while the database is down can be stopped, and
// takes them when the database comes back.
func TestAnOutageDuringAssignment(t *testing.T) {
	t.Parallel()
	for _, stops := range []bool{false, true} {
		t.Run(fmt.Sprint("stopped ", stops), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			pool, proxy := r.throughProxy()
			r.produce(message(0, "a", "", ""))
			r.kafka.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
				proxy.closed.Store(true) // the start is over, the assignment is to come
				proxy.cut()
				return nil, nil, false
			})
			q, err := r.tryStart(r.config(), pool)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "it says that the database fails", func() bool { return !q.Health().Ready })
			if stops {
				start := time.Now()
				r.stop(q)
				if took := time.Since(start); took > 10*time.Second {
					t.Errorf("it took %s", took)
				}
				return
			}
			proxy.closed.Store(false)
			r.outcomes(map[string]int{"processed": 1})
			eventually(t, "it has nothing to complain of", func() bool { return q.Health().Ready })
		})
	}
}

// A lease that is being taken when the consumer stops is given back: nobody else
// would have its items before it ends.
func TestStopWhileALeaseIsTaken(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(fmt.Sprintf(`
create function %[1]s.slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.5); return new; end $$`, r.db.Schema))
	r.exec(fmt.Sprintf(`
create trigger slow before update on %[1]s.delayed_keys for each row when (new.lease_token is not null) execute function %[1]s.slow()`, r.db.Schema))
	c := r.config()
	c.Retry, c.Handler = soon, r.kinds()["one"]
	q := r.start(c)
	r.produce(message(0, "a", "", "fails"))
	eventually(t, "a lease is being taken", func() bool {
		return r.count(`select count(*) from pg_stat_activity where '%s' <> '' and application_name = $1 and wait_event = 'PgSleep'`, r.db.Name) > 0
	})
	r.stop(q)
	if n := r.count(`select count(*) from %s.delayed_keys where lease_token is not null`); n != 0 {
		t.Errorf("%d leases are held by nobody", n)
	}
	if n := r.count(`select coalesce(max(attempts), 3) from %s.delayed`); n > 2 {
		t.Errorf("%d attempts", n)
	}
}
