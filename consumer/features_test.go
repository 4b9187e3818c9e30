package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dedup"
)

// Messages of one order key that go to different handlers keep their order, and what
// no route takes is skipped and writes no claim (C37).
func TestRoutesKeepOrderAndSkipTheRest(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Concurrency, c.Batch.Wait = 1, 200*time.Millisecond
	insert := `insert into ` + r.db.Schema + `.effects (id, value) values ($1, $2)`
	write := func(by string) consumer.Handler {
		return consumer.Batch(func(ctx context.Context, tx pgx.Tx, ms []*consumer.Message) error {
			for _, m := range ms {
				if _, err := tx.Exec(ctx, insert, m.Identity.ID, []byte(by)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	c.Handler = consumer.Handler{}
	c.Routes = []consumer.Route{
		{Name: "a", Header: "type", Value: "a", Handler: write("a")},
		{Name: "b", Match: func(m *consumer.Message) bool { return string(m.Record.Value) == "b" }, Handler: write("b")},
	}
	var want []string
	for i := range 30 {
		id := "m" + strconv.Itoa(i)
		m := message(0, id, "k", "")
		switch i % 3 {
		case 0:
			m.Headers = append(m.Headers, kgo.RecordHeader{Key: "type", Value: []byte("a")})
			want = append(want, id)
		case 1:
			m.Value = []byte("b")
			want = append(want, id)
		}
		r.produce(m)
	}
	r.start(c)
	r.outcomes(map[string]int{"processed": 20, "skipped": 10})
	if diff := cmp.Diff(want, r.ids()); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
	if n := r.count(`select count(*) from %s.claims`); n != 20 {
		t.Errorf("%d claims, want 20: what is filtered out writes none", n)
	}
	if n := r.count(`select count(*) from %s.effects where value = 'a'`); n != 10 {
		t.Errorf("%d by route a, want 10", n)
	}
}

func TestMiddlewareWrapsInOrderAndNames(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Retry, c.Concurrency, c.Batch.Wait = never, 1, 200*time.Millisecond
	var mu sync.Mutex
	var calls []string
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, what)
	}
	layer := func(name string) consumer.Middleware {
		return func(ctx context.Context, ms []*consumer.Message, next func(context.Context) error) error {
			note(name)
			defer note("/" + name)
			for _, m := range ms {
				if name == "outer" {
					m.Decoded = "decoded " + m.Identity.ID
				}
			}
			return next(context.WithValue(ctx, contextKey(name), true))
		}
	}
	c.Middleware = []consumer.Middleware{layer("outer"), layer("inner"), func(ctx context.Context, ms []*consumer.Message, next func(context.Context) error) error {
		for i, m := range ms {
			if string(m.Record.Value) == "refused" {
				return consumer.FailedAt(i, consumer.Permanent(errBoom))
			}
		}
		return next(ctx)
	}}
	insert := `insert into ` + r.db.Schema + `.effects (id) values ($1)`
	c.Handler = consumer.Batch(func(ctx context.Context, tx pgx.Tx, ms []*consumer.Message) error {
		note("handler")
		for _, m := range ms {
			if m.Decoded != "decoded "+m.Identity.ID || ctx.Value(contextKey("inner")) != true || ctx.Value(contextKey("outer")) != true {
				return errors.New("middleware left nothing")
			}
			if _, err := tx.Exec(ctx, insert, m.Identity.ID); err != nil {
				return err
			}
		}
		return nil
	})
	r.produce(message(0, "a", "", ""), message(0, "b", "", "refused"), message(0, "c", "", ""))
	r.start(c)
	r.outcomes(map[string]int{"processed": 2, "dead": 1})
	r.once("a", "c")
	mu.Lock()
	defer mu.Unlock()
	if i := slices.Index(calls, "handler"); i < 2 || !slices.Equal(calls[i-2:i+3], []string{"outer", "inner", "handler", "/inner", "/outer"}) {
		t.Errorf("calls: %v", calls)
	}
}

type contextKey string

// Without claims each offset takes effect once, and a repeat is a message of its own.
func TestClaimNoneHandlesEachOffsetOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	c := r.config()
	c.Claims, c.Rules, c.Retry, c.Concurrency = consumer.ClaimNone, dedup.Rules{}, soon, 4
	insert := `insert into ` + r.db.Schema + `.effects (id) values ($1)`
	c.Handler = consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
		if string(m.Record.Value) == "fails" && m.Attempt < 3 {
			return errBoom
		}
		_, err := tx.Exec(ctx, insert, fmt.Sprint(m.Record.Partition, "/", m.Record.Offset))
		return err
	})
	var records []*kgo.Record
	for i := range 200 {
		m := message(int32(i%2), "same", "k"+strconv.Itoa(i%5), "")
		if i%50 == 3 {
			m.Value = []byte("fails")
		}
		records = append(records, m)
	}
	r.produce(records...)
	for range 3 { // restarts in the middle
		q := r.start(c)
		before := r.count(`select count(*) from %s.effects`)
		eventually(t, "some more is done", func() bool { n := r.count(`select count(*) from %s.effects`); return n > before || n == 200 })
		r.stop(q)
	}
	r.start(c)
	eventually(t, "all is done", func() bool { return r.count(`select count(distinct id) from %s.effects`) == 200 })
	eventually(t, "positions are at the end", func() bool { return r.position(0) == 100 && r.position(1) == 100 })
	if n := r.count(`select count(*) from %s.effects`); n != 200 {
		t.Errorf("%d effects, want 200", n)
	}
	if n := r.count(`select count(*) from %s.claims`); n != 0 {
		t.Errorf("%d claims, want none", n)
	}
}

