package consumer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dlq"
)

// replayAll orders a replay of everything and drives it to its end.
func (r *rig) replayAll() (*dlq.Store, *dlq.Replay) {
	r.t.Helper()
	store, err := dlq.New(dlq.Config{Schema: r.db.Schema})
	if err != nil {
		r.t.Fatal(err)
	}
	plan, err := store.StartReplay(r.t.Context(), r.db.Pool, dlq.ReplayOrder{Operator: dlq.Operator{Who: "ada", Why: "a test"}})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	replay, err := store.DriveReplay(ctx, r.db.Pool, plan.Replay, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return store, replay
}

// C21, C22: from the dead letters back through the worker, with claims and without.
func TestReplayedLettersAreClosedByTheirProcessing(t *testing.T) {
	t.Parallel()
	for name, claims := range map[string]consumer.Claims{"claims": consumer.ClaimIDs, "no claims": consumer.ClaimNone} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.Claims, c.Order = claims, consumer.OrderNone
			works := make(chan struct{})
			var replayed []string
			c.Handler = consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
				select {
				case <-works:
				default:
					return consumer.Permanent(errors.New("a bad deploy"))
				}
				if string(m.Record.Value) == "never" {
					return consumer.Permanent(errors.New("still wrong"))
				}
				if !m.Replayed {
					return errors.New("it was not replayed")
				}
				replayed = append(replayed, string(m.Record.Value))
				_, err := tx.Exec(ctx, `insert into `+r.db.Schema+`.effects (id) values ($1)`, string(m.Record.Value))
				return err
			})
			r.produce(message(0, "m1", "k", "m1"), message(0, "m2", "k", "never"), message(0, "m3", "j", "m3"))
			r.start(c)
			eventually(t, "all are dead", func() bool { return r.count(`select count(*) from %s.dead_letters where state = 'dead'`) == 3 })
			close(works)
			_, replay := r.replayAll()
			if diff := cmp.Diff(dlq.Progress{Resolved: 2, Dead: 1}, replay.Progress); diff != "" || replay.State != dlq.ReplayFinished {
				t.Errorf("the replay is %s (-want +got):\n%s", replay.State, diff)
			}
			if diff := cmp.Diff([]string{"m1", "m3"}, r.strings(`select id from %s.effects order by id`)); diff != "" {
				t.Errorf("effects (-want +got):\n%s", diff)
			}
			if n := r.count(`select count(*) from %s.dead_letters where state = 'dead' and round = 2 and replay_count = 1 and error_message = 'still wrong'`); n != 1 {
				t.Errorf("%d letters died again, want 1", n)
			}
			if n := r.count(`select count(*) from %s.dead_letters where state = 'resolved' and settled_at is not null`); n != 2 {
				t.Errorf("%d letters are resolved, want 2", n)
			}
		})
	}
}

// An id that was done by other means while its letter was on the way back: the
// handler is not called, and the letter does not stay on the way for ever.
func TestReplayedLetterWhoseIDIsClaimedMeanwhileIsClosed(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Retry.InitialDelay = time.Millisecond
	calls := make(chan struct{}, 10)
	c.Handler = consumer.One(func(context.Context, pgx.Tx, *consumer.Message) error {
		calls <- struct{}{}
		return consumer.Permanent(errors.New("broken"))
	})
	r.produce(message(0, "m1", "k", "m1"))
	q := r.start(c)
	eventually(t, "it is dead", func() bool { return r.count(`select count(*) from %s.dead_letters where state = 'dead'`) == 1 })
	r.stop(q)
	store, err := dlq.New(dlq.Config{Schema: r.db.Schema})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := store.StartReplay(t.Context(), r.db.Pool, dlq.ReplayOrder{Operator: dlq.Operator{Who: "ada", Why: "a test"}})
	if err != nil {
		t.Fatal(err)
	}
	if fed, _, err := store.StepReplay(t.Context(), r.db.Pool, plan.Replay); err != nil || fed != 1 {
		t.Fatalf("%d were fed: %v", fed, err)
	}
	r.exec(`insert into ` + r.db.Schema + `.claims (record_at, queue, segment, fingerprint_version, id, fingerprint)
		select now(), queue, 0, fingerprint_version, claim, coalesce(fingerprint, gen_random_uuid()) from ` + r.db.Schema + `.dead_letters`)
	r.start(c)
	eventually(t, "the letter is closed", func() bool { return r.count(`select count(*) from %s.dead_letters where state = 'resolved'`) == 1 })
	if len(calls) != 1 {
		t.Errorf("the handler was called %d times, want once, at its death", len(calls))
	}
}

// on_dead: continue. What came after the letter in its order key makes a replay of
// it stale; what came before, or in another key, does not.
func TestLetterThatNewerMessagesOfItsKeyWentPastIsStale(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	c := r.config()
	c.Handler = consumer.One(func(_ context.Context, _ pgx.Tx, m *consumer.Message) error {
		if string(m.Record.Value) == "dies" {
			return consumer.Permanent(errors.New("broken"))
		}
		return nil
	})
	r.produce(message(0, "m0", "k", ""), message(0, "m1", "k", "dies"), message(0, "m2", "j", "dies"),
		message(0, "x1", "x", "dies"), message(0, "x2", "x", ""), message(0, "x3", "x", "dies"))
	r.start(c)
	eventually(t, "four are dead", func() bool { return r.count(`select count(*) from %s.dead_letters`) == 4 })
	if diff := cmp.Diff([]string{"x1"}, r.strings(`select shown from %s.dead_letters where overtaken_at is not null`)); diff != "" {
		t.Errorf("overtaken within a batch (-want +got):\n%s", diff)
	}
	r.produce(message(0, "m3", "k", ""))
	eventually(t, "m3 is done", func() bool { return r.position(0) == 7 })
	if diff := cmp.Diff([]string{"m1", "x1"}, r.strings(`select shown from %s.dead_letters where overtaken_at is not null order by shown`)); diff != "" {
		t.Errorf("overtaken letters (-want +got):\n%s", diff)
	}
}
