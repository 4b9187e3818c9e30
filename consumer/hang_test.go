package consumer_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/consumer"
)

// sessions counts the server's sessions of this test that are doing something.
func (r *rig) sessions(state string) int {
	return r.count(`select count(*) from pg_stat_activity where '%s' <> '' and application_name = $1 and state = $2 and pid <> pg_backend_pid()`, r.db.Name, state)
}

// A handler that ignores its context is taken out by name after its timeout, its
// partition goes on, others never stop, and its connection is gone.
func TestAHangingHandlerIsTakenOutByName(t *testing.T) {
	t.Parallel()
	insert := func(r *rig) string { return `insert into ` + r.db.Schema + `.effects (id, value) values ($1, $2)` }
	for name, kind := range map[string]func(r *rig, hang func(m *consumer.Message)) consumer.Handler{
		"one": func(r *rig, hang func(m *consumer.Message)) consumer.Handler {
			return consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
				hang(m)
				_, err := tx.Exec(ctx, insert(r), m.Identity.ID, m.Record.Value)
				return err
			})
		},
		"pipelined": func(r *rig, hang func(m *consumer.Message)) consumer.Handler {
			return consumer.Pipelined(func(_ context.Context, b *pgx.Batch, m *consumer.Message) error {
				hang(m)
				b.Queue(insert(r), m.Identity.ID, m.Record.Value)
				return nil
			})
		},
		"batch that does not name": func(r *rig, hang func(m *consumer.Message)) consumer.Handler {
			return consumer.Batch(func(ctx context.Context, tx pgx.Tx, ms []*consumer.Message) error {
				for _, m := range ms {
					hang(m)
					if _, err := tx.Exec(ctx, insert(r), m.Identity.ID, m.Record.Value); err != nil {
						return err
					}
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2)
			release := make(chan struct{})
			var hung sync.WaitGroup
			t.Cleanup(func() { close(release); hung.Wait() })
			c := r.config()
			c.HandlerTimeout, c.Retry = 300*time.Millisecond, never
			c.Handler = kind(r, func(m *consumer.Message) {
				if string(m.Record.Value) == "hangs" {
					hung.Add(1)
					defer hung.Done()
					<-release
				}
			})
			r.start(c)
			for i := range 40 {
				value := "works"
				if i == 23 {
					value = "hangs"
				}
				r.produce(message(0, "m"+strconv.Itoa(i), "", value))
			}
			eventually(t, "the handler hangs", func() bool {
				return r.outcome("processed") > 0 || r.metric("claimq_abandoned_handlers_total", "", "") > 0
			})
			r.produce(r.messages(1, 100, 150)...)
			eventually(t, "the other partition goes on", func() bool { return r.position(1) == 50 })
			r.outcomes(map[string]int{"processed": 89, "delayed": 1})
			if n := r.count(`select count(*) from %s.delayed where error_class = 'timeout' and convert_from(record_value, 'UTF8') = 'hangs' and attempts = 1`); n != 1 {
				t.Error("the hanging message is not delayed by name")
			}
			if n := r.count(`select count(distinct id) from %s.effects`); n != 89 || r.count(`select count(*) from %s.effects`) != 89 {
				t.Errorf("%d distinct effects, want 89 once each", n)
			}
			eventually(t, "no session is left in a transaction", func() bool { return r.sessions("idle in transaction") == 0 && r.sessions("active") == 0 })
			eventually(t, "no connection of the pool is taken", func() bool { return r.db.Pool.Stat().AcquiredConns() == 0 })
		})
	}
}

// A handler that comes back after it was left behind finds nothing of the attempts
// after it: neither their messages nor their verdicts.
func TestAHandlerLeftBehindChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.HandlerTimeout, c.Retry, c.Concurrency = 300*time.Millisecond, never, 1
	c.Batch.Wait = 200 * time.Millisecond
	release, returned := make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	insert := `insert into ` + r.db.Schema + `.effects (id) values ($1)`
	hold := make(chan struct{})
	c.Handler = consumer.Pipelined(func(_ context.Context, b *pgx.Batch, m *consumer.Message) error {
		switch n := calls.Add(1); {
		case n == 1:
			<-release
			close(returned)
			return consumer.Skip("too late")
		case m.Identity.ID == "b":
			// The next attempt stands here while the first one comes back.
			<-hold
		}
		b.Queue(insert, m.Identity.ID)
		return nil
	})
	r.produce(message(0, "a", "", ""), message(0, "b", "", ""), message(0, "c", "", ""))
	r.start(c)
	eventually(t, "the next attempt runs", func() bool { return calls.Load() >= 2 })
	close(release)
	<-returned
	close(hold)
	r.outcomes(map[string]int{"processed": 2, "delayed": 1, "skipped": 0})
	r.once("b", "c")
}

// One that swallows the end of its own context must not be tried in place for ever.
func TestSwallowedTimeoutsUseAttempts(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"the handler's": func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, "select pg_sleep(60)")
			return nil
		},
		"one of its own": func(ctx context.Context, tx pgx.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			_, err := tx.Exec(ctx, "select pg_sleep(60)")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.HandlerTimeout, c.Retry, c.Concurrency = 300*time.Millisecond, never, 1
			insert := `insert into ` + r.db.Schema + `.effects (id) values ($1)`
			c.Handler = consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
				if string(m.Record.Value) == "slow" {
					return f(ctx, tx)
				}
				_, err := tx.Exec(ctx, insert, m.Identity.ID)
				return err
			})
			r.produce(message(0, "a", "", ""), message(0, "b", "", "slow"), message(0, "c", "", ""))
			r.start(c)
			r.outcomes(map[string]int{"processed": 2, "delayed": 1})
			r.once("a", "c")
		})
	}
}

// A pipelined batch whose messages take long together blames none of them.
func TestASlowPipelineBlamesNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.HandlerTimeout, c.Retry, c.Concurrency = 500*time.Millisecond, never, 1
	c.Batch.Wait = 300 * time.Millisecond
	insert := `insert into ` + r.db.Schema + `.effects (id) values ($1)`
	c.Handler = consumer.Pipelined(func(ctx context.Context, b *pgx.Batch, m *consumer.Message) error {
		select { // the work that it does
		case <-time.After(60 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		b.Queue(insert, m.Identity.ID)
		return nil
	})
	r.produce(r.messages(0, 0, 20)...)
	r.start(c)
	r.outcomes(map[string]int{"processed": 20})
	if n := r.outcome("delayed"); n != 0 {
		t.Errorf("%d messages were blamed", n)
	}
}