// Many failures under two handlers without claims: what is set aside lies behind all
// that was executed, since the position is the only memory.
func TestClaimNoneSetsAsideNothingInFrontOfWhatIsDone(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Claims, c.Retry, c.Concurrency, c.Batch.Wait = consumer.ClaimNone, never, 1, 300*time.Millisecond
	c.Order = consumer.OrderNone
	pool, proxy := r.throughProxy()
	c.Handler = consumer.Handler{}
	handler := r.kinds()["one"]
	c.Routes = []consumer.Route{
		{Name: "even", Match: func(m *consumer.Message) bool { return m.Record.Offset%2 == 0 }, Handler: handler},
		{Name: "odd", Handler: r.kinds()["batch that does not"]},
	}
	var records []*kgo.Record
	for i := range 400 {
		value := "works"
		if i%3 == 0 {
			value = "fails"
		}
		records = append(records, message(0, "m"+strconv.Itoa(i), "", value))
	}
	r.produce(records...)
	q, err := r.tryStart(c, pool)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a batch is done", func() bool { return r.position(0) > 0 })
	proxy.closed.Store(true) // it is lost between two batches
	proxy.cut()
	r.stop(q)
	proxy.closed.Store(false)
	r.start(c)
	eventually(t, "position is at the end", func() bool { return r.position(0) == 400 })
	if all, distinct := r.count(`select count(*) from %s.effects`), r.count(`select count(distinct id) from %s.effects`); all != distinct || all != 266 {
		t.Errorf("%d effects of %d messages, want 266", all, distinct)
	}
}

// Two tenants, and two operations, with one id: each is processed, and no tenant is
// not the empty one.
func TestScopesOfOneID(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Rules.Tenant, c.Rules.Operation = []dedup.Source{dedup.Header("tenant")}, []dedup.Source{dedup.Header("operation")}
	scoped := func(headers ...string) *kgo.Record {
		m := message(0, "same", "", "v")
		for i := 0; i < len(headers); i += 2 {
			m.Headers = append(m.Headers, kgo.RecordHeader{Key: headers[i], Value: []byte(headers[i+1])})
		}
		return m
	}
	all := func() []*kgo.Record {
		return []*kgo.Record{
			scoped(), scoped("tenant", ""), scoped("tenant", "a"), scoped("tenant", "b"),
			scoped("operation", "a"), scoped("tenant", "a", "operation", "a"), scoped("operation", ""),
		}
	}
	r.produce(all()...)
	r.produce(all()...)
	r.start(c)
	r.outcomes(map[string]int{"processed": 7, "duplicate": 7})
}

// Two queues on one topic: each handles all of it, and each fails by itself (C08).
func TestTwoQueuesOnOneTopic(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	first, second := r.config(), r.config()
	first.Queue, second.Queue = "first-q", "second-q"
	first.Retry, second.Retry = soon, soon
	first.Handler, second.Handler = r.kinds()["one"], r.kinds()["one"]
	r.produce(message(0, "a", "a", "works"), message(0, "b", "b", "fails"), message(0, "c", "c", "works"))
	r.start(first)
	r.start(second)
	r.outcomes(map[string]int{"processed": 4, "dead": 2, "duplicate": 0})
	r.once("a", "a", "c", "c")
	if n := r.count(`select count(distinct queue) from %s.dead_letters`); n != 2 {
		t.Errorf("letters of %d queues, want 2", n)
	}
}

// A record of any shape reaches the handler byte for byte.
func TestAnyRecordReachesTheHandlerExactly(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Claims, c.Rules = consumer.ClaimNone, dedup.Rules{}
	var mu sync.Mutex
	got := map[int64]string{}
	c.Handler = consumer.One(func(_ context.Context, _ pgx.Tx, m *consumer.Message) error {
		mu.Lock()
		defer mu.Unlock()
		got[m.Record.Offset] = digest(m.Record)
		return nil
	})
	r.start(c)
	bytes := rapid.OneOf(rapid.Just([]byte(nil)), rapid.Just([]byte{}), rapid.SliceOf(rapid.Byte()))
	rapid.Check(t, func(rt *rapid.T) {
		records := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) *kgo.Record {
			record := &kgo.Record{Key: bytes.Draw(rt, "key"), Value: bytes.Draw(rt, "value"), Timestamp: time.UnixMilli(rapid.Int64Range(1, 1<<42).Draw(rt, "at"))}
			for range rapid.IntRange(0, 4).Draw(rt, "headers") {
				record.Headers = append(record.Headers, kgo.RecordHeader{Key: string(rapid.SliceOf(rapid.Byte()).Draw(rt, "name")), Value: bytes.Draw(rt, "header")})
			}
			return record
		}), 20, 40).Draw(rt, "records")
		r.produce(records...)
		for _, record := range records {
			var seen string
			eventually(t, "the record is handled", func() bool {
				mu.Lock()
				defer mu.Unlock()
				seen = got[record.Offset]
				return seen != ""
			})
			if want := digest(record); seen != want {
				rt.Errorf("offset %d is not what was produced", record.Offset)
			}
		}
	})
}
