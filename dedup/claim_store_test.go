package dedup_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/pgtest"
	"github.com/claimq/claimq/internal/sqlstate"
)

func identity(queue, id, payload string) dedup.Identity {
	sum, version := dedup.Raw().Sum([]byte(payload))
	return dedup.Identity{Queue: queue, ID: id, Fingerprint: sum, FingerprintVersion: version}
}

func request(queue, id, payload string) dedup.Request {
	return dedup.Request{Identity: identity(queue, id, payload)}
}

// inTx runs f in a READ COMMITTED transaction that commits unless f fails.
func inTx(t *testing.T, db *pgtest.DB, f func(tx pgx.Tx) error) error {
	t.Helper()
	return pgx.BeginTxFunc(t.Context(), db.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, f)
}

func claim(t *testing.T, db *pgtest.DB, s *dedup.Store, requests ...dedup.Request) (kinds []dedup.Kind) {
	t.Helper()
	err := inTx(t, db, func(tx pgx.Tx) error {
		outcomes, err := s.Claim(t.Context(), tx, requests...)
		for _, o := range outcomes {
			kinds = append(kinds, o.Kind)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return kinds
}

func equal(t *testing.T, what string, got []dedup.Kind, want ...dedup.Kind) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestAnIDIsClaimedOnceAndAnotherPayloadIsAConflict(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := dedup.New(dedup.Config{Schema: db.Schema})
	equal(t, "the first copy", claim(t, db, s, request("q", "a", "x")), dedup.Claimed)
	equal(t, "a repeat", claim(t, db, s, request("q", "a", "x")), dedup.Duplicate)
	equal(t, "the id with another payload", claim(t, db, s, request("q", "a", "y")), dedup.Conflict)
	none := dedup.Request{Identity: dedup.Identity{Queue: "q", ID: "a"}}
	equal(t, "a repeat without a fingerprint", claim(t, db, s, none), dedup.Duplicate)
	equal(t, "copies in one call", claim(t, db, s,
		request("q", "b", "x"), request("q", "b", "x"), request("q", "b", "y"), request("q", "a", "x")),
		dedup.Claimed, dedup.Duplicate, dedup.Conflict, dedup.Duplicate)
}

func TestAScopeSeparatesIDs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := dedup.New(dedup.Config{Schema: db.Schema})
	empty, one, two := "", "one", "two"
	var requests []dedup.Request
	for _, queue := range []string{"q1", "q2"} {
		for _, tenant := range []*string{nil, &empty, &one, &two} {
			for _, operation := range []*string{nil, &empty, &one} {
				r := request(queue, "same", "x")
				r.Identity.Tenant, r.Identity.Operation = tenant, operation
				requests = append(requests, r)
			}
		}
	}
	for i, kind := range claim(t, db, s, requests...) {
		if kind != dedup.Claimed {
			t.Errorf("request %d is %v: two scopes share an id", i, kind)
		}
	}
	for i, kind := range claim(t, db, s, requests...) {
		if kind != dedup.Duplicate {
			t.Errorf("request %d is %v the second time", i, kind)
		}
	}
}

// Two tenants with one id each get their own result, never the other's.
func TestARepeatSeesItsOwnScopesResult(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := dedup.New(dedup.Config{Schema: db.Schema})
	one, two := "one", "two"
	mine, other := request("q", "same", "x"), request("q", "same", "x")
	mine.Identity.Tenant, other.Identity.Tenant = &one, &two
	claim(t, db, s, mine, other)
	err := inTx(t, db, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		s.QueueResults(b, []dedup.Result{
			{Claim: mine.Identity.Digest(), Value: []byte("of one"), Lifetime: time.Hour},
			{Claim: other.Identity.Digest(), Value: nil, Lifetime: time.Hour},
		})
		return tx.SendBatch(t.Context(), b).Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	err = inTx(t, db, func(tx pgx.Tx) error {
		outcomes, err := s.Claim(t.Context(), tx, mine, other)
		if err != nil {
			return err
		}
		if string(outcomes[0].Result) != "of one" || outcomes[1].Result == nil || len(outcomes[1].Result) != 0 {
			t.Errorf("results %q and %q, want %q and an empty one", outcomes[0].Result, outcomes[1].Result, "of one")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestARolledBackClaimIsGone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := dedup.New(dedup.Config{Schema: db.Schema})
	errUndo := errors.New("undo")
	err := inTx(t, db, func(tx pgx.Tx) error {
		if _, err := s.Claim(t.Context(), tx, request("q", "a", "x")); err != nil {
			return err
		}
		return errUndo
	})
	if !errors.Is(err, errUndo) {
		t.Fatal(err)
	}
	equal(t, "after the rollback", claim(t, db, s, request("q", "a", "x")), dedup.Claimed)
}

// A claim in an open transaction is waited for, and its end decides.
func TestAnOpenClaimIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, commits := range []bool{true, false} {
		t.Run(fmt.Sprintf("commits=%v", commits), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			s := dedup.New(dedup.Config{Schema: db.Schema})
			claim(t, db, s, request("q", "warm", "x"))
			first, err := db.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Claim(t.Context(), first, request("q", "a", "x")); err != nil {
				t.Fatal(err)
			}
			second := make(chan []dedup.Kind, 1)
			go func() { second <- claim(t, db, s, request("q", "a", "x")) }()
			waitForLock(t, db)
			want := dedup.Duplicate
			if commits {
				err = first.Commit(t.Context())
			} else {
				want, err = dedup.Claimed, first.Rollback(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "the one that waited", <-second, want)
		})
	}
}

// waitForLock waits until a session of the test waits for another's transaction.
func waitForLock(t *testing.T, db *pgtest.DB) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		var waiting int
		err := db.Pool.QueryRow(t.Context(), `select count(*) from pg_stat_activity where application_name = $1 and wait_event_type = 'Lock'`, db.Name).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		if waiting > 0 {
			return
		}
	}
	t.Fatal("nobody waits for a lock")
}

func TestAClaimNeedsReadCommitted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := dedup.New(dedup.Config{Schema: db.Schema})
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		err := pgx.BeginTxFunc(t.Context(), db.Pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
			_, err := s.Claim(t.Context(), tx, request("q", "a", "x"))
			return err
		})
		var isolation *dedup.IsolationError
		if !errors.As(err, &isolation) || isolation.Isolation != string(level) {
			t.Errorf("under %s: %v, want an IsolationError that names it", level, err)
		}
	}
	equal(t, "afterwards", claim(t, db, s, request("q", "a", "x")), dedup.Claimed)
}

