package dedup

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/claimq/claimq/migrations"
)

func TestARollerStartsAndStopsTwiceAndRolls(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{Every: time.Second})
	s.claimed(rollRequest("q", "a"))
	s.pass(5 * day)
	for range 2 {
		if err := s.roller.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if inserts, lookups := s.inForce(); len(inserts) == 1 && len(lookups) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the roller that was started has not rolled")
		}
	}
	for range 2 {
		if err := s.roller.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := s.roller.Start(ctx); err != nil { // again, and it ends with its context
		t.Fatal(err)
	}
	cancel()
	if err := s.roller.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.roller.Start(ctx); err == nil {
		t.Error("started with a context that has ended")
	}
}

func TestStopEndsALookThatWaits(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{Every: time.Second})
	s.roller.patience = time.Hour
	s.claimed(rollRequest("q", "a"))
	s.pass(5 * day)
	slow, err := s.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := s.store.Claim(t.Context(), slow, rollRequest("q", "slow")); err != nil {
		t.Fatal(err)
	}
	if err := s.roller.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if inserts, _ := s.inForce(); len(inserts) == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the roll has not begun")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.roller.Stop(ctx); err != nil {
		t.Fatalf("a roller that waits for claimers does not stop: %v", err)
	}
}

// Workers roll with the rights that the script of the roles gives them.
func TestAWorkersRightsSufficeForTheRoll(t *testing.T) {
	t.Parallel()
	s := newRollStage(t, RollerConfig{})
	script, err := migrations.Roles(migrations.Options{Schema: s.Schema})
	if err != nil {
		t.Fatal(err)
	}
	s.exec(script)
	t.Cleanup(func() {
		for _, group := range []string{"owner", "worker", "operator", "reader"} {
			role := s.Schema + "_" + group
			if _, err := s.Pool.Exec(context.WithoutCancel(t.Context()), fmt.Sprintf("drop owned by %[1]s cascade; drop role %[1]s", role)); err != nil {
				t.Errorf("clean up: drop role %s: %v", role, err)
			}
		}
	})
	config := s.Pool.Config()
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "set role "+s.Schema+"_worker")
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	s.exec(`update claimq.result_slots set opened = now() - interval '5 days' where slot = 0`)
	s.result("a", time.Hour)
	s.pass(5 * day)
	s.roller.pool = pool
	s.run(RollResult{Rolled: 1, ResultsForgotten: 1})
	s.pass(9 * day)
	s.run(RollResult{Forgotten: 1})
	s.want("forgotten", Claimed, "q", "a")
}
