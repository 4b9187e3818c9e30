package outbox

import (
	"testing"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/claimq/claimq/internal/sqlstate"
)

// setSlot replaces the clock of the rings: the current slot is what a test says.
func (s *stage) setSlot(slot int) {
	s.t.Helper()
	s.exec("create table if not exists claimq.test_slot (slot smallint)")
	s.exec("create or replace function claimq.outbox_slot(at timestamptz) returns smallint language sql stable as $$ select slot from " +
		s.sql("claimq.test_slot") + " $$")
	s.exec("delete from claimq.test_slot")
	s.exec("insert into claimq.test_slot values ($1)", slot)
}

// rotate tries to empty the oldest slot and tells whether it did.
func (s *stage) rotate() bool {
	s.t.Helper()
	return one[pgtype.Int8](s, sqlRotateOutbox).Valid
}

func (s *stage) rowsIn(slot int) int {
	s.t.Helper()
	return one[int](s, "select count(*) from claimq.outbox where slot = $1", slot)
}

func TestASlotIsEmptiedOnlyWhenAllOfItIsOut(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	r := s.relay(RelayConfig{})
	s.setSlot(0)
	s.add("t", "k", "1")
	s.setSlot(2) // 0 is the oldest now
	if s.rotate() {
		t.Fatal("a slot was emptied before any relay has run")
	}
	s.setSlot(0)
	late := s.begin()
	late.add("t", "k", "2")
	s.setSlot(2)
	s.drain(r)
	// An open transaction has a row in the slot: its lock is not to be had.
	if _, err := s.db.Pool.Exec(t.Context(), s.sql(sqlRotateOutbox)); sqlstate.Code(err) != sqlstate.LockNotAvailable {
		t.Fatalf("rotation beside an open writer gave %v, want a lock timeout", err)
	}
	late.commit()
	if s.rotate() {
		t.Fatal("a slot was emptied while a late row was not out")
	}
	s.drain(r)
	if !s.rotate() || s.rowsIn(0) != 0 {
		t.Fatal("a slot that is out was not emptied")
	}
	if s.rotate() {
		t.Fatal("an empty slot was emptied")
	}
}

func TestRotationWaitsForEverySliceAndTheRightServer(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	r := s.relay(RelayConfig{Slices: 3})
	s.setSlot(0)
	for i := range 30 {
		s.add("t", string(rune('a'+i)), "v")
	}
	s.setSlot(2)
	for i, slice := range r.slices {
		if s.rotate() {
			t.Fatalf("the slot was emptied with %d of 3 slices out", i)
		}
		if _, err := slice.runOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.exec(`alter function claimq.incarnation() rename to real_incarnation`)
	s.exec(`create function claimq.incarnation() returns text language sql volatile as $$ select '1/2' $$`)
	if s.rotate() {
		t.Fatal("the slot was emptied on the word of another server's relay")
	}
	s.exec(`drop function claimq.incarnation()`)
	s.exec(`alter function claimq.real_incarnation() rename to incarnation`)
	if !s.rotate() || s.rowsIn(0) != 0 {
		t.Fatal("a slot that is out was not emptied")
	}
}

// What an aborted transaction leaves takes space too.
func TestASlotOfAbortedRowsIsEmptied(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	s.setSlot(0)
	gone := s.begin()
	gone.add("t", "k", "never")
	gone.rollback()
	s.drain(s.relay(RelayConfig{}))
	s.setSlot(2)
	if !s.rotate() || one[int](s, "select pg_relation_size('claimq.outbox_0')") != 0 {
		t.Fatal("the rows of an aborted transaction keep their space")
	}
}

func TestTheRelaysPlaceSurvivesTheRotationOfItsTable(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	reader, r := s.reader("t"), s.relay(RelayConfig{Slices: 2})
	s.setSlot(0)
	s.add("t", "a", "1")
	s.add("t", "b", "1")
	s.drain(r)
	for _, slot := range []int{1, 2, 0, 1, 2} {
		s.setSlot(slot)
		for range 2 {
			s.exec(sqlRotateWindows)
		}
	}
	if n := one[int](s, "select count(*) from claimq.relay_windows"); n != 3 {
		t.Errorf("%d rows are left, want one for each slice and the schema's first", n)
	}
	s.add("t", "a", "2")
	s.drain(r)
	reader.untilCount(t, 3)
	if n := len(reader.all()); n != 3 {
		t.Fatalf("%d records were published, want 3: a place was forgotten", n)
	}
}

// The outbox is inserted into and truncated; nothing else ever happens to it.
func TestNoRowOfTheOutboxIsUpdatedOrDeleted(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	r := s.relay(RelayConfig{})
	for _, slot := range []int{0, 1, 2, 0} {
		s.setSlot(slot)
		for range 5 {
			s.add("t", "k", "v")
			s.add("missing", "k", "v")
			s.drain(r)
		}
		r.rotateOnce(t.Context())
	}
	const changed = `select coalesce(sum(n_tup_upd + n_tup_del), 0)::int from pg_stat_user_tables
	                  where schemaname = $1 and (relname like 'outbox\_%' and relname <> 'outbox_held' or relname like 'relay_windows%')`
	const inserted = `select coalesce(sum(n_tup_ins), 0)::int from pg_stat_user_tables where schemaname = $1 and relname like 'outbox\__'`
	eventually(t, "the server has counted the inserts", func() bool { return one[int](s, inserted, s.db.Schema) >= 40 })
	if n := one[int](s, changed, s.db.Schema); n != 0 {
		t.Fatalf("%d rows were updated or deleted", n)
	}
}

// Relays with another number of slices wait for the ones that share their keys,
// and go on where those were.
func TestAnotherNumberOfSlicesGoesOnWhereTheOldOnesWere(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	reader := s.reader("t")
	n := 0
	for _, slices := range []int{1, 4, 3, 1, 2} {
		old := s.relay(RelayConfig{Slices: slices})
		for i := range 20 {
			s.add("t", string(rune('a'+i)), "v")
			n++
		}
		if did := s.round(old); did.published != 20 {
			t.Fatalf("%d slices published %d records, want the 20 new ones", slices, did.published)
		}
		s.drain(old)
		other := s.relay(RelayConfig{Slices: slices + 1})
		if did := s.round(other); did.standby != slices+1 {
			t.Fatalf("%d slices of another layout do not wait for %d: %+v", slices+1, slices, did)
		}
		for _, slice := range old.slices {
			slice.end()
		}
	}
	reader.untilCount(t, n)
	if got := len(reader.all()); got != n {
		t.Fatalf("%d records were published, want %d", got, n)
	}
}
