package dedup_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/pgtest"
	"github.com/claimq/claimq/internal/sqlstate"
)

// setPhase puts another phase of the segments into force, as the roll does.
func setPhase(t *testing.T, db *pgtest.DB, number int, inserts, lookups string) {
	t.Helper()
	_, err := db.Pool.Exec(t.Context(), fmt.Sprintf(`insert into %s.claim_phases (phase, inserts, lookups) values ($1, $2::text::int2[], $3::text::int2[])`, db.Schema), number, inserts, lookups)
	if err != nil {
		t.Fatal(err)
	}
}

func inSlot(t *testing.T, db *pgtest.DB, slot int) (n int) {
	t.Helper()
	if err := db.Pool.QueryRow(t.Context(), fmt.Sprintf(`select count(*) from %s.claims_%d`, db.Schema, slot)).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Through all phases of two rolls an id that was claimed in one stays claimed.
func TestAnIDIsRememberedAcrossPhases(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := dedup.New(dedup.Config{Schema: db.Schema})
	phases := []struct{ inserts, lookups string }{
		{"{0}", "{}"}, {"{0,1}", "{}"}, {"{1}", "{0}"}, {"{1,2}", "{0}"}, {"{2}", "{0,1}"}, {"{2,3}", "{1}"}, {"{3}", "{1,2}"},
	}
	for number, p := range phases {
		if number > 0 {
			setPhase(t, db, number, p.inserts, p.lookups)
		}
		fresh := fmt.Sprintf("born-in-%d", number)
		equal(t, "a new id in phase "+p.inserts, claim(t, db, s, request("q", fresh, "x")), dedup.Claimed)
		// Segment 0, and with it what was born before it was left, is forgotten last.
		oldest := 0
		if number >= 5 {
			oldest = 1
		}
		for born := oldest; born <= number; born++ {
			id := fmt.Sprintf("born-in-%d", born)
			equal(t, fmt.Sprintf("%s in phase %d", id, number), claim(t, db, s, request("q", id, "x")), dedup.Duplicate)
			equal(t, fmt.Sprintf("%s with another payload in phase %d", id, number), claim(t, db, s, request("q", id, "y")), dedup.Conflict)
		}
	}
}

// In the phase with two segments a claim stands in both, with the first copy's row:
// whoever still uses the phase before finds it in one, whoever uses the next in the
// other.
func TestARollsMiddlePhaseWritesBothSegments(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := dedup.New(dedup.Config{Schema: db.Schema})
	claim(t, db, s, request("q", "before", "x"))
	setPhase(t, db, 1, "{0,1}", "{}")
	claim(t, db, s, request("q", "during", "x"), request("q", "before", "x"))
	if a, b := inSlot(t, db, 0), inSlot(t, db, 1); a != 2 || b != 2 {
		t.Errorf("%d and %d claims in the two segments, want 2 and 2", a, b)
	}
	setPhase(t, db, 2, "{1}", "{0}")
	equal(t, "after the roll", claim(t, db, s, request("q", "before", "x"), request("q", "during", "y")), dedup.Duplicate, dedup.Conflict)
}

// A flight that was planned for a phase which is over must not run.
func TestAFlightOfAnOldPhaseIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := dedup.New(dedup.Config{Schema: db.Schema})
	claim(t, db, s, request("q", "warm", "x")) // the store knows phase 0
	setPhase(t, db, 1, "{1}", "{0}")
	send := func() error {
		return inTx(t, db, func(tx pgx.Tx) error {
			b := &pgx.Batch{}
			r := request("q", "a", "x")
			r.Queue = 1
			if _, err := s.Queue(t.Context(), tx, b, []dedup.Request{r}); err != nil {
				return err
			}
			return tx.SendBatch(t.Context(), b).Close()
		})
	}
	if err := send(); sqlstate.Code(err) != sqlstate.PhaseChanged {
		t.Fatalf("%v, want SQLSTATE %s", err, sqlstate.PhaseChanged)
	}
	if err := s.Refresh(t.Context(), db.Pool); err != nil {
		t.Fatal(err)
	}
	if err := send(); err != nil {
		t.Fatalf("after Refresh: %v", err)
	}
	if n := inSlot(t, db, 1); n != 1 {
		t.Errorf("%d claims in segment 1, want 1", n)
	}
}

