package dlq_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/dlq"
)

func TestReplayResolvesWhatIsProcessedAndBuriesTheRestWithTheNextRound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	letters := w.dead(20, nil)
	id := w.startReplay(w.order())
	if fed := w.stepAll(id); fed != 20 {
		t.Fatalf("%d letters were fed, want 20", fed)
	}
	w.consistent()
	runs := w.lease()
	for _, run := range runs {
		item := run.Items[0]
		if item.Kind != delayq.Replay || item.ReplayCount != 1 || item.ReplayID.UUID != id || item.Attempts != 0 {
			t.Fatalf("the item is %s, replayed %d times by %s with %d attempts", item.Kind, item.ReplayCount, item.ReplayID.UUID, item.Attempts)
		}
	}
	first := letters[0]
	handled, err := w.work(runs, func(i *delayq.Item) bool { return i.ID == first.ID })
	w.must(err)
	if handled != 20 {
		t.Errorf("%d were handed out, want 20", handled)
	}
	w.stepAll(id)
	r := w.replay(id)
	if diff := cmp.Diff(dlq.Progress{Resolved: 19, Dead: 1}, r.Progress); diff != "" || r.State != dlq.ReplayFinished || r.EndedAt.IsZero() {
		t.Errorf("the replay is %s, ended %v; progress (-want +got):\n%s", r.State, r.EndedAt, diff)
	}
	again, err := w.store.Choose(w.ctx(), w.db.Pool, dlq.Selection{IDs: []uuid.UUID{first.ID}}, nil, 1)
	w.must(err)
	if l := again[0]; l.State != dlq.Dead || l.Round != 2 || l.ReplayCount != 1 || l.OrderPos != first.OrderPos {
		t.Errorf("what died again is %s in round %d, replayed %d times, at place %d", l.State, l.Round, l.ReplayCount, l.OrderPos)
	}
	w.consistent()
}

// C21: N who order the same letter at once.
func TestOfManyReplaysOfOneLetterOneIsAccepted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	letter := w.dead(1, nil)[0]
	var accepted, refused atomic.Int32
	var work sync.WaitGroup
	for range 12 {
		work.Go(func() {
			order := w.order()
			order.Selection = dlq.Selection{IDs: []uuid.UUID{letter.ID}}
			_, err := w.store.StartReplay(w.ctx(), w.db.Pool, order)
			already, ok := errors.AsType[*dlq.AlreadyReplayingError](err)
			switch {
			case err == nil:
				accepted.Add(1)
			case ok && len(already.Replays) == 1 && already.Letters == 1:
				refused.Add(1)
			default:
				t.Errorf("ordered twice: %v", err)
			}
		})
	}
	work.Wait()
	if accepted.Load() != 1 || refused.Load() != 11 {
		t.Errorf("%d were accepted and %d refused, want 1 and 11", accepted.Load(), refused.Load())
	}
	if n := get[int](w, `select count(*) from claimq.replays`); n != 1 {
		t.Errorf("%d replays are kept, want 1", n)
	}
}

