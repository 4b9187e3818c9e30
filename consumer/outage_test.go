package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
)

// C23: what happens to the database happens to no message.
func TestAnOutageBlamesNoMessage(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"one", "pipelined", "batch that does not"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 3)
			pool, proxy := r.throughProxy()
			c := r.config()
			c.Handler, c.Concurrency, c.Batch.Messages = r.kinds()[kind], 3, 50
			q, err := r.tryStart(c, pool)
			if err != nil {
				t.Fatal(err)
			}
			var records []*kgo.Record
			for partition := range int32(3) {
				records = append(records, r.messages(partition, int(partition)*1000, int(partition)*1000+700)...)
			}
			r.produce(records...)
			eventually(t, "some are done", func() bool { return r.outcome("processed") > 100 })
			for range 3 {
				before, done := r.metric("claimq_batch_retries_total", "", ""), r.outcome("processed")
				proxy.closed.Store(true)
				proxy.cut()
				eventually(t, "it is tried again, in vain", func() bool {
					return done == 2100 || r.metric("claimq_batch_retries_total", "", "") >= before+6
				})
				proxy.closed.Store(false)
				done = r.outcome("processed")
				eventually(t, "it works again", func() bool { return r.outcome("processed") > done || done == 2100 })
				r.terminate()
			}
			r.outcomes(map[string]int{"processed": 2100, "delayed": 0, "dead": 0})
			if all, distinct := r.count(`select count(*) from %s.effects`), r.count(`select count(distinct id) from %s.effects`); all != 2100 || distinct != 2100 {
				t.Errorf("%d effects of %d ids, want 2100", all, distinct)
			}
			eventually(t, "it has nothing to complain of", func() bool { return q.Health().Ready })
		})
	}
}

// terminate ends every session of the test but the one that asks.
func (r *rig) terminate() {
	r.t.Helper()
	r.exec(`select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1 and pid <> pg_backend_pid()`, r.db.Name)
}

func TestAnOutageIsToldAndForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	pool, proxy := r.throughProxy()
	q, err := r.tryStart(r.config(), pool)
	if err != nil {
		t.Fatal(err)
	}
	r.produce(message(0, "a", "", ""))
	r.outcomes(map[string]int{"processed": 1})
	proxy.closed.Store(true)
	proxy.cut()
	r.produce(message(0, "b", "", ""))
	eventually(t, "readiness is red", func() bool { return !q.Health().Ready })
	if !q.Health().Live {
		t.Error("an outage is nothing to be restarted for")
	}
	proxy.closed.Store(false)
	r.outcomes(map[string]int{"processed": 2})
	eventually(t, "readiness is green", func() bool { return q.Health().Ready })
}

// C12: contexts cancelled in mid-query leave no connection, no transaction, no claim.
func TestCancelledQueriesLeaveNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, 6)
	c := r.config()
	c.Retry, c.Batch.Messages, c.Concurrency = never, 5, 6
	c.Handler = consumer.One(func(ctx context.Context, tx pgx.Tx, _ *consumer.Message) error {
		ctx, cancel := context.WithTimeout(ctx, time.Duration(1+rand.IntN(5))*time.Millisecond)
		defer cancel()
		_, err := tx.Exec(ctx, "select pg_sleep(10)")
		return err
	})
	var records []*kgo.Record
	for i := range 200 {
		records = append(records, message(int32(i%6), "m"+strconv.Itoa(i), "k"+strconv.Itoa(i), ""))
	}
	r.produce(records...)
	r.start(c)
	r.outcomes(map[string]int{"delayed": 200})
	eventually(t, "no connection is taken", func() bool { return r.db.Pool.Stat().AcquiredConns() == 0 })
	eventually(t, "no session is in a transaction", func() bool { return r.sessions("idle in transaction") == 0 && r.sessions("active") == 0 })
	if n := r.count(`select count(*) from pg_stat_activity where '%s' <> '' and application_name = $1`, r.db.Name); n > int(r.db.Pool.Config().MaxConns) {
		t.Errorf("%d sessions for a pool of %d", n, r.db.Pool.Config().MaxConns)
	}
	if n := r.count(`select count(*) from %s.claims`); n != 0 {
		t.Errorf("%d claims of failed messages", n)
	}
	if classes := r.strings(`select distinct error_class from %s.delayed`); len(classes) != 1 || classes[0] != "cancelled" {
		t.Errorf("error classes %q, want cancelled", classes)
	}
}

// A forced deadlock in business code starts the whole transaction again, claims and
// all, and uses no attempt (C13).
func TestADeadlockRestartsTheTransaction(t *testing.T) {
	t.Parallel()
	for _, hides := range []bool{false, true} {
		t.Run(fmt.Sprint("hidden behind an error of its own ", hides), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2)
			r.exec(`create table ` + r.db.Schema + `.locks (k int primary key, n int not null default 0)`)
			r.exec(`insert into ` + r.db.Schema + `.locks values (1), (2)`)
			c := r.config()
			c.Concurrency, c.Batch.Messages = 2, 1
			update, insert := `update `+r.db.Schema+`.locks set n = n + 1 where k = $1`, `insert into `+r.db.Schema+`.effects (id) values ($1)`
			var deadlocks atomic.Int32
			var both sync.WaitGroup
			both.Add(2)
			var first sync.Map
			c.Handler = consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
				order := []int{1, 2}
				if m.Record.Partition == 1 {
					order = []int{2, 1}
				}
				if m.Attempt != 1 {
					t.Errorf("attempt %d: a deadlock used one", m.Attempt)
				}
				if _, err := tx.Exec(ctx, insert, m.Identity.ID); err != nil {
					return err
				}
				for i, k := range order {
					if _, err := tx.Exec(ctx, update, k); err != nil {
						var pg *pgconn.PgError
						if errors.As(err, &pg) && pg.Code == "40P01" {
							deadlocks.Add(1)
						}
						if hides {
							return errBoom
						}
						return err
					}
					if _, again := first.LoadOrStore(m.Identity.ID, true); i == 0 && !again {
						both.Done()
						both.Wait() // each holds what the other wants
					}
				}
				return nil
			})
			r.produce(message(0, "a", "", ""), message(1, "b", "", ""))
			r.start(c)
			r.outcomes(map[string]int{"processed": 2, "delayed": 0})
			if deadlocks.Load() == 0 {
				t.Error("no deadlock was made")
			}
			r.once("a", "b")
			if n := r.count(`select sum(n)::int from %s.locks`); n != 4 {
				t.Errorf("%d updates, want 4", n)
			}
		})
	}
}