// A failed handler's claim is taken back in the transaction that made it.
func TestUnclaimTakesBackBothSegments(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := dedup.New(dedup.Config{Schema: db.Schema})
	setPhase(t, db, 1, "{0,1}", "{}")
	err := inTx(t, db, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		r := request("q", "a", "x")
		r.Queue = 1
		f, err := s.Queue(t.Context(), tx, b, []dedup.Request{r})
		if err != nil {
			return err
		}
		if err := tx.SendBatch(t.Context(), b).Close(); err != nil {
			return err
		}
		back := &pgx.Batch{}
		f.Unclaim(back, nil) // nothing to take back adds nothing
		if back.Len() != 0 {
			t.Error("Unclaim of nothing adds a statement")
		}
		f.Unclaim(back, []uuid.UUID{f.Digest(0)})
		return tx.SendBatch(t.Context(), back).Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := inSlot(t, db, 0), inSlot(t, db, 1); a+b != 0 {
		t.Errorf("%d and %d claims are left", a, b)
	}
	equal(t, "the retry", claim(t, db, s, request("q", "a", "x")), dedup.Claimed)
}

// A plan that was made while a segment was empty must not read all of it when it is
// full: nothing tells the session in between.
func TestPlansHoldOnASegmentThatFillsFromEmpty(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := dedup.New(dedup.Config{Schema: db.Schema})
	setPhase(t, db, 1, "{2}", "{0,1}")
	conn := db.Conn()
	run := func(from int) {
		t.Helper()
		err := pgx.BeginTxFunc(t.Context(), conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			_, err := s.Claim(t.Context(), tx, request("q", fmt.Sprint("n", from), "x"), request("q", "n0", "x"))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 8 { // past the five custom plans, so that a generic one is kept
		run(i)
	}
	_, err := conn.Exec(t.Context(), fmt.Sprintf(`
		insert into %[1]s.claims_0 ("offset", record_at, queue, segment, fingerprint_version, id, fingerprint)
		select null, now(), 1, 0, 0, gen_random_uuid(), gen_random_uuid() from generate_series(1, 50000)`, db.Schema))
	if err != nil {
		t.Fatal(err)
	}
	before := scans(t, conn, db)
	for i := 100; i < 110; i++ {
		run(i)
	}
	if after := scans(t, conn, db); after != before {
		t.Errorf("%d sequential scans of claim segments since they filled, want none", after-before)
	}
}

// scans counts the sequential scans of claim segments, conn's included: a session
// tells its own only now and then, unless it is made to.
func scans(t *testing.T, conn *pgx.Conn, db *pgtest.DB) (n int) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), `select pg_stat_force_next_flush()`); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `select 1`); err != nil {
		t.Fatal(err)
	}
	err := db.Pool.QueryRow(t.Context(), `select coalesce(sum(seq_scan), 0) from pg_stat_user_tables where schemaname = $1 and relname like 'claims\_%'`, db.Schema).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The session's own planner settings are back when a claim has been made.
func TestAClaimLeavesThePlannersSettingsAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := dedup.New(dedup.Config{Schema: db.Schema})
	err := inTx(t, db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "set local enable_mergejoin = off"); err != nil {
			return err
		}
		if _, err := s.Claim(t.Context(), tx, request("q", "a", "x"), request("q", "a", "x")); err != nil {
			return err
		}
		var settings []string
		for _, name := range []string{"enable_seqscan", "enable_hashjoin", "enable_mergejoin"} {
			var value string
			if err := tx.QueryRow(t.Context(), "select current_setting($1)", name).Scan(&value); err != nil {
				return err
			}
			settings = append(settings, value)
		}
		if got := strings.Join(settings, ","); got != "on,on,off" {
			t.Errorf("settings after the claim are %s, want on,on,off as before", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
