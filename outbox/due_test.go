package outbox

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// release moves what is due, all of it.
func (s *stage) release(r *Relay) (moved int) {
	for {
		n := r.releaseOnce(s.t.Context())
		moved += n
		if n < releaseRows {
			return moved
		}
	}
}

func TestADelayedEffectIsOutWhenItIsDueAndNotBefore(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	reader, r := s.reader("t"), s.relay(RelayConfig{})
	after, at, now := keyed("t", "k", "after"), keyed("t", "k", "at"), keyed("t", "k", "now")
	after.After, after.Headers = time.Hour, []kgo.RecordHeader{{Key: "h", Value: nil}}
	at.At = time.Now().Add(30 * time.Minute)
	inTx(t, s.db, func(ctx context.Context, tx pgx.Tx) error { return s.outbox.Add(ctx, tx, after, at, now) })
	if moved := s.release(r); moved != 0 {
		t.Fatalf("%d moved before they are due", moved)
	}
	s.drain(r)
	reader.untilCount(t, 1)
	depth, err := s.outbox.Depth(t.Context(), s.db.Pool)
	if err != nil || depth.Rows != 0 || depth.Delayed != 2 {
		t.Errorf("depth %+v, %v, want two that are delayed and no others", depth, err)
	}
	if early := one[bool](s, "select bool_or(due_at < now() + interval '29 minutes') from claimq.outbox_due"); early {
		t.Error("a row is due too early")
	}
	s.exec("update claimq.outbox_due set due_at = due_at - interval '2 hours'")
	if moved := s.release(r); moved != 2 {
		t.Fatalf("%d moved, want 2", moved)
	}
	s.drain(r)
	reader.untilCount(t, 3)
	if diff := cmp.Diff([]string{"now", "at", "after"}, reader.values()); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	last := reader.all()[2]
	if idOf(last) != after.ID.String() || last.Headers[0].Key != "h" || last.Headers[0].Value != nil {
		t.Errorf("the last has the headers %v, want its own and the id %s", last.Headers, after.ID)
	}
}

// A rolled-back one is never out, and one whose transaction is open moves later.
func TestDelayedEffectsAreTheTransactions(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	r := s.relay(RelayConfig{})
	effect := keyed("t", "k", "v")
	effect.At = time.Now().Add(-time.Hour)
	tx, err := s.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.outbox.Add(t.Context(), tx, effect); err != nil {
		t.Fatal(err)
	}
	if moved := s.release(r); moved != 0 {
		t.Errorf("%d moved of an open transaction", moved)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if moved := s.release(r); moved != 0 {
		t.Errorf("%d moved of a transaction that rolled back", moved)
	}
}

// Rows of one key that become due together keep the order of their times, also over
// several transactions of the mover.
func TestDelayedEffectsOfAKeyKeepTheOrderOfTheirTimes(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	reader, r := s.reader("t"), s.relay(RelayConfig{})
	const n = releaseRows + 300
	s.exec(`insert into claimq.outbox_due (due_at, bucket, ordered, id, topic, key, value, header_keys, header_values)
	        select now() - i * interval '1 s', claimq.outbox_bucket('k', null), true, gen_random_uuid(), 't', 'k', convert_to(i::text, 'UTF8'), '{}', '{}'
	          from generate_series(1, $1) i`, n)
	if moved := s.release(r); moved != n {
		t.Fatalf("%d moved of %d", moved, n)
	}
	s.drain(r)
	reader.untilCount(t, n)
	for i, value := range reader.values() {
		if want := strconv.Itoa(n - i); value != want {
			t.Fatalf("record %d is %s, want %s", i, value, want)
		}
	}
}

// While the relay runs, without a call.
func TestARunningRelayPublishesWhatBecomesDue(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	reader, r := s.reader("t"), s.relay(RelayConfig{IdlePoll: 20 * time.Millisecond})
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	effect := keyed("t", "k", "v")
	effect.After = 300 * time.Millisecond
	began := time.Now()
	inTx(t, s.db, func(ctx context.Context, tx pgx.Tx) error { return s.outbox.Add(ctx, tx, effect) })
	reader.untilCount(t, 1)
	if waited := time.Since(began); waited < 300*time.Millisecond {
		t.Errorf("it was out after %s", waited)
	}
}

// Rows that are due next month cost a look at one end of an index, also under a plan
// that was made while there were none.
func TestRowsThatAreDueMuchLaterCostNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	r := s.relay(RelayConfig{})
	for range 10 { // the function's plan is made, and kept
		s.release(r)
	}
	s.exec(`insert into claimq.outbox_due (due_at, bucket, ordered, id, topic, key, value, header_keys, header_values)
	        select now() + interval '30 days' + i * interval '1 s', 0, true, gen_random_uuid(), 't', 'k', '\x00', '{}', '{}' from generate_series(1, 100000) i`)
	p := s.planner()
	p.exec("set enable_seqscan = off")
	p.exec("prepare due as select due_at, seq from claimq.outbox_due where due_at <= now() order by due_at, seq limit $1")
	p.plan(t.Context(), "due", "1000", false).each(func(n planNode) {
		if n.Relation != "" && !(strings.HasPrefix(n.NodeType, "Index") && strings.Contains(n.IndexCond, "due_at")) || n.NodeType == "Sort" {
			t.Errorf("%s of %s by %q", n.NodeType, n.Relation, n.IndexCond)
		}
	})
	before := one[int64](s, "select coalesce(seq_tup_read, 0) from pg_stat_user_tables where schemaname = $1 and relname = 'outbox_due'", s.db.Schema)
	began := time.Now()
	const looks = 50
	for range looks {
		s.release(r)
	}
	if each := time.Since(began) / looks; each > 20*time.Millisecond {
		t.Errorf("a look takes %s with 100000 rows that are not due", each)
	}
	if after := one[int64](s, "select coalesce(seq_tup_read, 0) from pg_stat_user_tables where schemaname = $1 and relname = 'outbox_due'", s.db.Schema); after > before {
		t.Errorf("%d rows were read one by one", after-before)
	}
}

func TestAnUnclearDelayIsRefused(t *testing.T) {
	t.Parallel()
	box, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		at    time.Time
		after time.Duration
		want  error
	}{
		"both":         {time.Now(), time.Second, ErrDelay},
		"negative":     {time.Time{}, -time.Second, ErrDelay},
		"out of range": {time.Date(300_000, 1, 1, 0, 0, 0, 0, time.UTC), 0, ErrDelay},
		"past":         {time.Now().Add(-time.Hour), 0, nil},
		"none":         {time.Time{}, 0, nil},
	} {
		effect := keyed("t", "k", "v")
		effect.At, effect.After = test.at, test.after
		if err := box.Check(Cause{}, []Effect{effect}); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
	// One id, now and later, is one id.
	now := keyed("t", "k", "v")
	later := now
	later.After = time.Hour
	if _, err := box.insertions(2, func(i int) (Cause, *Effect) { return Cause{}, []*Effect{&now, &later}[i] }); !errors.Is(err, ErrSameID) {
		t.Errorf("one id now and later: %v, want %v", err, ErrSameID)
	}
}
