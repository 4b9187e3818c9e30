package outbox

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kerr"
)

var anOrder = Order{Who: "ada", Why: "INC-12"}

// audited returns action, who, why and the detail's records of each audit row.
func (s *stage) audited() []string {
	s.t.Helper()
	rows, err := s.db.Pool.Query(s.t.Context(), s.sql(
		`select action || ' ' || who || ' ' || why || ' ' || case jsonb_typeof(detail -> 'records')
		            when 'array' then jsonb_array_length(detail -> 'records')::text else detail ->> 'records' end
		   from claimq.audit order by id`))
	if err != nil {
		s.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// lookNow lets the relay look at what is set aside without a pause, due or not.
func lookNow(r *Relay) {
	for _, slice := range r.slices {
		slice.heldLooked = slice.heldLooked.Add(-heldEvery)
	}
}

// A refused record with two behind it, all of them named in turn.
func TestRetryMakesTheFirstOfAKeyDue(t *testing.T) {
	t.Parallel()
	for name, pick := range map[string]func(ids []uuid.UUID) Selection{
		"by the refused one":      func(ids []uuid.UUID) Selection { return Selection{IDs: ids[:1]} },
		"by one that waits":       func(ids []uuid.UUID) Selection { return Selection{IDs: ids[2:]} },
		"by topic":                func([]uuid.UUID) Selection { return Selection{Topic: "t"} },
		"all":                     func([]uuid.UUID) Selection { return Selection{All: true} },
		"by topic and id at once": func(ids []uuid.UUID) Selection { return Selection{Topic: "none", IDs: ids[1:2]} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, 1, "t")
			allow, _ := s.refusePoison(kerr.InvalidRecord.Code)
			reader, r := s.reader("t"), s.relay(RelayConfig{RetryInitial: 3600e9, RetryMax: 3600e9})
			ids := []uuid.UUID{s.add("t", "a", "1 POISON"), s.add("t", "a", "2"), s.add("t", "a", "3")}
			s.drain(r)
			allow()
			lookNow(r)
			if did := s.round(r); did.retried != 0 {
				t.Fatalf("%d rows were tried before they were due", did.retried)
			}
			named, err := s.outbox.Retry(t.Context(), s.db.Pool, pick(ids), anOrder)
			if err != nil || named == 0 {
				t.Fatalf("Retry: %d, %v", named, err)
			}
			lookNow(r)
			s.drain(r)
			reader.untilCount(t, 3)
			if diff := cmp.Diff([]string{"1 POISON", "2", "3"}, reader.values()); diff != "" {
				t.Errorf("published (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{fmt.Sprintf("outbox retry ada INC-12 %d", named)}, s.audited()); diff != "" {
				t.Errorf("audit (-want +got):\n%s", diff)
			}
		})
	}
}

// Whichever record of a missing topic is named, the topic is tried.
func TestRetryProbesATopicThatHasCome(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	r := s.relay(RelayConfig{RetryInitial: 3600e9, RetryMax: 3600e9})
	s.add("late", "a", "1")
	newest := s.add("late", "b", "2")
	s.drain(r)
	s.createTopic("late", 1, nil)
	if _, err := s.outbox.Retry(t.Context(), s.db.Pool, Selection{IDs: []uuid.UUID{newest}}, anOrder); err != nil {
		t.Fatal(err)
	}
	lookNow(r)
	s.drain(r)
	s.reader("late").untilCount(t, 2)
	if held := s.held(); len(held) != 0 {
		t.Errorf("still held: %+v", held)
	}
}

func TestDiscardLetsTheNextOfTheKeyGo(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	s.refusePoison(kerr.InvalidRecord.Code)
	reader, r := s.reader("t"), s.relay(RelayConfig{RetryInitial: 3600e9, RetryMax: 3600e9})
	bad := s.add("t", "a", "1 POISON")
	for _, value := range []string{"2", "3 unwanted", "4"} {
		s.add("t", "a", value)
	}
	s.drain(r)
	unwanted := s.held()[2].ID
	gone, err := s.outbox.Discard(t.Context(), s.db.Pool, Selection{IDs: []uuid.UUID{unwanted, bad}}, anOrder)
	if err != nil {
		t.Fatal(err)
	}
	if len(gone) != 2 || gone[0].ID != bad || gone[0].Scope != scopeRow || gone[1].ID != unwanted {
		t.Errorf("discarded %+v, want %s and %s", gone, bad, unwanted)
	}
	lookNow(r)
	s.drain(r)
	reader.untilCount(t, 2)
	if diff := cmp.Diff([]string{"2", "4"}, reader.values()); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	if held := s.held(); len(held) != 0 {
		t.Errorf("still held: %+v", held)
	}
	if diff := cmp.Diff([]string{"outbox discard ada INC-12 2"}, s.audited()); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
}

// More than one transaction of an order takes.
func TestDiscardOfAWholeTopic(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	r := s.relay(RelayConfig{})
	const n = adminRows + 5
	effects := make([]Effect, n)
	for i := range effects {
		effects[i] = keyed("missing", fmt.Sprint(i%7), "v")
	}
	inTx(t, s.db, func(ctx context.Context, tx pgx.Tx) error { return s.outbox.Add(ctx, tx, effects...) })
	s.drain(r)
	gone, err := s.outbox.Discard(t.Context(), s.db.Pool, Selection{Topic: "missing"}, anOrder)
	if err != nil || len(gone) != n {
		t.Fatalf("discarded %d of %d: %v", len(gone), n, err)
	}
	if held := s.held(); len(held) != 0 {
		t.Errorf("%d still held", len(held))
	}
	if diff := cmp.Diff([]string{"outbox discard ada INC-12 1000", "outbox discard ada INC-12 5"}, s.audited()); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
}

// The relay has read a row that waits behind a refused one, and sets it aside after
// that one was discarded: it must not wait behind nothing for ever.
func TestARowSetAsideBehindADiscardedOneIsNotLost(t *testing.T) {
	t.Parallel()
	for name, behind := range map[string]func() Effect{
		"of its key": func() Effect { return keyed("t", "a", "2") },
		// A relay that begins again meets a row that it had set aside.
		"itself, met again": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, 1, "t")
			allow, _ := s.refusePoison(kerr.InvalidRecord.Code)
			reader, r := s.reader("t"), s.relay(RelayConfig{RetryInitial: 3600e9, RetryMax: 3600e9})
			key := "a"
			if behind == nil {
				key = "" // no order
			}
			bad := s.add("t", key, "1 POISON")
			s.drain(r)
			want := "2"
			if behind != nil {
				effect := behind()
				inTx(t, s.db, func(ctx context.Context, tx pgx.Tx) error { return s.outbox.Add(ctx, tx, effect) })
			} else {
				want = "1 POISON"
				s.exec("insert into claimq.relay_windows (slices, slice, token, instance, leased_until, incarnation, done) " +
					"select slices, slice, token, instance, leased_until, incarnation, '3:3:' from claimq.relay_row(1::smallint, 0::smallint)")
			}
			r.step = func(at step) error {
				if at != stepRead {
					return nil
				}
				r.step = nil
				_, err := s.outbox.Discard(t.Context(), s.db.Pool, Selection{IDs: []uuid.UUID{bad}}, anOrder)
				return err
			}
			s.round(r)
			if r.step != nil {
				t.Fatal("the relay has read nothing")
			}
			allow()
			lookNow(r)
			s.dueNow(r)
			s.drain(r)
			reader.untilCount(t, 1)
			if diff := cmp.Diff([]string{want}, reader.values()); diff != "" {
				t.Errorf("published (-want +got):\n%s", diff)
			}
			if held := s.held(); len(held) != 0 {
				t.Errorf("still held: %+v", held)
			}
		})
	}
}

func TestOrdersNeedAReasonAndARecord(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	for name, test := range map[string]struct {
		what  Selection
		order Order
		want  error
	}{
		"no reason":  {Selection{All: true}, Order{Who: "ada"}, ErrNoReason},
		"nobody":     {Selection{All: true}, Order{Why: "INC-12"}, ErrNoReason},
		"no records": {Selection{}, anOrder, ErrNoSelection},
	} {
		if _, err := s.outbox.Retry(t.Context(), s.db.Pool, test.what, test.order); !errors.Is(err, test.want) {
			t.Errorf("%s: Retry: %v, want %v", name, err, test.want)
		}
		if _, err := s.outbox.Discard(t.Context(), s.db.Pool, test.what, test.order); !errors.Is(err, test.want) {
			t.Errorf("%s: Discard: %v, want %v", name, err, test.want)
		}
	}
	if named, err := s.outbox.Retry(t.Context(), s.db.Pool, Selection{All: true}, anOrder); named != 0 || err != nil {
		t.Errorf("Retry of an empty outbox: %d, %v", named, err)
	}
	if audit := s.audited(); len(audit) != 0 {
		t.Errorf("orders that did nothing are audited: %v", audit)
	}
}