func TestPlanLeavesOutWhatIsDoneStaleForgottenOrReplayedTooOften(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	letters := w.dead(6, nil)
	w.exec(`insert into claimq.claims (record_at, queue, segment, fingerprint_version, id, fingerprint) values (now(), $1, 0, 0, $2, gen_random_uuid())`,
		w.queue, letters[0].Claim.UUID)
	w.exec(`update claimq.dead_letters set overtaken_at = now() where id = $1`, letters[1].ID)
	w.exec(`update claimq.dead_letters set first_seen = now() - interval '9 days' where id = $1`, letters[2].ID)
	w.exec(`update claimq.dead_letters set replay_count = 10 where id = $1`, letters[3].ID)
	order := w.order()
	preview, err := w.store.PreviewReplay(w.ctx(), w.db.Pool, order)
	w.must(err)
	if n := get[int](w, `select count(*) from claimq.replays`) + get[int](w, `select count(*) from claimq.replay_items`) + get[int](w, `select count(*) from claimq.audit`); n != 0 {
		t.Errorf("a preview has written %d rows", n)
	}
	plan, err := w.store.StartReplay(w.ctx(), w.db.Pool, order)
	w.must(err)
	want := &dlq.ReplayPlan{
		Chosen: 6, Listed: 2, AlreadyDone: 1, Stale: 1, OutsideWindow: 1, Quarantined: 1,
		Sample: []uuid.UUID{letters[4].ID, letters[5].ID},
		Causes: []dlq.PlannedCause{{Cause: letters[4].Cause, Queue: "orders", Topic: "orders", Reason: "exhausted", Class: "*errors.errorString", Letters: 2}},
	}
	if diff := cmp.Diff(want, preview); diff != "" {
		t.Errorf("the preview (-want +got):\n%s", diff)
	}
	want.Replay = plan.Replay
	if diff := cmp.Diff(want, plan); diff != "" {
		t.Errorf("the plan (-want +got):\n%s", diff)
	}

	// Asked for, they go too; the others are in the replay above.
	order.Stale, order.OutsideWindow, order.Limit = true, true, 1
	plan, err = w.store.StartReplay(w.ctx(), w.db.Pool, order)
	w.must(err)
	if plan.Listed != 1 || plan.OverLimit != 1 || plan.AlreadyReplaying != 2 || plan.Stale+plan.OutsideWindow != 0 {
		t.Errorf("asked for stale and forgotten ones, at most 1: %+v", plan)
	}
	if n := get[int](w, `select count(*) from claimq.audit where action = 'replay start' and who = 'ada' and why = 'a test'`); n != 2 {
		t.Errorf("%d audit rows, want 2", n)
	}
}

func TestNothingToReplayIsAnErrorThatTellsWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.store.StartReplay(w.ctx(), w.db.Pool, w.order())
	if empty, ok := errors.AsType[*dlq.EmptyReplayError](err); !ok || empty.Plan.Chosen != 0 {
		t.Errorf("no letters: %v", err)
	}
	w.dead(1, nil)
	w.exec(`update claimq.dead_letters set replay_count = 3`)
	order := w.order()
	order.MaxReplays = 3
	_, err = w.store.StartReplay(w.ctx(), w.db.Pool, order)
	if empty, ok := errors.AsType[*dlq.EmptyReplayError](err); !ok || empty.Plan.Quarantined != 1 {
		t.Errorf("one that was replayed three times: %v", err)
	}
	for name, bad := range map[string]func(*dlq.ReplayOrder){
		"nobody gives it":     func(o *dlq.ReplayOrder) { o.Operator.Who = "" },
		"no reason":           func(o *dlq.ReplayOrder) { o.Operator.Why = "" },
		"a negative rate":     func(o *dlq.ReplayOrder) { o.Rate = -1 },
		"a ramp without rate": func(o *dlq.ReplayOrder) { o.Ramp = time.Second },
	} {
		order := w.order()
		bad(&order)
		if _, err := w.store.StartReplay(w.ctx(), w.db.Pool, order); err == nil {
			t.Errorf("an order is accepted although %s", name)
		}
	}
}

// C22: a replay of 100 letters that all fail again ends after 100.
func TestLettersThatDieAgainDoNotExtendTheirReplay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.dead(100, nil)
	for round := 1; round <= 3; round++ {
		order := w.order()
		order.MaxReplays = 2
		plan, err := w.store.StartReplay(w.ctx(), w.db.Pool, order)
		if round == 3 {
			if empty, ok := errors.AsType[*dlq.EmptyReplayError](err); !ok || empty.Plan.Quarantined != 100 {
				t.Fatalf("the third replay of all: %v", err)
			}
			break
		}
		w.must(err)
		if fed := w.stepAll(plan.Replay); fed != 100 {
			t.Fatalf("round %d: %d were fed", round, fed)
		}
		_, err = w.work(w.lease(), func(*delayq.Item) bool { return true })
		w.must(err)
		if fed := w.stepAll(plan.Replay); fed != 0 {
			t.Errorf("round %d: what died again was fed again: %d", round, fed)
		}
		if r := w.replay(plan.Replay); r.State != dlq.ReplayFinished || r.Dead != 100 {
			t.Errorf("round %d ended %s with %+v", round, r.State, r.Progress)
		}
		if n := get[int](w, `select count(*) from claimq.dead_letters where state = 'dead' and replay_count = $1 and round = $1 + 1`, round); n != 100 {
			t.Errorf("round %d: %d letters are dead with the count", round, n)
		}
	}
}

