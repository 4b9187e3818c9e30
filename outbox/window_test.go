package outbox

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// session is a transaction of its own that a test keeps open.
type session struct {
	s  *stage
	tx pgx.Tx
}

func (s *stage) begin() *session {
	s.t.Helper()
	conn := s.db.Conn()
	tx, err := conn.Begin(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return &session{s, tx}
}

func (x *session) add(topic, key, value string) {
	x.s.t.Helper()
	if err := x.s.outbox.Add(x.s.t.Context(), x.tx, keyed(topic, key, value)); err != nil {
		x.s.t.Fatal(err)
	}
}

func (x *session) exec(text string) {
	x.s.t.Helper()
	if _, err := x.tx.Exec(x.s.t.Context(), x.s.sql(text)); err != nil {
		x.s.t.Fatal(err)
	}
}

func (x *session) commit() {
	x.s.t.Helper()
	if err := x.tx.Commit(x.s.t.Context()); err != nil {
		x.s.t.Fatal(err)
	}
}

func (x *session) rollback() {
	x.s.t.Helper()
	if err := x.tx.Rollback(x.s.t.Context()); err != nil {
		x.s.t.Fatal(err)
	}
}

// holdXmin keeps a snapshot open for the rest of the test, as a report or a dump
// does.
func (s *stage) holdXmin() {
	s.t.Helper()
	x := s.begin()
	x.exec("set transaction isolation level repeatable read")
	x.exec("select count(*) from claimq.outbox")
}

// C26: an earlier number that commits late is neither skipped nor waited for.
func TestALateCommitIsNeitherSkippedNorWaitedFor(t *testing.T) {
	t.Parallel()
	for name, holdXmin := range map[string]bool{"": false, "with xmin held": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, 1, "t")
			if holdXmin {
				s.holdXmin()
			}
			reader, r := s.reader("t"), s.relay(RelayConfig{})
			late := s.begin()
			late.add("t", "late", "4")
			s.add("t", "soon", "5")
			if did := s.round(r); did.published != 1 {
				t.Fatalf("with an earlier transaction open the relay published %d records, want the 1 that is committed", did.published)
			}
			late.commit()
			if did := s.round(r); did.published != 1 {
				t.Fatalf("the round after the late commit published %d records, want 1", did.published)
			}
			reader.untilCount(t, 2)
			if diff := cmp.Diff([]string{"5", "4"}, reader.values()); diff != "" {
				t.Fatalf("published (-want +got):\n%s", diff)
			}
			s.drain(r)
		})
	}
}

// C26, with windows in between that must not forget the open transaction, and a
// relay that is replaced meanwhile.
func TestAnOpenTransactionIsRememberedOverManyWindowsAndRelays(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	reader, r := s.reader("t"), s.relay(RelayConfig{})
	late := s.begin()
	late.add("t", "late", "late 1")
	var want []string
	for i := range 20 {
		value := fmt.Sprint("soon ", i)
		s.add("t", "soon", value)
		want = append(want, value)
		if did := s.round(r); did.published != 1 {
			t.Fatalf("window %d published %d records, want 1", i, did.published)
		}
		if i == 10 {
			r.slices[0].end()
			r = s.relay(RelayConfig{})
			late.add("t", "late", "late 2")
		}
	}
	late.commit()
	s.drain(r)
	want = append(want, "late 1", "late 2")
	reader.untilCount(t, len(want))
	if diff := cmp.Diff(want, reader.values()); diff != "" {
		t.Fatalf("published (-want +got):\n%s", diff)
	}
}

// C26: a gap in the numbers that nothing will ever fill stalls nothing.
func TestARolledBackTransactionLeavesNoStallAndNoRecord(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	reader, r := s.reader("t"), s.relay(RelayConfig{})
	gone := s.begin()
	gone.add("t", "k", "never")
	s.add("t", "k", "1")
	s.drain(r)
	gone.rollback()
	s.add("t", "k", "2")
	s.drain(r)
	reader.untilCount(t, 2)
	if diff := cmp.Diff([]string{"1", "2"}, reader.values()); diff != "" {
		t.Fatalf("published (-want +got):\n%s", diff)
	}
}

