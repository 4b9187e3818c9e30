package dedup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/pgtest"
)

// Ids are remembered for the retention and at most half of it more, around the ring
// twice, and at no time more than two older segments are looked into.
func TestIDsAreRememberedForTheRetentionAndHalfOfItMore(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	const retention = 8
	born := map[string]int{}
	for today := range 40 {
		for _, id := range slices.Sorted(func(yield func(string) bool) {
			for id := range born {
				if !yield(id) {
					return
				}
			}
		}) {
			age := today - born[id]
			// Looked up without claiming: a repeat that is new would begin a life of its own.
			found, err := s.store.Find(t.Context(), s.Pool, rollRequest("q", id).Identity)
			if err != nil {
				t.Fatal(err)
			}
			if known := found != nil; age <= retention && !known {
				t.Errorf("day %d: %s of day %d is forgotten", today, id, born[id])
			} else if age > retention*3/2+1 && known {
				t.Errorf("day %d: %s of day %d is still remembered", today, id, born[id])
			}
		}
		id := fmt.Sprint("id-", today)
		s.want(fmt.Sprint("day ", today), Claimed, "q", id)
		s.want(fmt.Sprint("day ", today), Duplicate, "q", id)
		born[id] = today
		result, err := s.roller.runOnce(t.Context())
		if err != nil || result.Waiting != NotWaiting {
			t.Fatalf("day %d: %+v, %v", today, result, err)
		}
		if inserts, lookups := s.inForce(); len(inserts) != 1 || len(lookups) > 2 {
			t.Fatalf("day %d: inserts %v lookups %v", today, inserts, lookups)
		}
		s.pass(day)
	}
	if n := oneOf[int](s, `select max(phase)::int from claimq.claim_phases`); n < 20 {
		t.Errorf("only %d phases in 40 days: the ring did not go around twice", n)
	}
}

func TestNothingIsWrittenWhenNothingIsDue(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	s.pass(100 * day) // an empty segment is never rolled: it goes on being complete since its opening
	s.run(RollResult{})
	s.exec(`update claimq.claim_segments set opened = now(), current_since = now() where segment = 0`)
	s.claimed(rollRequest("q", "a"))
	if got := s.run(RollResult{}); got.Phase != 0 {
		t.Errorf("phase %d, want 0", got.Phase)
	}
}

// A segment goes when the last of its claims has expired by both clocks in the queue
// that remembers longest.
func TestASegmentIsHeldByTheNewestClaimOfEitherClockInAnyQueue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		record    time.Duration // the record's clock, from now
		queue     string
		heldDays  int
		forgotten int
	}{
		"short queue":              {0, "short", 2, 3},
		"long queue":               {0, "q", 8, 9},
		"an old record":            {-100 * day, "short", 2, 3},
		"a record that is ahead":   {day, "short", 3, 4},
		"a record from the future": {1000 * day, "short", 4, 5}, // counts up to one retention
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newRollStage(t, RollerConfig{})
			s.queue("short", 2*day)
			s.pass(5 * day)
			r := rollRequest(c.queue, "a")
			r.RecordAt = time.Now().Add(c.record)
			s.claimed(r)
			s.run(RollResult{Rolled: 1})
			s.pass(time.Duration(c.heldDays)*day - time.Minute)
			s.run(RollResult{})
			s.pass(time.Duration(c.forgotten-c.heldDays) * day)
			s.run(RollResult{Forgotten: 1})
			s.want("forgotten", Claimed, c.queue, "a")
		})
	}
}

// Retention is today's: longer holds what is there, shorter lets it go at once.
func TestRetentionChangesBothWaysAtRunTime(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	s.pass(5 * day)
	s.claimed(rollRequest("q", "a"))
	s.run(RollResult{Rolled: 1})
	s.pass(7 * day)
	s.queue("q", 30*day)
	s.pass(20 * day)
	s.run(RollResult{})
	s.want("under the longer retention", Duplicate, "q", "a")
	s.queue("q", day)
	s.run(RollResult{Forgotten: 1})
	s.want("under the shorter retention", Claimed, "q", "a")
}

