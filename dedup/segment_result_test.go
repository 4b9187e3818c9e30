package dedup

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// result claims an id with a result of a lifetime.
func (s *rollStage) result(id string, lifetime time.Duration) {
	s.t.Helper()
	err := pgx.BeginTxFunc(s.t.Context(), s.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return s.putResult(s.t.Context(), tx, id, lifetime)
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *rollStage) putResult(ctx context.Context, tx pgx.Tx, id string, lifetime time.Duration) error {
	r := rollRequest("q", id)
	if _, err := s.store.Claim(ctx, tx, r); err != nil {
		return err
	}
	b := &pgx.Batch{}
	s.store.QueueResults(b, []Result{{Claim: r.Identity.Digest(), Value: []byte("of " + id), Lifetime: lifetime}})
	return tx.SendBatch(ctx, b).Close()
}

// resultOf is what a repeat of an id is given.
func (s *rollStage) resultOf(id string) string {
	s.t.Helper()
	var outcomes []Outcome
	err := pgx.BeginTxFunc(s.t.Context(), s.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
		outcomes, err = s.store.Claim(s.t.Context(), tx, rollRequest("q", id))
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return string(outcomes[0].Result)
}

func (s *rollStage) resultRows() (rows []int) {
	s.t.Helper()
	for _, text := range []string{`select count(*)::int from claimq.results_0`, `select count(*)::int from claimq.results_1`, `select count(*)::int from claimq.results_2`} {
		rows = append(rows, oneOf[int](s, text))
	}
	return rows
}

// Results go when they have expired, long before their claims, and no row of them is
// ever deleted.
func TestResultsAreForgottenOnTheirOwnClock(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	s.exec(`update claimq.claim_segments set current_since = now() + interval '1000 days' where segment = 0`) // no roll of claims
	s.pass(5 * day)                                                                                           // past half of the retention, while no lifetime is known
	s.result("a", time.Hour)
	s.run(RollResult{}) // slot 1 is written now, and slot 0 is closed
	s.result("b", time.Hour)
	if diff := cmp.Diff([]int{1, 1, 0}, s.resultRows()); diff != "" {
		t.Errorf("rows in the slots (-want +got):\n%s", diff)
	}
	s.pass(59 * time.Minute)
	if a, b := s.resultOf("a"), s.resultOf("b"); a != "of a" || b != "of b" {
		t.Errorf("before they expire: %q and %q", a, b)
	}
	s.run(RollResult{}) // half of the longest lifetime has passed: slot 2
	s.result("c", time.Hour)
	s.pass(2 * time.Minute)
	if a := s.resultOf("a"); a != "" {
		t.Errorf("after it has expired: %q", a)
	}
	s.run(RollResult{ResultsForgotten: 2})
	if diff := cmp.Diff([]int{0, 0, 1}, s.resultRows()); diff != "" {
		t.Errorf("rows in the slots (-want +got):\n%s", diff)
	}
	if c := s.resultOf("c"); c != "of c" {
		t.Errorf("a result that has not expired: %q", c)
	}
	s.want("claims stay", Duplicate, "q", "a", "b", "c")
	s.pass(time.Hour)
	s.result("d", time.Hour)
	s.run(RollResult{})
	s.pass(2 * time.Hour)
	s.run(RollResult{ResultsForgotten: 1})
	if n := s.resultRows(); n[0]+n[1]+n[2] != 0 {
		t.Errorf("rows in the slots %v, want none", n)
	}
}

// A result that is stored while the slot changes is not lost: the slot is closed
// after its transaction has ended.
func TestAResultStoredWhileItsSlotIsLeftIsNotLost(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	s.roller.patience = time.Millisecond
	s.exec(`update claimq.claim_segments set current_since = now() + interval '1000 days' where segment = 0`)
	s.pass(5 * day)
	s.result("short", time.Minute)
	slow, err := s.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := s.store.Claim(t.Context(), slow, rollRequest("q", "first")); err != nil {
		t.Fatal(err)
	}
	if err := s.putResult(t.Context(), slow, "late", time.Hour); err != nil {
		t.Fatal(err)
	}
	s.run(RollResult{Waiting: WaitingForClaimers})
	s.pass(2 * time.Minute) // the committed ones of the slot have expired
	s.run(RollResult{Waiting: WaitingForClaimers})
	if err := slow.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.run(RollResult{})
	if late := s.resultOf("late"); late != "of late" {
		t.Errorf("the late result is %q", late)
	}
	s.pass(time.Hour)
	s.run(RollResult{ResultsForgotten: 1})
}

// An id that was forgotten and handled again has the newer result, wherever it lies.
func TestTheNewestResultOfAnIDCounts(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	s.result("a", time.Hour)
	s.exec(`insert into claimq.results (slot, claim, value, created_at, expires_at)
	        select 2, claim, 'older', created_at - interval '1 minute', expires_at + interval '1 day' from claimq.results`)
	if got := s.resultOf("a"); got != "of a" {
		t.Errorf("%q, want the newer one", got)
	}
	if claim := oneOf[uuid.UUID](s, `select distinct claim from claimq.results`); claim != rollRequest("q", "a").Identity.Digest() {
		t.Errorf("results of claim %s", claim)
	}
}