func TestCancelTakesBackWhatNobodyHasAndLetsTheRestFinish(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.dead(600, nil)
	order := w.order()
	order.InFlight = 300
	id := w.startReplay(order)
	if fed := w.stepAll(id); fed != 300 {
		t.Fatalf("%d are in flight, want 300", fed)
	}
	runs := w.lease() // 100 keys
	begun := time.Now()
	withdrawn, err := w.store.CancelReplay(w.ctx(), w.db.Pool, id, ada)
	w.must(err)
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("the cancel took %s", took)
	}
	if withdrawn != 200 {
		t.Errorf("%d were taken back, want 200", withdrawn)
	}
	w.consistent()
	handled, err := w.work(runs, nil)
	w.must(err)
	if diff := cmp.Diff(dlq.Progress{Resolved: int64(handled), Cancelled: 600 - int64(handled)}, w.replay(id).Progress); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	if n := get[int](w, `select count(*) from claimq.delayed`) + get[int](w, `select count(*) from claimq.delayed_keys`); n != 0 {
		t.Errorf("%d rows are left in the delay queue", n)
	}
	if n := get[int](w, `select count(*) from claimq.dead_letters where state = 'dead' and replay_count = 0 and round = 1`); n != 500 {
		t.Errorf("%d letters are dead as before, want 500", n)
	}
	if _, _, err := w.store.StepReplay(w.ctx(), w.db.Pool, id); err != nil {
		t.Error(err)
	}
	var wrong *dlq.ReplayStateError
	if err := w.store.PauseReplay(w.ctx(), w.db.Pool, id, ada); !errors.As(err, &wrong) || wrong.State != dlq.ReplayCancelled {
		t.Errorf("pausing what is cancelled: %v", err)
	}
	if _, err := w.store.StartReplay(w.ctx(), w.db.Pool, w.order()); err != nil {
		t.Errorf("what was cancelled cannot be ordered again: %v", err)
	}
}

// A worker that was killed leaves a lease that ends: its items are taken back, and a
// worker that wakes late is refused.
func TestCancelTakesBackWhatADeadWorkerHad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.dead(5, nil)
	id := w.startReplay(w.order())
	w.stepAll(id)
	runs := w.lease()
	w.exec(`update claimq.delayed_keys set ready_at = now() - interval '1 second'`)
	withdrawn, err := w.store.CancelReplay(w.ctx(), w.db.Pool, id, ada)
	w.must(err)
	if withdrawn != 5 {
		t.Errorf("%d were taken back, want 5", withdrawn)
	}
	if _, err := w.work(runs, nil); err == nil {
		t.Error("a worker whose lease has ended resolved letters that were taken back")
	}
	w.consistent()
}

func TestPausedReplayFeedsNothingUntilItIsResumed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.dead(10, nil)
	order := w.order()
	order.InFlight = 4
	id := w.startReplay(order)
	w.stepAll(id)
	w.must(w.store.PauseReplay(w.ctx(), w.db.Pool, id, ada))
	_, err := w.work(w.lease(), nil)
	w.must(err)
	if fed := w.stepAll(id); fed != 0 {
		t.Errorf("%d were fed while it was paused", fed)
	}
	if r, err := w.store.DriveReplay(w.ctx(), w.db.Pool, id, nil); err != nil || r.State != dlq.ReplayPaused || r.Resolved != 4 {
		t.Errorf("driving a paused replay: %+v, %v", r, err)
	}
	w.must(w.store.ResumeReplay(w.ctx(), w.db.Pool, id, ada))
	if fed := w.stepAll(id); fed != 4 {
		t.Errorf("%d were fed after it was resumed, want 4", fed)
	}
}

