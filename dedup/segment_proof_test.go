package dedup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/sqlstate"
)

// The proof of the roll. Claimers on connections of their own claim the same few ids
// over and over, while segments roll and are forgotten every few milliseconds. What
// they saw must be explained by one register for each id that is set once and can be
// set again only when its retention is over: porcupine looks for the explanation.
// Wrong variants of the roll must have none, or the proof would prove nothing.

const proofRetention = 16 * time.Millisecond

// proofAnswer is what a committed transaction was told of an id.
type proofAnswer struct {
	claimed   bool
	claimedAt time.Time // of the claim: the transaction's own, or the one that it met
	ended     time.Time
}

type proofState struct {
	claimed   bool
	claimedAt time.Time
}

// proofModel: an id is free, or claimed at a time by the database's clock. It is
// claimed again at the earliest when the retention is over. A repeat is told whose
// repeat it is.
func proofModel(retention time.Duration) porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byID := make(map[string][]porcupine.Operation)
			for _, op := range history {
				id := op.Input.(string)
				byID[id] = append(byID[id], op)
			}
			var parts [][]porcupine.Operation
			for _, part := range byID {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() any { return proofState{} },
		Step: func(state, _, output any) (bool, any) {
			now, answer := state.(proofState), output.(proofAnswer)
			if answer.claimed {
				legal := !now.claimed || !answer.ended.Before(now.claimedAt.Add(retention))
				return legal, proofState{claimed: true, claimedAt: answer.claimedAt}
			}
			return now.claimed && now.claimedAt.Equal(answer.claimedAt), now
		},
		Equal: func(a, b any) bool {
			x, y := a.(proofState), b.(proofState)
			return x.claimed == y.claimed && x.claimedAt.Equal(y.claimedAt)
		},
	}
}

// proofRound runs claimers against a rolling ring for a while and returns what they
// saw and what the roller did. The ids are the round's own.
func (s *rollStage) proofRound(round int, conns []*pgx.Conn, claim proofClaim, lasts time.Duration) ([]porcupine.Operation, RollResult) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	until := time.Now().Add(lasts)
	var (
		mu      sync.Mutex
		history []porcupine.Operation
		total   RollResult
		work    sync.WaitGroup
	)
	for client, conn := range conns {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(round), uint64(client)))
			for time.Now().Before(until) {
				ops, err := s.proofClaim(ctx, conn, claim, round, client, random)
				if err != nil {
					s.t.Errorf("client %d: %v", client, err)
					return
				}
				mu.Lock()
				history = append(history, ops...)
				mu.Unlock()
			}
		})
	}
	work.Go(func() {
		for time.Now().Before(until) {
			result, err := s.roller.runOnce(ctx)
			if err != nil {
				s.t.Errorf("roll: %v", err)
				return
			}
			total.Rolled += result.Rolled
			total.Forgotten += result.Forgotten
			total.Phase = result.Phase
		}
	})
	work.Wait()
	return history, total
}

// A proofClaim claims in a transaction: by Store.Claim, or in a flight.
type proofClaim func(ctx context.Context, s *Store, tx pgx.Tx, requests []Request) ([]Outcome, error)

func claimCalled(ctx context.Context, s *Store, tx pgx.Tx, requests []Request) ([]Outcome, error) {
	return s.Claim(ctx, tx, requests...)
}

func claimFlown(ctx context.Context, s *Store, tx pgx.Tx, requests []Request) ([]Outcome, error) {
	b := &pgx.Batch{}
	flight, err := s.Queue(ctx, tx, b, requests)
	if err != nil {
		return nil, err
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, err
	}
	return flight.Resolve(ctx, tx)
}

// proofID is mostly an id out of so many that it is claimed once or twice within a
// few steps of the roll and then never again, and now and then one of three that come
// back for ever.
func proofID(random *rand.Rand) int64 {
	if random.IntN(5) == 0 {
		return random.Int64N(3)
	}
	return (time.Now().UnixMilli()/20-random.Int64N(4))*8 + random.Int64N(8)
}

// proofPause is how long a transaction goes on after its claims, in seconds.
func proofPause(random *rand.Rand) float64 {
	if random.IntN(10) == 0 {
		return 0.03
	}
	return random.Float64() * 0.003
}

// proofClaim is one transaction: a few ids, a short while, a commit or sometimes a
// rollback, which counts as never having been there.
func (s *rollStage) proofClaim(ctx context.Context, conn *pgx.Conn, claim proofClaim, round, client int, random *rand.Rand) ([]porcupine.Operation, error) {
	var requests []Request
	for range 1 + random.IntN(2) {
		r := rollRequest("q", fmt.Sprintf("%d-%d", round, proofID(random)))
		r.Queue = 1
		requests = append(requests, r)
	}
	rollback := errors.New("rolled back")
	began := time.Now()
	var outcomes []Outcome
	var now time.Time
	err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
		if err := tx.QueryRow(ctx, "select now()").Scan(&now); err != nil {
			return err
		}
		if outcomes, err = claim(ctx, s.store, tx, requests); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "select pg_sleep($1)", proofPause(random)); err != nil {
			return err
		}
		if random.IntN(8) == 0 {
			return rollback
		}
		return nil
	})
	ended := time.Now()
	switch {
	case errors.Is(err, rollback), errors.Is(err, ErrUndecided):
		return nil, nil
	case sqlstate.Code(err) == sqlstate.PhaseChanged:
		return nil, s.store.Refresh(ctx, s.Pool)
	case err != nil:
		return nil, err
	}
	return proofAnswers(client, requests, outcomes, now, began, ended), nil
}