// A transaction that has its id early and adds late comes after one that was
// serialised before it: paging by (xid, seq) would turn the two round.
func TestSerialisedTransactionsKeepTheirOrderWhateverTheirXID(t *testing.T) {
	t.Parallel()
	for _, page := range []int{1, pageRows} {
		t.Run(fmt.Sprint("page of ", page), func(t *testing.T) {
			t.Parallel()
			s := newStage(t, 1, "t")
			reader, r := s.reader("t"), s.relay(RelayConfig{})
			r.maxPage = page
			s.exec("create table claimq.aggregates (id int primary key)")
			s.exec("insert into claimq.aggregates values (1)")
			s.drain(r)
			elder := s.begin()
			elder.exec("create temporary table unrelated (i int)") // takes its xid
			younger := s.begin()
			younger.exec("select 1 from claimq.aggregates where id = 1 for update")
			younger.add("t", "aggregate 1", "first")
			younger.commit()
			elder.exec("select 1 from claimq.aggregates where id = 1 for update")
			elder.add("t", "aggregate 1", "second")
			elder.commit()
			s.drain(r)
			reader.untilCount(t, 2)
			if diff := cmp.Diff([]string{"first", "second"}, reader.values()); diff != "" {
				t.Fatalf("published (-want +got):\n%s", diff)
			}
		})
	}
}

// A row that was added in a savepoint belongs to the top-level transaction, whose
// id is the one that snapshots know it by.
func TestEffectsOfSavepointsFollowTheWholeTransaction(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	reader, r := s.reader("t"), s.relay(RelayConfig{})
	x := s.begin()
	x.add("t", "k", "1")
	x.exec("savepoint a")
	x.add("t", "k", "2")
	x.exec("release a")
	x.exec("savepoint b")
	x.add("t", "k", "never")
	x.exec("rollback to b")
	s.add("t", "other", "0")
	s.drain(r)
	x.add("t", "k", "3")
	x.commit()
	s.drain(r)
	reader.untilCount(t, 4)
	if diff := cmp.Diff([]string{"0", "1", "2", "3"}, reader.values()); diff != "" {
		t.Fatalf("published (-want +got):\n%s", diff)
	}
}

// A window larger than its list is listed again behind what is out, and a crash in
// the middle of it goes on from the last page that was written.
func TestALargeWindowIsPublishedListByListAndPageByPage(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	reader := s.reader("t")
	s.exec(`insert into claimq.outbox (bucket, id, topic, key, value)
	        select claimq.outbox_bucket('k', gen_random_uuid()), gen_random_uuid(), 't', 'k', convert_to(i::text, 'UTF8')
	          from generate_series(1, 100) i`)
	r := s.relay(RelayConfig{})
	r.maxPage, r.maxList = 7, 30
	rounds := 0
	for did := s.round(r); did.published > 0; did = s.round(r) {
		rounds++
	}
	if rounds != 4 {
		t.Errorf("100 rows in lists of 30 took %d rounds, want 4", rounds)
	}
	reader.untilCount(t, 100)
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprint(i+1))
	}
	if diff := cmp.Diff(want, reader.values()); diff != "" {
		t.Fatalf("published (-want +got):\n%s", diff)
	}
}

// An idle relay writes nothing but renewals, so that an idle outbox does not grow.
func TestAnIdleRelayWritesNoWindows(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	r := s.relay(RelayConfig{})
	s.drain(r)
	before := one[int](s, "select count(*) from claimq.relay_windows")
	for range 50 {
		s.round(r)
	}
	if after := one[int](s, "select count(*) from claimq.relay_windows"); after != before {
		t.Fatalf("50 idle rounds wrote %d rows", after-before)
	}
}

// C29: nobody is notified in anybody's transaction, and nothing listens.
func TestNothingNotifies(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	for _, part := range []string{
		"select count(*) from pg_trigger g join pg_class c on c.oid = g.tgrelid join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1 and not g.tgisinternal and (c.relname like 'outbox%' or c.relname like 'relay%')",
		"select count(*) from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname = $1 and coalesce(p.prosrc, '') ~* 'notify'",
	} {
		if n := one[int](s, part, s.db.Schema); n != 0 {
			t.Errorf("%d found: %s", n, part)
		}
	}
	for _, text := range []string{
		sqlInsert, sqlInsertBare, sqlTake, sqlOpen, sqlList, sqlFetch, sqlFetchHeld, sqlAdvance, sqlSetAside,
		sqlHeads, sqlTopicHeads, sqlFollowers, sqlSent, sqlRefused, sqlRelease, sqlRotateOutbox, sqlRotateWindows, sqlReleaseDue, sqlInsertDue,
	} {
		if strings.Contains(strings.ToLower(text), "notify") || strings.Contains(strings.ToLower(text), "listen") {
			t.Errorf("a statement notifies or listens: %s", text)
		}
	}
	reader, r := s.reader("t"), s.relay(RelayConfig{})
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.add("t", "k", "found by polling, without Wake")
	reader.untilCount(t, 1)
}