// Two weeks of outage: the wall clock is past the retention and the stream is not.
func TestAStreamThatStandsHoldsWhatItStillNeeds(t *testing.T) {
	t.Parallel()
	var at time.Time
	var failing error
	s := newRollStage(t, RollerConfig{StreamTime: func(context.Context) (map[int32]time.Time, error) {
		return map[int32]time.Time{1: at}, failing
	}})
	if number := oneOf[int](s, `select id from claimq.queues where name = 'q'`); number != 1 {
		t.Fatalf("the queue's number is %d, want 1", number)
	}
	s.pass(5 * day)
	at = time.Now()
	s.claimed(rollRequest("q", "a"))
	s.run(RollResult{Rolled: 1})
	s.pass(14 * day)
	at = time.Now().Add(-14 * day) // where the stream stands now
	s.run(RollResult{})
	s.want("a repeat in the backlog", Duplicate, "q", "a")
	at = time.Now().Add(-6*day - time.Minute)
	s.run(RollResult{})
	failing = errors.New("not known")
	at = time.Now()
	s.run(RollResult{})
	failing = nil
	at = time.Now().Add(-6*day + time.Minute) // one retention after the claim's record
	s.run(RollResult{Forgotten: 1})
}

func TestAStreamHoldsForMaxHoldAtMost(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{MaxHold: 10 * day, StreamTime: func(context.Context) (map[int32]time.Time, error) {
		return map[int32]time.Time{1: time.Now().Add(-1000 * day)}, nil
	}})
	s.pass(5 * day)
	s.claimed(rollRequest("q", "a"))
	s.run(RollResult{Rolled: 1})
	s.pass(18*day - time.Minute)
	s.run(RollResult{})
	s.pass(2 * time.Minute)
	s.run(RollResult{Forgotten: 1})
}

// A roller that dies after any step, and another one that goes on.
func TestARollGoesOnWhereAnotherProcessLeftIt(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	crash := errors.New("the process is gone")
	// oneStep makes the next step with a roller of its own, once rolled back and once
	// committed, and tells whether there was one.
	oneStep := func() bool {
		moved := false
		for _, end := range []error{crash, nil} {
			other, err := NewRoller(s.Pool, RollerConfig{Schema: s.Schema})
			if err != nil {
				t.Fatal(err)
			}
			_, err = other.inStep(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				state, err := other.readState(ctx, tx)
				if err != nil {
					return err
				}
				state.streams = &streams{}
				if moved, err = other.step(ctx, tx, state, &RollResult{}); err != nil {
					return err
				}
				return end
			})
			if !errors.Is(err, end) {
				t.Fatal(err)
			}
		}
		return moved
	}
	for round := range 6 {
		s.pass(5 * day)
		id := fmt.Sprint("id-", round)
		s.want("before the roll", Claimed, "q", id)
		steps := 0
		for ; oneStep(); steps++ {
			s.want(fmt.Sprint("round ", round, " after step ", steps), Duplicate, "q", id)
		}
		if steps < 3 {
			t.Fatalf("round %d took %d steps", round, steps)
		}
	}
}

// While claimers of the phase before are at it, a roll waits and leaves them alone;
// they may take as long as they like, and others go on.
func TestARollWaitsForClaimersAndNobodyWaitsForIt(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	s.roller.patience = 20 * time.Millisecond
	s.pass(5 * day)
	s.claimed(rollRequest("q", "a"))
	// The first has the phase before the roll, the second its middle phase, and the
	// third the phase after it.
	for i, want := range []RollResult{{Waiting: WaitingForClaimers}, {Rolled: 1, Waiting: WaitingForClaimers}, {}} {
		slow, err := s.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.store.Claim(t.Context(), slow, rollRequest("q", fmt.Sprint("slow", i))); err != nil {
			t.Fatal(err)
		}
		s.run(want)
		began := time.Now()
		s.want("beside a roll", Claimed, "q", fmt.Sprint("quick", i))
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("a claim took %s beside a roll that waits", took)
		}
		if err := slow.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.want("after the roll", Duplicate, "q", "a", "slow0", "slow1", "slow2", "quick0", "quick1", "quick2")
	if inserts, lookups := s.inForce(); len(inserts) != 1 || len(lookups) != 1 {
		t.Errorf("inserts %v, lookups %v: the roll is not complete", inserts, lookups)
	}
}