// Two lanes that claim the same ids in opposite orders (C13), many
// times: ids are locked in one order, so none waits for another in a circle.
func TestOppositeOrdersDoNotDeadlock(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	c := r.config()
	c.Concurrency, c.Batch.Messages = 4, 26
	const rounds = 60
	var records []*kgo.Record
	for round := range rounds {
		for i := range 26 {
			records = append(records,
				message(0, fmt.Sprint(round, string(rune('A'+i))), "", ""),
				message(1, fmt.Sprint(round, string(rune('Z'-i))), "", ""))
		}
	}
	r.produce(records...)
	r.start(c)
	r.outcomes(map[string]int{"processed": rounds * 26, "duplicate": rounds * 26})
	if n := r.metric("claimq_batch_retries_total", "reason", "40P01"); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	if n := r.count(`select count(distinct id) from %s.effects`); n != rounds*26 || r.count(`select count(*) from %s.effects`) != n {
		t.Errorf("%d distinct effects, want %d once each", n, rounds*26)
	}
}

// C11 at the engine: the same ids through many queues' workers at once.
func TestConcurrentClaimersAgree(t *testing.T) {
	t.Parallel()
	r := newRig(t, 8)
	c := r.config()
	c.Concurrency, c.Batch.Messages = 8, 10
	var records []*kgo.Record
	for i := range 60 {
		for partition := range int32(8) {
			records = append(records, message(partition, "m"+strconv.Itoa(i), "", "same"))
		}
	}
	rand.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	r.produce(records...)
	r.start(c)
	r.outcomes(map[string]int{"processed": 60, "duplicate": 420})
	if n := r.count(`select count(*) from %s.effects`); n != 60 {
		t.Errorf("%d effects, want 60", n)
	}
}

// C05 a: nothing is told by the text of an error, whatever language it is in.
func TestServerMessagesInAnotherLanguage(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	config, err := pgxpool.ParseConfig(r.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	for _, locale := range []string{"de_DE.UTF-8", "fr_FR.UTF-8", "C.UTF-8", "C"} {
		config.ConnConfig.RuntimeParams["lc_messages"] = locale
		if conn, err := pgx.ConnectConfig(t.Context(), config.ConnConfig); err == nil {
			_ = conn.Close(t.Context())
			break // the first that this server has
		}
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r.exec(`create unique index on ` + r.db.Schema + `.effects (id)`)
	r.exec(`insert into ` + r.db.Schema + `.effects (id) values ('taken')`)
	c := r.config()
	c.Retry, c.Handler = never, r.kinds()["one"]
	r.produce(message(0, "a", "", "works"), message(0, "a", "", "works"), message(0, "taken", "", "works"))
	if _, err := r.tryStart(c, pool); err != nil {
		t.Fatal(err)
	}
	r.outcomes(map[string]int{"processed": 1, "duplicate": 1, "delayed": 1})
	eventually(t, "position is at the end", func() bool { return r.position(0) == 3 })
	if got := r.strings(`select error_class from %s.delayed`); got[0] != "23505" {
		t.Errorf("class %q, want the SQLSTATE", got)
	}
	if n := r.metric("claimq_batch_retries_total", "reason", "25P02"); n != 0 {
		t.Errorf("%d batches met 25P02", n)
	}
}

// A failure of the infrastructure that a handler met and got over does not make its
// neighbour's failure the infrastructure's.
func TestALockTimeoutThatWasGotOverIsForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`create table ` + r.db.Schema + `.locks (k int primary key)`)
	r.exec(`insert into ` + r.db.Schema + `.locks values (1)`)
	blocker := r.db.Conn()
	tx, err := blocker.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from `+r.db.Schema+`.locks for update`); err != nil {
		t.Fatal(err)
	}
	c := r.config()
	c.Retry, c.Concurrency = never, 1
	insert := `insert into ` + r.db.Schema + `.effects (id) values ($1)`
	c.Handler = consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
		if string(m.Record.Value) == "fails" {
			return errBoom
		}
		inner, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := inner.Exec(ctx, `select from `+r.db.Schema+`.locks for update nowait`); err == nil {
			t.Error("the lock was free")
		}
		if err := inner.Rollback(ctx); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, insert, m.Identity.ID)
		return err
	})
	r.produce(message(0, "a", "", ""), message(0, "b", "", "fails"), message(0, "c", "", ""))
	r.start(c)
	r.outcomes(map[string]int{"processed": 2, "delayed": 1})
	r.once("a", "c")
}
