package dedup_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/pgtest"
)

// A claimer of the middle phase can be overtaken by one of the phase after it, which
// looked at the old segment too early and has the id in the new one. The id is then
// the other's, although it was free in the old segment.
func TestAClaimerOfTheMiddlePhaseYieldsToOneThatIsAhead(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := dedup.New(dedup.Config{Schema: db.Schema})
	claim(t, db, s, request("q", "known", "x"))
	setPhase(t, db, 1, "{0,1}", "{}")
	ahead := identity("q", "a", "x")
	_, err := db.Pool.Exec(t.Context(), fmt.Sprintf(`
		insert into %s.claims_1 (record_at, queue, segment, fingerprint_version, id, fingerprint, topic, partition, "offset")
		values (now(), 1, 1, $2, $1, $3, 7, 8, 9)`, db.Schema), ahead.Digest(), ahead.FingerprintVersion, ahead.Fingerprint)
	if err != nil {
		t.Fatal(err)
	}
	err = inTx(t, db, func(tx pgx.Tx) error {
		outcomes, err := s.Claim(t.Context(), tx, request("q", "a", "x"), request("q", "b", "x"), request("q", "known", "x"), request("q", "a", "y"))
		if err != nil {
			return err
		}
		for i, want := range []dedup.Kind{dedup.Duplicate, dedup.Claimed, dedup.Duplicate, dedup.Conflict} {
			if outcomes[i].Kind != want {
				t.Errorf("outcome %d is %s, want %s", i, outcomes[i].Kind, want)
			}
		}
		if first := outcomes[0].First; first == nil || first.Offset != 9 {
			t.Errorf("first seen at %v, want the other claimer's offset 9", first)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if old, next := inSlot(t, db, 0), inSlot(t, db, 1); old != 2 || next != 3 {
		t.Errorf("%d claims in the old segment and %d in the next, want 2 and 3: the row that lost must be gone", old, next)
	}
}

// A lookupTx calls before ahead of each batch that a claim sends.
type lookupTx struct {
	pgx.Tx
	before func(batch int)
	sent   int
}

func (tx *lookupTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	tx.sent++
	tx.before(tx.sent)
	return tx.Tx.SendBatch(ctx, b)
}

// An operator forgets an id between the INSERT that met it and the lookup. The call
// asks again, and must not take its own rows of the first time for repeats.
func TestWhatACallHasClaimedStaysClaimedWhenItAsksAgain(t *testing.T) {
	t.Parallel()
	for _, phase := range []string{"{0}", "{0,1}"} {
		t.Run(phase, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			s := dedup.New(dedup.Config{Schema: db.Schema})
			setPhase(t, db, 1, phase, "{}")
			claim(t, db, s, request("q", "known", "x"))
			err := inTx(t, db, func(tx pgx.Tx) error {
				watched := &lookupTx{Tx: tx, before: func(batch int) {
					if batch == 2 {
						_, err := db.Pool.Exec(t.Context(), fmt.Sprintf("delete from %s.claims where id = $1", db.Schema), identity("q", "known", "x").Digest())
						if err != nil {
							t.Error(err)
						}
					}
				}}
				outcomes, err := s.Claim(t.Context(), watched, request("q", "fresh", "x"), request("q", "known", "x"))
				if err != nil {
					return err
				}
				for i := range outcomes {
					if outcomes[i].Kind != dedup.Claimed {
						t.Errorf("outcome %d is %s, want claimed", i, outcomes[i].Kind)
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