// A dump, or a person in a transaction, holds the oldest segment: emptying it gives
// up after 50 ms, and the ring stands still without harm.
func TestAReaderOfAForgottenSegmentIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	s.pass(5 * day)
	s.claimed(rollRequest("q", "a"))
	s.run(RollResult{Rolled: 1})
	dump, err := s.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dump.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := dump.Exec(t.Context(), s.sql(`select count(*) from claimq.claims`)); err != nil {
		t.Fatal(err)
	}
	s.pass(9 * day)
	s.run(RollResult{Waiting: WaitingForLock})
	s.run(RollResult{Waiting: WaitingForLock})
	s.want("beside a dump", Claimed, "q", "b")
	if err := dump.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.run(RollResult{Forgotten: 1, Rolled: 1})
}

func TestOneRollerAtATime(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	_, err := s.roller.inStep(t.Context(), func(context.Context, pgx.Tx) error {
		s.run(RollResult{Waiting: WaitingForRoller})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.run(RollResult{})
}

// An open item's claim outlives its segment, with both clocks, however often the ring
// goes around, and is forgotten when the item is settled.
func TestClaimsOfOpenItemsAreCarriedOver(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	s.pass(5 * day)
	ids := []string{"delayed", "dead", "replaying", "resolved", "free"}
	for _, id := range ids {
		s.want("at first", Claimed, "q", id)
	}
	claimOf := func(id string) any { return rollRequest("q", id).Identity.Digest() }
	s.exec(`insert into claimq.delayed (id, queue, kind, order_key, due_at, claim, record_topic, record_at)
	        values (gen_random_uuid(), 1, 'failed', gen_random_uuid(), now(), $1, 't', now())`, claimOf("delayed"))
	for _, state := range []string{"dead", "replaying", "resolved"} {
		s.exec(`insert into claimq.dead_letters (id, queue, state, reason, cause, cause_version, order_key, claim, record_topic, record_at, settled_at)
		        values (gen_random_uuid(), 1, $2::text::claimq.letter_state, 'r', gen_random_uuid(), 1, gen_random_uuid(), $1, 't', now(), case when $2 = 'resolved' then now() end)`, claimOf(state), state)
	}
	first := oneOf[time.Time](s, `select claimed_at from claimq.claims where id = $1`, claimOf("dead"))
	forgotten := 0
	for range 5 { // a new claim each time, so that the ring moves
		s.pass(9 * day)
		first = first.Add(-9 * day)
		result, err := s.roller.runOnce(t.Context())
		if err != nil || result.Waiting != NotWaiting {
			t.Fatalf("%+v, %v", result, err)
		}
		forgotten += result.Forgotten
		s.want("an open item's", Duplicate, "q", "delayed", "dead", "replaying")
		if at := oneOf[time.Time](s, `select max(claimed_at) from claimq.claims where id = $1`, claimOf("dead")); !at.Equal(first) {
			t.Errorf("carried over with claimed_at %s, want %s", at, first)
		}
	}
	if forgotten < 4 {
		t.Errorf("%d segments were forgotten, want one each time at least", forgotten)
	}
	s.want("without an open item", Claimed, "q", "resolved", "free")
	s.exec(`delete from claimq.delayed`)
	s.exec(`update claimq.dead_letters set state = 'discarded', settled_at = now() where state <> 'resolved'`)
	for range 2 {
		s.pass(9 * day)
		if _, err := s.roller.runOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.want("settled", Claimed, "q", ids...)
}

// An item that is opened while claimers of the phase before still run is not missed:
// its claim is carried over before the segment is emptied.
func TestAnItemOpenedDuringTheDrainKeepsItsClaim(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	s.roller.patience = time.Millisecond
	s.pass(5 * day)
	s.claimed(rollRequest("q", "a"))
	s.run(RollResult{Rolled: 1})
	s.pass(9 * day)
	slow, err := s.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := s.store.Claim(t.Context(), slow, rollRequest("q", "b")); err != nil {
		t.Fatal(err)
	}
	s.run(RollResult{Waiting: WaitingForClaimers}) // the oldest is out of force now
	s.exec(`insert into claimq.delayed (id, queue, kind, order_key, due_at, claim, record_topic, record_at)
	        values (gen_random_uuid(), 1, 'failed', gen_random_uuid(), now(), $1, 't', now())`, rollRequest("q", "a").Identity.Digest())
	if err := slow.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.run(RollResult{Forgotten: 1, Carried: 1, Rolled: 1})
	s.want("opened during the drain", Duplicate, "q", "a")
}

// The claims are complete since the newest one that was forgotten, whenever the
// segment after it was opened; before that since the beginning.
func TestRemembersSinceFollowsTheRing(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	const since = `select min(s.opened) from claimq.claim_segments s,
	                      (select p.inserts || p.lookups as segments from claimq.claim_phases p order by p.phase desc limit 1) p
	                where s.segment = any (p.segments)`
	beginning := oneOf[time.Time](s, since)
	s.claimed(rollRequest("q", "a"))
	s.pass(5 * day)
	s.run(RollResult{Rolled: 1})
	if got := oneOf[time.Time](s, since); !got.Equal(beginning.Add(-5 * day)) {
		t.Errorf("after the first roll %s, want still %s", got, beginning.Add(-5*day))
	}
	newest := oneOf[time.Time](s, `select max(newest_claim) from claimq.claim_segment_clocks`)
	s.pass(4 * day)
	s.run(RollResult{Forgotten: 1})
	if got := oneOf[time.Time](s, since); !got.Equal(newest.Add(-4 * day)) {
		t.Errorf("after the forgetting %s, want the newest forgotten claim's %s", got, newest.Add(-4*day))
	}
	if opened := oneOf[int](s, `select count(opened)::int from claimq.claim_segments`); opened != 1 {
		t.Errorf("%d segments are open, want the current one", opened)
	}
}

// A phase that some program put into force by hand while a segment is emptied is
// found under the lock.
func TestASegmentInForceIsNeverEmptied(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	s.claimed(rollRequest("q", "a"))
	_, err := s.roller.inStep(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		return s.roller.forget(ctx, tx, 0, &phase{inserts: []int16{1}}, &RollResult{})
	})
	if err == nil || !strings.Contains(err.Error(), "in force") {
		t.Fatalf("emptying the current segment gave %v", err)
	}
	s.want("still there", Duplicate, "q", "a")
}

// The roll's look at the pending state must not read the claims.
func TestALookAtWhatIsDueReadsNoClaims(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	for _, text := range []string{s.roller.sql.state, s.roller.sql.expired} {
		var args []any
		if text == s.roller.sql.expired {
			args = []any{int16(0), []int32{}, []time.Time{}, time.Hour}
		}
		rows, err := s.Pool.Query(t.Context(), "explain "+text, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if plan := strings.Join(lines, "\n"); strings.Contains(plan, " claims_") || strings.Contains(plan, " results_") {
			t.Errorf("the plan reads a leaf:\n%s", plan)
		}
	}
}

func TestAWrongConfigurationIsNamed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for field, c := range map[string]RollerConfig{"Every": {Every: time.Millisecond}, "MaxHold": {MaxHold: -1}} {
		if _, err := NewRoller(db.Pool, c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v, want an error that names %s", err, field)
		}
	}
	if _, err := NewRoller(nil, RollerConfig{}); err == nil {
		t.Error("no pool is accepted")
	}
}
