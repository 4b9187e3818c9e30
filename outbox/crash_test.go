package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/claimq/claimq/internal/sqlstate"
)

var errCrash = errors.New("the test ends the relay here")

// crashed does rounds until the relay dies at the given step, and leaves it as a
// killed process would: its lease is not given back.
func (s *stage) crashed(r *Relay, at step, nth int) {
	s.t.Helper()
	seen := 0
	r.step = func(now step) error {
		if now == at {
			if seen++; seen == nth {
				return errCrash
			}
		}
		return nil
	}
	for range 100 {
		if _, err := r.runOnce(s.t.Context()); err != nil {
			if !errors.Is(err, errCrash) {
				s.t.Fatal(err)
			}
			return
		}
	}
	s.t.Fatalf("the relay never came to %s %d", at, nth)
}

// endLeases lets the leases of all relays end, as waiting for them would.
func (s *stage) endLeases() {
	s.t.Helper()
	s.exec("update claimq.relay_windows set leased_until = clock_timestamp()")
}

func TestAnotherRelayTakesOverWhereverTheFirstWasKilled(t *testing.T) {
	t.Parallel()
	for _, at := range []step{stepListed, stepRead, stepPublished, stepAdvanced} {
		for _, nth := range []int{1, 2} {
			t.Run(fmt.Sprint(at, " ", nth), func(t *testing.T) {
				t.Parallel()
				s := newStage(t, 2, "t")
				reader := s.reader("t")
				var want []string
				for i := range 10 {
					value := fmt.Sprint(i)
					s.add("t", "k", value)
					want = append(want, value)
				}
				first, second := s.relay(RelayConfig{}), s.relay(RelayConfig{})
				first.maxPage, second.maxPage = 3, 3
				first.commitEvery = 0
				s.crashed(first, at, nth)
				if did := s.round(second); did.standby != 1 {
					t.Fatalf("the second relay did not wait for the lease: %+v", did)
				}
				s.endLeases()
				for i := range 5 {
					value := fmt.Sprint("later ", i)
					s.add("t", "k", value)
					want = append(want, value)
				}
				s.drain(second)
				reader.until(t, "all first copies", func() bool { return len(reader.firsts()) >= len(want) })
				if diff := cmp.Diff(want, reader.firsts()); diff != "" {
					t.Fatalf("first copies (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// A relay that was frozen over its lease and wakes up can send copies, but it
// cannot move the place: what the new one has not sent would be lost.
func TestAFrozenRelayThatWakesCannotMoveThePlace(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	reader := s.reader("t")
	frozen, other := s.relay(RelayConfig{}), s.relay(RelayConfig{})
	s.add("t", "k", "1")
	frozen.step = func(now step) error {
		if now != stepPublished {
			return nil
		}
		s.endLeases()
		s.drain(other)
		s.add("t", "k", "2")
		return nil
	}
	_, err := frozen.runOnce(t.Context())
	if !errors.Is(err, errLeaseLost) || sqlstate.Code(err) != sqlstate.LeaseLost {
		t.Fatalf("the frozen relay's round gave %v, want a lost lease", err)
	}
	frozen.step = nil
	if did := s.round(frozen); did.standby != 1 {
		t.Fatalf("the frozen relay goes on without a lease: %+v", did)
	}
	s.drain(other)
	reader.until(t, "both records", func() bool { return len(reader.firsts()) >= 2 })
	if diff := cmp.Diff([]string{"1", "2"}, reader.firsts()); diff != "" {
		t.Fatalf("first copies (-want +got):\n%s", diff)
	}
}

// Another incarnation of the server: what is known of it is what its tables hold,
// so everything in them is published again, under the same ids.
func TestAnotherIncarnationStartsFromTheOldestRow(t *testing.T) {
	t.Parallel()
	for name, function := range map[string]string{
		"a promoted standby": `create or replace function claimq.incarnation() returns text language sql volatile as
			$$ select (select system_identifier from pg_control_system())::text || '/FFFFFFFF' $$`,
		"a restored dump": `create or replace function claimq.incarnation() returns text language sql volatile as
			$$ select '1/00000001' $$`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, 1, "t")
			reader, r := s.reader("t"), s.relay(RelayConfig{})
			var ids []string
			for i := range 3 {
				ids = append(ids, s.add("t", "k", fmt.Sprint(i)).String())
			}
			s.drain(r)
			s.exec(function)
			if strings.Contains(name, "dump") {
				// Rows of another server: their xids lie in this one's future.
				s.exec(`update claimq.outbox set xid = '9000000000000000000'::xid8 where value = '1'`)
			}
			ids = append(ids, s.add("t", "k", "3").String()) // a writer is sooner than the relay
			if _, err := r.runOnce(t.Context()); sqlstate.Code(err) != sqlstate.IncarnationChanged {
				t.Fatalf("the relay's round on another server gave %v", err)
			}
			s.drain(r)
			want := append(slices.Clone(ids[:3]), ids...)
			reader.untilCount(t, len(want))
			var got []string
			for _, record := range reader.all() {
				got = append(got, idOf(record))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("ids (-want +got):\n%s", diff)
			}
			if n := one[int](s, "select count(*) from claimq.outbox"); n != 4 {
				t.Errorf("the outbox holds %d rows, want 4", n)
			}
		})
	}
}

// A round that only ends what another relay has left half done also looks at what
// came after: else an effect waits for a poll that nobody has a reason to hurry.
func TestTheRestOfAnotherRelaysWindowDoesNotHideTheNext(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	first, second := s.relay(RelayConfig{}), s.relay(RelayConfig{})
	s.add("t", "k", "1")
	first.maxPage, first.maxList = 1, 1 // the place is written with the window open behind its only row
	s.round(first)
	s.endLeases()
	s.add("t", "k", "2")
	if did := s.round(second); did.published != 1 {
		t.Fatalf("the round after a take-over: %+v, want the one record that is new", did)
	}
}

// Stopping in the middle of a wave that nobody answers ends within the grace and
// loses nothing.
func TestStopEndsAWaveThatIsNotAnswered(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	answer := s.holdProduce()
	s.add("t", "k", "1")
	r := s.relay(RelayConfig{StopGrace: 50 * time.Millisecond})
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-answer.asked
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := r.Stop(ctx); err != nil {
		t.Fatalf("the relay did not stop: %v", err)
	}
	answer.release()
	reader, next := s.reader("t"), s.relay(RelayConfig{})
	s.drain(next)
	reader.untilCount(t, 1)
}

// Nobody tells the second relay that the first is gone: the lease ends.
func TestALeaseThatIsNotRenewedEnds(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	reader := s.reader("t")
	s.add("t", "k", "1")
	gone, next := s.relay(RelayConfig{Lease: time.Second}), s.relay(RelayConfig{Lease: time.Second})
	s.crashed(gone, stepRead, 1)
	if err := next.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	reader.untilCount(t, 1)
}

// While the brokers do not answer the lease is renewed: a relay that waits is not
// one that is gone.
func TestAWaitingRelayKeepsItsLease(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1, "t")
	held := s.holdProduce()
	s.add("t", "k", "1")
	waits, other := s.relay(RelayConfig{Lease: time.Second}), s.relay(RelayConfig{Lease: time.Second})
	if err := waits.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-held.asked
	first := one[int64](s, "select max(id) from claimq.relay_windows")
	eventually(t, "the lease is renewed four times, which takes longer than it lasts", func() bool {
		return one[int64](s, "select max(id) from claimq.relay_windows") >= first+4
	})
	if did := s.round(other); did.standby != 1 {
		t.Fatalf("another relay took the slice of one that waits: %+v", did)
	}
	held.release()
	s.readUntilPublished(1)
}