// proofAnswers is what a committed transaction adds to the history.
func proofAnswers(client int, requests []Request, outcomes []Outcome, now, began, ended time.Time) (ops []porcupine.Operation) {
	for i := range requests {
		if i > 0 && requests[i].Identity.ID == requests[0].Identity.ID {
			continue // folded before SQL
		}
		answer := proofAnswer{claimed: outcomes[i].Kind == Claimed, claimedAt: outcomes[i].ClaimedAt, ended: ended}
		if answer.claimed {
			answer.claimedAt = now
		}
		ops = append(ops, porcupine.Operation{
			ClientId: client, Input: requests[i].Identity.ID, Output: answer, Call: began.UnixNano(), Return: ended.UnixNano(),
		})
	}
	return ops
}

// stalled makes some claimers of flights stop between the check of their phase and
// their INSERT, for longer than a step of the roll takes. Nothing may come of that.
func (s *rollStage) stalled() {
	s.store.sql.assertPhase = s.sql(`select claimq.assert_phase($1), pg_sleep(case when random() < 0.2 then 0.03 else 0 end)`)
}

func newProofStage(t *testing.T) (*rollStage, []*pgx.Conn) {
	t.Helper()
	s := newRollStage(t, RollerConfig{})
	s.queue("q", proofRetention)
	s.roller.pollMax = time.Millisecond
	conns := make([]*pgx.Conn, 6)
	for i := range conns {
		conns[i] = s.Conn()
	}
	return s, conns
}

func TestEachIDIsClaimedOnceInItsWindowWhileSegmentsRoll(t *testing.T) {
	t.Parallel()
	for name, claim := range map[string]proofClaim{"claimed by call": claimCalled, "claimed in a flight": claimFlown} {
		t.Run(name, func(t *testing.T) {
			s, conns := newProofStage(t)
			s.stalled()
			rolled, forgotten, claims, repeats := 0, 0, 0, 0
			for round := range 6 {
				history, result := s.proofRound(round, conns, claim, 500*time.Millisecond)
				rolled, forgotten = rolled+result.Rolled, forgotten+result.Forgotten
				for _, op := range history {
					if op.Output.(proofAnswer).claimed {
						claims++
					} else {
						repeats++
					}
				}
				if verdict := porcupine.CheckOperationsTimeout(proofModel(proofRetention), history, 30*time.Second); verdict != porcupine.Ok {
					t.Fatalf("round %d: %s of %d answers: an id was claimed twice in its window, or a repeat was told of a claim that was not there", round, verdict, len(history))
				}
			}
			t.Logf("%d rolls, %d segments forgotten, %d claims, %d repeats", rolled, forgotten, claims, repeats)
			if rolled < 5 || forgotten < 5 || claims < 20 || repeats < 20 {
				t.Error("too little has happened for a proof")
			}
		})
	}
}

// Claimers of half a second to several seconds, on ids of their own. The roll takes as
// long as they do and completes; nobody waits for a lock for 100 ms at any time, or
// the claim would fail.
func TestARollCompletesBesideSlowClaimersAndNoClaimerWaits(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	s.claimed(rollRequest("q", "before"))
	s.pass(5 * day)
	started := make(chan error, 16)
	var work sync.WaitGroup
	claimer := func(id string, lasts time.Duration) error {
		return pgx.BeginTxFunc(t.Context(), s.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "set local lock_timeout = '100ms'"); err != nil {
				return err
			}
			outcomes, err := s.store.Claim(t.Context(), tx, rollRequest("q", id))
			if err == nil && outcomes[0].Kind != Claimed {
				err = fmt.Errorf("%s is %s", id, outcomes[0].Kind)
			}
			if lasts > 0 {
				started <- err
			}
			if err != nil {
				return err
			}
			_, err = tx.Exec(t.Context(), "select pg_sleep($1)", lasts.Seconds())
			return err
		})
	}
	slow := []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second}
	for i, lasts := range slow {
		work.Go(func() {
			if err := claimer(fmt.Sprint("slow-", i), lasts); err != nil {
				t.Error(err)
			}
		})
	}
	for range slow {
		if err := <-started; err != nil {
			t.Fatal(err)
		}
	}
	rolled := make(chan struct{})
	work.Go(func() {
		defer close(rolled)
		began := time.Now()
		for total := 0; total == 0; {
			result, err := s.roller.runOnce(t.Context())
			if err != nil || time.Since(began) > 30*time.Second {
				t.Errorf("the roll has not completed after %s: %+v, %v", time.Since(began), result, err)
				return
			}
			total += result.Rolled
		}
		if took := time.Since(began); took < 2*time.Second {
			t.Errorf("the roll took %s and has not waited for the claimers of its phase", took)
		}
	})
	quick := 0
	for done := false; !done; quick++ {
		if err := claimer(fmt.Sprint("quick-", quick), 0); err != nil {
			t.Errorf("quick claimer %d: %v", quick, err)
		}
		select {
		case <-rolled:
			done = true
		default:
		}
	}
	work.Wait()
	t.Logf("%d claims beside the roll", quick)
	for i := range slow {
		s.want("after the roll", Duplicate, "q", fmt.Sprint("slow-", i))
	}
	s.want("after the roll", Duplicate, "q", "before", "quick-0", fmt.Sprint("quick-", quick-1))
}

func replaced(t *testing.T, text, old, by string) string {
	t.Helper()
	if strings.Count(text, old) != 1 {
		t.Fatalf("%q stands %d times in the statement, want once: %s", old, strings.Count(text, old), text)
	}
	return strings.Replace(text, old, by, 1)
}