// The SQL function and Go must compute one digest, or a person looks an id up in
// vain and an import claims what nobody asks for.
func TestSQLComputesTheSameDigest(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	sql := fmt.Sprintf(`select %s.claim_id($1, $2, $3, $4::bytea)`, db.Schema)
	text := rapid.StringOf(rapid.RuneFrom([]rune("aä\u4e16\U0001f600 \t'\"\\")))
	optional := rapid.OneOf(rapid.Just((*string)(nil)), rapid.Map(text, func(s string) *string { return &s }))
	rapid.Check(t, func(rt *rapid.T) {
		i := dedup.Identity{
			Queue: text.Draw(rt, "queue"), Tenant: optional.Draw(rt, "tenant"), Operation: optional.Draw(rt, "operation"),
			ID: string(rapid.SliceOf(rapid.Byte()).Draw(rt, "id")),
		}
		var got uuid.UUID
		if err := db.Pool.QueryRow(t.Context(), sql, i.Queue, i.Tenant, i.Operation, []byte(i.ID)).Scan(&got); err != nil {
			rt.Fatal(err)
		}
		if want := i.Digest(); got != want {
			rt.Fatalf("SQL says %s and Go %s for %+v", got, want, i)
		}
	})
}

// CASES C13: two transactions that claim the same ids in opposite order.
func TestOppositeOrdersDoNotDeadlock(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := dedup.New(dedup.Config{Schema: db.Schema})
	const rounds, width = 200, 26
	claim(t, db, s, request("q", "warm", "x"))
	var claimed [2]int
	var wg sync.WaitGroup
	for worker := range 2 {
		wg.Go(func() {
			for round := range rounds {
				requests := make([]dedup.Request, width)
				for i := range requests {
					n := i
					if worker == 1 {
						n = width - 1 - i
					}
					requests[i] = request("q", fmt.Sprintf("%d-%d", round, n), "x")
				}
				for _, kind := range claim(t, db, s, requests...) {
					if kind == dedup.Claimed {
						claimed[worker]++
					}
				}
			}
		})
	}
	wg.Wait()
	if sum := claimed[0] + claimed[1]; sum != rounds*width {
		t.Errorf("%d claims of %d ids", sum, rounds*width)
	}
}

// Many claimers of the same ids, in random batches: each id is claimed once.
func TestConcurrentClaimersShareNoID(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := dedup.New(dedup.Config{Schema: db.Schema})
	const workers, ids = 6, 300
	winners := make([]map[string]bool, workers)
	var wg sync.WaitGroup
	for w := range workers {
		winners[w] = map[string]bool{}
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for range 40 {
				requests := make([]dedup.Request, 20)
				names := make([]string, len(requests))
				for i := range requests {
					names[i] = fmt.Sprint("id", random.IntN(ids))
					requests[i] = request("q", names[i], "x")
				}
				for i, kind := range claim(t, db, s, requests...) {
					if kind == dedup.Claimed {
						winners[w][names[i]] = true
					}
				}
			}
		})
	}
	wg.Wait()
	owner := map[string]int{}
	for w, won := range winners {
		for id := range won {
			if other, taken := owner[id]; taken {
				t.Errorf("%s was claimed by workers %d and %d", id, other, w)
			}
			owner[id] = w
		}
	}
}

// A claim's wait is bounded by the transaction's lock_timeout and says so by code.
func TestALockTimeoutIsTheInfrastructures(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := dedup.New(dedup.Config{Schema: db.Schema})
	claim(t, db, s, request("q", "warm", "x"))
	holder, err := db.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Rollback(context.Background()) }()
	if _, err := s.Claim(t.Context(), holder, request("q", "a", "x")); err != nil {
		t.Fatal(err)
	}
	err = inTx(t, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "set local lock_timeout = '50ms'"); err != nil {
			return err
		}
		_, err := s.Claim(t.Context(), tx, request("q", "a", "x"))
		return err
	})
	if sqlstate.Code(err) != sqlstate.LockNotAvailable || !sqlstate.Infrastructure(err) {
		t.Errorf("%v, want SQLSTATE 55P03 and no message's fault", err)
	}
}
