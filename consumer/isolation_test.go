package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/outbox"
)

// act does what a message's value says, for one message: the writes of each kind of
// handler, and each way to fail.
func act(m *consumer.Message) error {
	switch word, _, _ := strings.Cut(string(m.Record.Value), " "); word {
	case "fails":
		return errBoom
	case "dies":
		return consumer.Permanent(errBoom)
	case "later":
		return consumer.RetryAfter(2*time.Hour, errBoom)
	case "panics":
		panic("the handler's own panic")
	case "exits":
		runtime.Goexit()
	case "skips":
		return consumer.Skip("nothing to do")
	}
	return nil
}

// kinds are the handlers of every kind that write a row and do what act does.
func (r *rig) kinds() map[string]consumer.Handler {
	insert := `insert into ` + r.db.Schema + `.effects (id, value) values ($1, $2)`
	write := func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
		if _, err := tx.Exec(ctx, insert, m.Identity.ID, m.Record.Value); err != nil {
			return err
		}
		return act(m)
	}
	return map[string]consumer.Handler{
		"one": consumer.One(write),
		"pipelined": consumer.Pipelined(func(_ context.Context, b *pgx.Batch, m *consumer.Message) error {
			b.Queue(insert, m.Identity.ID, m.Record.Value)
			return act(m)
		}),
		"batch that names": consumer.Batch(func(ctx context.Context, tx pgx.Tx, ms []*consumer.Message) error {
			for i, m := range ms {
				if err := write(ctx, tx, m); err != nil && act(m) != nil {
					return consumer.FailedAt(i, err)
				}
			}
			return nil
		}),
		"batch that does not": consumer.Batch(func(ctx context.Context, tx pgx.Tx, ms []*consumer.Message) error {
			for _, m := range ms {
				if err := write(ctx, tx, m); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}

// ids are the ids of the effects in the order in which they were made.
func (r *rig) ids() []string { return r.strings(`select id from %s.effects order by n`) }

// once checks that exactly these ids had an effect, each once.
func (r *rig) once(want ...string) {
	r.t.Helper()
	got := r.ids()
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		r.t.Errorf("effects (-want +got):\n%s", diff)
	}
}

// outcomes waits until so many messages have had these outcomes.
func (r *rig) outcomes(want map[string]int) {
	r.t.Helper()
	defer func() {
		if r.t.Failed() {
			for outcome := range want {
				r.t.Logf("%s: %d", outcome, r.outcome(outcome))
			}
		}
	}()
	eventually(r.t, fmt.Sprintf("outcomes are %v", want), func() bool {
		for outcome, n := range want {
			if r.outcome(outcome) != n {
				return false
			}
		}
		return true
	})
}

func TestAFailureInABatchReachesNoOtherMessage(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"one", "pipelined", "batch that names", "batch that does not"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.Handler, c.Retry, c.Concurrency = r.kinds()[kind], never, 1
			bad := map[int]string{13: "fails", 14: "later", 50: "dies", 51: "dies", 77: "later", 99: "fails"}
			if kind != "batch that names" { // what ends the handler names nobody
				bad[33], bad[34], bad[88] = "panics", "exits", "panics"
			}
			var want []string
			var records []*kgo.Record
			for i := range 100 {
				id := "m" + strconv.Itoa(i)
				m := message(0, id, id, "works")
				if what, ok := bad[i]; ok {
					m.Value = []byte(what)
				} else {
					want = append(want, id)
				}
				records = append(records, m)
			}
			r.produce(records...)
			r.start(c)
			r.outcomes(map[string]int{"processed": len(want), "dead": 2, "delayed": len(bad) - 2})
			r.once(want...)
			if n := r.count(`select count(*) from %s.claims`); n != len(want) {
				t.Errorf("%d claims, want %d: a failed attempt leaves none", n, len(want))
			}
			eventually(t, "position is at the end", func() bool { return r.position(0) == 100 })
			for sql, want := range map[string]int{
				`select count(*) from %s.delayed where due_at > now() + interval '100 minutes'`:                  2,
				`select count(*) from %s.dead_letters where reason = 'permanent' and attempts = 1`:               2,
				`select count(*) from %s.delayed where error_class = 'panic' and error_message like '%%panic%%'`: (len(bad) - 6) * 2 / 3,
				`select count(*) from %s.delayed where error_message like '%%Goexit%%'`:                          (len(bad) - 6) / 3,
			} {
				if n := r.count(sql); n != want {
					t.Errorf("%s: %d, want %d", sql, n, want)
				}
			}
		})
	}
}