// C35: the rate is kept, also by two drivers at once, and a driver that was gone
// brings no burst.
func TestRateIsKeptWithinTenPercent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.dead(400, nil)
	order := w.order()
	order.Rate = 50
	id := w.startReplay(order)
	w.exec(`update claimq.replays set stepped_at = stepped_at - interval '1 hour'`) // the time between order and driver
	w.stepAll(id)
	before := w.replay(id)
	begun := time.Now()
	ctx, cancel := context.WithTimeout(w.ctx(), 4*time.Second)
	defer cancel()
	var drivers sync.WaitGroup
	for range 2 {
		drivers.Go(func() {
			if _, err := w.store.DriveReplay(ctx, w.db.Pool, id, nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the driver ended with %v", err)
			}
		})
	}
	drivers.Wait()
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("a driver stopped %s after its context", took)
	}
	after := w.replay(id)
	rate := float64(after.Queued-before.Queued) / 4
	if before.Queued > 51 {
		t.Errorf("an hour without a driver was credit for %d", before.Queued)
	}
	if rate < 45 || rate > 55 {
		t.Errorf("%.1f letters a second, want 45 to 55", rate)
	}
}

func TestRampGrowsToTheRate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.dead(300, nil)
	order := w.order()
	order.Rate, order.Ramp = 100, 4*time.Second
	id := w.startReplay(order)
	for _, test := range []struct{ elapsed, want int }{{1, 12}, {2, 50}, {4, 200}, {5, 300}} {
		w.exec(`update claimq.replays set elapsed = $1 * interval '1 second', stepped_at = clock_timestamp() + interval '1 hour'`, test.elapsed)
		w.stepAll(id)
		if r := w.replay(id); r.Queued != int64(test.want) {
			t.Errorf("after %d s: %d are fed, want %d", test.elapsed, r.Queued, test.want)
		}
	}
}

// Two letters of one id: the second waits for the first, and what the first's
// success closes is not sent.
func TestLettersOfOneIDAreNotInTheDelayQueueTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	claim := uuid.NullUUID{UUID: uuid.New(), Valid: true}
	letters := w.dead(2, func(_ int, l *dlq.Letter) { l.Claim = claim })
	id := w.startReplay(w.order())
	if fed := w.stepAll(id); fed != 1 {
		t.Fatalf("%d of two letters with one id were fed", fed)
	}
	w.consistent()
	w.exec(`update claimq.dead_letters set state = 'resolved', settled_at = now() where id = $1`, letters[1].ID) // as a success closes all of its id
	_, err := w.work(w.lease(), nil)
	w.must(err)
	w.stepAll(id)
	if r := w.replay(id); r.State != dlq.ReplayFinished || r.Resolved != 1 || r.Done != 1 {
		t.Errorf("it is %s with %+v", r.State, r.Progress)
	}
}

// A replayed letter that holds its key goes before what waited behind it.
func TestReplayOfALetterThatHoldsItsKeyGoesFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := uuid.New()
	letter := w.dead(1, func(_ int, l *dlq.Letter) { l.OrderKey, l.HoldsKey = key, true })[0]
	w.exec(`insert into claimq.delayed (id, queue, kind, order_key, due_at, record_topic, record_at) values (gen_random_uuid(), $1, 'blocked', $2, now(), 'orders', now())`, w.queue, key)
	w.exec(`select claimq.keep_keys($1, array[$2::uuid])`, w.queue, key)
	if runs := w.lease(); len(runs) != 0 {
		t.Fatal("what stands behind a dead letter that holds its key was handed out")
	}
	w.stepAll(w.startReplay(w.order()))
	runs := w.lease()
	if len(runs) != 1 || runs[0].Items[0].ID != letter.ID {
		t.Fatalf("the replayed letter is not at the head of its key: %d runs", len(runs))
	}
}
