package dedup

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/pgschema"
	"github.com/claimq/claimq/internal/pgtest"
)

// A rollStage is a schema with a store and a roller whose time the test moves.
type rollStage struct {
	*pgtest.DB
	t      testing.TB
	store  *Store
	roller *Roller
}

func newRollStage(t testing.TB, config RollerConfig) *rollStage {
	t.Helper()
	db := pgtest.New(t)
	config.Schema = db.Schema
	roller, err := NewRoller(db.Pool, config)
	if err != nil {
		t.Fatal(err)
	}
	s := &rollStage{DB: db, t: t, store: New(Config{Schema: db.Schema}), roller: roller}
	s.queue("q", 8*24*time.Hour)
	return s
}

func (s *rollStage) sql(text string) string { return pgschema.Schema(s.Schema).SQL(text) }

func (s *rollStage) exec(text string, args ...any) {
	s.t.Helper()
	if _, err := s.Pool.Exec(s.t.Context(), s.sql(text), args...); err != nil {
		s.t.Fatalf("%s: %v", text, err)
	}
}

func oneOf[T any](s *rollStage, text string, args ...any) (value T) {
	s.t.Helper()
	if err := s.Pool.QueryRow(s.t.Context(), s.sql(text), args...).Scan(&value); err != nil {
		s.t.Fatalf("%s: %v", text, err)
	}
	return value
}

// queue registers a queue or changes how long it remembers.
func (s *rollStage) queue(name string, retention time.Duration) {
	s.t.Helper()
	s.exec(`insert into claimq.queues (name, group_name, rule, retention) values ($1, $1, 'rule', $2)
	        on conflict (name) do update set retention = excluded.retention`, name, retention)
}

// pass lets time pass: everything that is stored gets older.
func (s *rollStage) pass(d time.Duration) {
	s.t.Helper()
	s.exec(`update claimq.claims set record_at = record_at - $1::interval, claimed_at = claimed_at - $1::interval`, d)
	s.exec(`update claimq.claim_segments set opened = opened - $1::interval, current_since = current_since - $1::interval, closed = closed - $1::interval`, d)
	s.exec(`update claimq.claim_segment_clocks set newest_record = newest_record - $1::interval, newest_claim = newest_claim - $1::interval`, d)
	s.exec(`update claimq.results set created_at = created_at - $1::interval, expires_at = expires_at - $1::interval`, d)
	s.exec(`update claimq.result_slots set opened = opened - $1::interval, closed = closed - $1::interval, newest_expiry = newest_expiry - $1::interval`, d)
	s.exec(`update claimq.queues set created_at = created_at - $1::interval`, d)
}

func rollRequest(queue, id string) Request {
	return Request{Identity: Identity{Queue: queue, ID: id}}
}

func (s *rollStage) claimed(requests ...Request) (kinds []Kind) {
	s.t.Helper()
	err := pgx.BeginTxFunc(s.t.Context(), s.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		outcomes, err := s.store.Claim(s.t.Context(), tx, requests...)
		for _, o := range outcomes {
			kinds = append(kinds, o.Kind)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return kinds
}

func (s *rollStage) want(what string, want Kind, queue string, ids ...string) {
	s.t.Helper()
	for _, id := range ids {
		if got := s.claimed(rollRequest(queue, id)); got[0] != want {
			s.t.Errorf("%s: %s is %s, want %s", what, id, got[0], want)
		}
	}
}

// run runs the roller once and compares what it did, counts only.
func (s *rollStage) run(want RollResult) RollResult {
	s.t.Helper()
	got, err := s.roller.runOnce(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	phase := got.Phase
	got.Phase = 0
	if diff := cmp.Diff(want, got); diff != "" {
		s.t.Errorf("the run (-want +got):\n%s", diff)
	}
	got.Phase = phase
	return got
}

func (s *rollStage) inForce() (inserts, lookups []int16) {
	s.t.Helper()
	err := s.Pool.QueryRow(s.t.Context(), s.sql(`select inserts, lookups from claimq.claim_phases order by phase desc limit 1`)).Scan(&inserts, &lookups)
	if err != nil {
		s.t.Fatal(err)
	}
	return inserts, lookups
}

const day = 24 * time.Hour