func TestSkipKeepsWritesAndClaim(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"one", "pipelined"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.Handler = r.kinds()[kind]
			r.produce(message(0, "a", "a", "skips"), message(0, "b", "b", "works"))
			r.start(c)
			r.outcomes(map[string]int{"processed": 1, "skipped": 1})
			r.produce(message(0, "a", "a", "skips"))
			r.outcomes(map[string]int{"duplicate": 1})
			r.once("a", "b")
		})
	}
}

func TestABatchHandlerMayNotSkipMany(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Retry, c.Concurrency = never, 1
	c.Handler = consumer.Batch(func(context.Context, pgx.Tx, []*consumer.Message) error { return consumer.Skip("all") })
	r.produce(r.messages(0, 0, 4)...)
	r.start(c)
	// In the end it is called with one message at a time, for which Skip has a meaning.
	r.outcomes(map[string]int{"skipped": 4})
}

// Past 64 savepoints that have written, every other session gets slow: what is left
// then goes to another batch.
func TestManyFailuresInOneBatchAreWorkedOff(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"one", "batch that does not"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.Handler, c.Retry, c.Concurrency = r.kinds()[kind], never, 1
			var want []string
			for i := range 300 {
				id := "m" + strconv.Itoa(i)
				m := message(0, id, id, "works")
				if i%2 == 0 {
					m.Value = []byte("fails")
				} else {
					want = append(want, id)
				}
				r.produce(m)
			}
			r.start(c)
			r.outcomes(map[string]int{"processed": 150, "delayed": 150})
			r.once(want...)
			eventually(t, "position is at the end", func() bool { return r.position(0) == 300 })
		})
	}
}

// What stands before a failed message of the same order key is not behind it.
func TestAFailureBlocksOnlyWhatStandsBehindIt(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"one", "pipelined", "batch that names", "batch that does not"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.Handler, c.Retry, c.Concurrency = r.kinds()[kind], never, 1
			c.Batch.Wait = 200 * time.Millisecond
			for i := range 10 { // makes later batches run in chunks
				r.produce(message(0, "t"+strconv.Itoa(i), "trouble", "fails"))
			}
			for i := range 90 {
				value := "works"
				if i == 45 {
					value = "fails"
				}
				r.produce(message(0, "m"+strconv.Itoa(i), "k", value))
			}
			r.start(c)
			r.outcomes(map[string]int{"processed": 45, "delayed": 2, "blocked": 53})
			var want []string
			for i := range 45 {
				want = append(want, "m"+strconv.Itoa(i))
			}
			if diff := cmp.Diff(want, r.ids()); diff != "" {
				t.Errorf("effects (-want +got):\n%s", diff)
			}
		})
	}
}

func TestATransactionAbortedAndHiddenIsAFailure(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Retry, c.Concurrency = never, 1
	insert := `insert into ` + r.db.Schema + `.effects (id) values ($1)`
	c.Handler = consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
		if string(m.Record.Value) == "hides" {
			_, _ = tx.Exec(ctx, "select 1/0")
			return nil
		}
		_, err := tx.Exec(ctx, insert, m.Identity.ID)
		return err
	})
	r.produce(message(0, "a", "a", "works"), message(0, "b", "b", "hides"), message(0, "c", "c", "works"))
	r.start(c)
	r.outcomes(map[string]int{"processed": 2, "delayed": 1})
	r.once("a", "c")
}

// A handler that ends the transaction through the connection itself makes its own
// message fail; the claims of the others must not stand without their writes, nor
// writes without their effects.
func TestACommitThroughTheConnectionLosesNoMessage(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"commit", "rollback"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.Retry, c.Concurrency = never, 1
			insert := `insert into ` + r.db.Schema + `.effects (id) values ($1)`
			c.Handler = consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
				if string(m.Record.Value) == "ends" {
					_, err := tx.Conn().Exec(ctx, how)
					return err
				}
				if err := m.Emit(outbox.Effect{Name: "e", Topic: "effects"}); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, insert, m.Identity.ID)
				return err
			})
			var want []string
			for i := range 20 {
				id, value := "m"+strconv.Itoa(i), "works"
				if i == 10 {
					value = "ends"
				} else {
					want = append(want, id)
				}
				r.produce(message(0, id, id, value))
			}
			r.start(c)
			r.outcomes(map[string]int{"delayed": 1})
			eventually(t, "position is at the end", func() bool { return r.position(0) == 20 })
			r.once(want...)
			if n := r.count(`select count(distinct id) from %s.outbox`); n != 19 {
				t.Errorf("%d effects in the outbox, want 19", n)
			}
			if n := r.count(`select count(*) from %s.claims`); n != 19 {
				t.Errorf("%d claims, want 19", n)
			}
		})
	}
}

func TestTransactionControlIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Retry, c.Concurrency = never, 1
	var mu sync.Mutex
	got := map[string]error{}
	c.Handler = consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
		sql := string(m.Record.Value)
		var err error
		switch m.Identity.ID[0] {
		case 'e':
			_, err = tx.Exec(ctx, sql)
		case 'q':
			rows, queryErr := tx.Query(ctx, sql)
			rows.Close()
			err = queryErr
		case 'r':
			err = tx.QueryRow(ctx, sql).Scan()
		case 'b':
			b := &pgx.Batch{}
			b.Queue("select 1")
			b.Queue(sql)
			err = tx.SendBatch(ctx, b).Close()
		case 'p':
			_, err = tx.Prepare(ctx, "p", sql)
		case 'C':
			err = tx.Commit(ctx)
		case 'R':
			err = tx.Rollback(ctx)
		}
		mu.Lock()
		defer mu.Unlock()
		got[m.Identity.ID+" "+sql] = err
		return nil
	})
	n := 0
	for _, sql := range []string{"COMMIT", "rollback", "set search_path = x", "/* a */ savepoint s", "select 1; commit"} {
		for _, way := range []string{"e", "q", "r", "b", "p"} {
			if way != "e" && strings.Contains(sql, ";") {
				continue
			}
			n++
			r.produce(message(0, way+strconv.Itoa(n), "", sql))
		}
	}
	r.produce(message(0, "C", "", "-"), message(0, "R", "", "-"))
	r.start(c)
	r.outcomes(map[string]int{"processed": n + 2})
	mu.Lock()
	defer mu.Unlock()
	for what, err := range got {
		if !errors.Is(err, consumer.ErrTransactionControl) {
			t.Errorf("%s: %v, want ErrTransactionControl", what, err)
		}
	}
}

func TestNestedTransactionsWork(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	insert := `insert into ` + r.db.Schema + `.effects (id) values ($1)`
	c.Handler = consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
		for _, keep := range []bool{false, true} {
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			if _, err := inner.Exec(ctx, insert, m.Identity.ID+strconv.FormatBool(keep)); err != nil {
				return err
			}
			end := inner.Rollback
			if keep {
				end = inner.Commit
			}
			if err := end(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	r.produce(message(0, "a", "a", ""))
	r.start(c)
	r.outcomes(map[string]int{"processed": 1})
	r.once("atrue")
}

func TestADeferredConstraintFailsItsOwnMessage(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"one", "pipelined", "batch that does not"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			r.exec(`alter table ` + r.db.Schema + `.effects add constraint later unique (id) deferrable initially deferred`)
			r.exec(`insert into ` + r.db.Schema + `.effects (id) values ('m7'), ('m33')`)
			c := r.config()
			c.Handler, c.Retry, c.Concurrency = r.kinds()[kind], never, 1
			for i := range 50 {
				r.produce(message(0, "m"+strconv.Itoa(i), "", "works"))
			}
			r.start(c)
			r.outcomes(map[string]int{"processed": 48, "delayed": 2})
			if got := r.strings(`select convert_from(record_value, 'UTF8') || error_class from %s.delayed`); !slices.Equal(got, []string{"works23505", "works23505"}) {
				t.Errorf("delayed: %q", got)
			}
			if n := r.count(`select count(distinct id) from %s.effects`); n != 50 {
				t.Errorf("%d distinct effects, want 50", n)
			}
		})
	}
}

// C05 b: a unique violation of the business is not a duplicate.
func TestAUniqueViolationOfTheBusinessIsAFailure(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"one", "pipelined", "batch that does not"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			r.exec(`create unique index on ` + r.db.Schema + `.effects (id)`)
			r.exec(`insert into ` + r.db.Schema + `.effects (id) values ('b')`)
			c := r.config()
			c.Handler, c.Retry = r.kinds()[kind], never
			r.produce(message(0, "a", "", "works"), message(0, "b", "", "works"), message(0, "c", "", "works"))
			r.start(c)
			r.outcomes(map[string]int{"processed": 2, "delayed": 1})
			r.once("a", "b", "c")
			if n := r.outcome("duplicate"); n != 0 {
				t.Errorf("%d duplicates", n)
			}
		})
	}
}

// when does what act does until works is closed; then every message works.
func (r *rig) when(works <-chan struct{}) consumer.Handler {
	insert := `insert into ` + r.db.Schema + `.effects (id, value) values ($1, $2)`
	return consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
		if _, err := tx.Exec(ctx, insert, m.Identity.ID, m.Record.Value); err != nil {
			return err
		}
		select {
		case <-works:
			return nil
		default:
			return act(m)
		}
	})
}
