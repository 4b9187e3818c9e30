package dedup

import (
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/sqlstate"
)

// The same proof with the clock in the test's hand: a claimer is stopped at one point
// while the ring moves on as far as it will, another claims the same id there, and
// then the first goes on. The right roll must stand every stop in every phase; each
// wrong one must fall at one of them, or the proof would prove nothing.

// sqlGate waits for the test to let a stopped claimer go on.
const sqlGate = "pg_advisory_xact_lock_shared(20260101, hashtext(current_setting('application_name')))"

// stops are the points at which a claimer is stopped, as a change to its statements.
var stops = map[string]func(t *testing.T, s *Store){
	"before it has its phase's lock": func(t *testing.T, s *Store) {
		t.Helper()
		s.sql.lockPhase = replaced(t, s.sql.lockPhase, "select ", "select "+sqlGate+", ")
	},
	"between its check and its insert": func(_ *testing.T, s *Store) {
		s.sql.assertPhase += ", " + sqlGate
	},
	"before its commit": nil,
}

// A wrongRoll is a roll with one of its parts left out.
type wrongRoll struct {
	stop   string // where a claimer must be stopped for it to show
	middle bool   // the claimer is of the middle phase
	roller func(t *testing.T, r *Roller)
	store  func(t *testing.T, s *Store)
}

var wrongRolls = map[string]wrongRoll{
	"without the drain": {stop: "before its commit", roller: func(t *testing.T, r *Roller) {
		t.Helper()
		r.sql.state = replaced(t, r.sql.state, "as held", "and false as held")
	}},
	"without the second phase": {stop: "before its commit", roller: func(t *testing.T, r *Roller) {
		t.Helper()
		r.sql.phase = replaced(t, r.sql.phase, "values ($1, $2, $3, $4)", `
			select $1::int8, ($2::int2[])[cardinality($2::int2[]):],
			       case when cardinality($2::int2[]) = 2 then $3::int2[] || ($2::int2[])[1] else $3::int2[] end, $4::int2`)
	}},
	// The check's snapshot is older than the lock, however long that was waited for.
	"with lock and read in one statement": {stop: "before it has its phase's lock", store: func(t *testing.T, s *Store) {
		t.Helper()
		lock := strings.TrimSpace(replaced(t, s.sql.lockPhase, "$1::int4", "($1::int8 & 2147483647)::int4"))
		_, phases, _ := strings.Cut(s.sql.readPhase, "from ")
		s.sql.assertPhase = lock + ", 1 / case when $1::int8 = (select phase from " + phases + ") then 1 else 0 end"
		s.sql.lockPhase = "select $1::int4"
	}},
	"with one segment deciding in the middle phase": {stop: "between its check and its insert", middle: true, store: func(t *testing.T, s *Store) {
		t.Helper()
		for a := range ringSize {
			for b := range ringSize {
				s.sql.copyNext[a][b] = replaced(t, s.sql.copyNext[a][b], "do nothing", "do update set segment = excluded.segment")
			}
		}
	}},
}

func TestARollStandsAClaimerThatIsStoppedAnywhere(t *testing.T) {
	t.Parallel()
	for stop := range stops {
		for name, middle := range map[string]bool{"of the phase before": false, "of the middle phase": true} {
			t.Run(name+", "+stop, func(t *testing.T) {
				t.Parallel()
				if verdict := newStoppedStage(t, wrongRoll{stop: stop, middle: middle}).play(); verdict != porcupine.Ok {
					t.Errorf("%s: the id was claimed twice", verdict)
				}
			})
		}
	}
}

func TestTheProofFindsEachWrongRoll(t *testing.T) {
	t.Parallel()
	for name, wrong := range wrongRolls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if verdict := newStoppedStage(t, wrong).play(); verdict != porcupine.Illegal {
				t.Errorf("%s: a roll that is wrong was not found", verdict)
			}
		})
	}
}

// A stoppedStage has a claimer that will be stopped and one that will not.
type stoppedStage struct {
	*rollStage
	t       *testing.T
	stop    string
	stopped *Store
	gate    *pgx.Conn
}

func newStoppedStage(t *testing.T, wrong wrongRoll) *stoppedStage {
	t.Helper()
	s := &stoppedStage{rollStage: newRollStage(t, RollerConfig{}), t: t, stop: wrong.stop}
	s.roller.patience = 100 * time.Millisecond
	s.claimed(rollRequest("q", "before"))
	s.pass(5 * day)
	if wrong.middle {
		holder, err := s.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.store.Claim(t.Context(), holder, rollRequest("q", "holder")); err != nil {
			t.Fatal(err)
		}
		s.run(RollResult{Waiting: WaitingForClaimers})
		if err := holder.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.stopped = New(Config{Schema: s.Schema})
	for _, store := range []*Store{s.store, s.stopped} {
		if wrong.store != nil && store == s.store {
			wrong.store(t, store)
		}
		if err := store.Refresh(t.Context(), s.Pool); err != nil {
			t.Fatal(err)
		}
	}
	if change := stops[wrong.stop]; change != nil {
		change(t, s.stopped)
	}
	if wrong.store != nil {
		wrong.store(t, s.stopped)
	}
	if wrong.roller != nil {
		wrong.roller(t, s.roller)
	}
	s.gate = s.Conn()
	if _, err := s.gate.Exec(t.Context(), "select pg_advisory_lock(20260101, hashtext(current_setting('application_name')))"); err != nil {
		t.Fatal(err)
	}
	return s
}

// play runs the two claimers and the roller and returns what porcupine says.
func (s *stoppedStage) play() porcupine.CheckResult {
	s.t.Helper()
	var history []porcupine.Operation
	stopped := make(chan []porcupine.Operation, 1)
	conn := s.Conn()
	go func() { stopped <- s.claim(conn, 0, s.stopped, s.stop == "before its commit") }()
	s.untilStopped()
	s.roll()
	quick := s.Conn()
	if _, err := quick.Exec(s.t.Context(), "set lock_timeout = '100ms'"); err != nil {
		s.t.Fatal(err)
	}
	history = append(history, s.claim(quick, 1, s.store, false)...)
	s.roll()
	if _, err := s.gate.Exec(s.t.Context(), "select pg_advisory_unlock_all()"); err != nil {
		s.t.Fatal(err)
	}
	answers := <-stopped
	if len(answers) != 1 {
		s.t.Fatalf("the claimer that was stopped gave %d answers, want 1", len(answers))
	}
	history = append(history, answers...)
	if result := s.roll(); result.Waiting != NotWaiting {
		s.t.Fatalf("with no claimer left the roller waits for %q", result.Waiting)
	}
	history = append(history, s.claim(quick, 1, s.store, false)...)
	if inserts, _ := s.inForce(); len(inserts) != 1 || inserts[0] == 0 {
		s.t.Fatalf("inserts %v: the ring has not moved on", inserts)
	}
	return porcupine.CheckOperationsTimeout(proofModel(8*day), history, 30*time.Second)
}

func (s *stoppedStage) roll() RollResult {
	s.t.Helper()
	result, err := s.roller.runOnce(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return result
}

// claim claims the one id, from the beginning again when the segments have rolled.
// It returns no answer when it has waited too long for another.
func (s *stoppedStage) claim(conn *pgx.Conn, client int, store *Store, stop bool) []porcupine.Operation {
	ctx := s.t.Context()
	requests := []Request{rollRequest("q", "contended")}
	requests[0].Queue = 1
	began := time.Now()
	for {
		var outcomes []Outcome
		var now time.Time
		err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
			if err := tx.QueryRow(ctx, "select now()").Scan(&now); err != nil {
				return err
			}
			if outcomes, err = claimFlown(ctx, store, tx, requests); err != nil || !stop {
				return err
			}
			_, err = tx.Exec(ctx, "select "+sqlGate)
			return err
		})
		switch sqlstate.Code(err) {
		case sqlstate.PhaseChanged, "22012": // as the check in one statement with its lock says it
			if err := store.Refresh(ctx, s.Pool); err != nil {
				s.t.Error(err)
				return nil
			}
			continue
		case sqlstate.LockNotAvailable:
			return nil
		}
		if err != nil {
			s.t.Error(err)
			return nil
		}
		return proofAnswers(client, requests, outcomes, now, began, time.Now())
	}
}

// untilStopped waits until a claimer stands at the gate.
func (s *stoppedStage) untilStopped() {
	s.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; {
		waits := oneOf[bool](s.rollStage, `select exists (select from pg_locks where locktype = 'advisory' and not granted
			and classid = 20260101 and objid = (hashtext($1)::bigint & 4294967295)::oid)`, s.Name)
		if waits {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatal("no claimer has come to the gate")
		}
		<-tick.C
	}
}
