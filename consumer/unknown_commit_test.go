package consumer_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/outbox"
)

// CASES C06: the answer to COMMIT does not come.
func TestLostCommitReplies(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string][]fault{
		"the reply":               {dropReply},
		"requests":                {dropRequest, dropRequest},
		"three requests, a reply": {dropRequest, dropRequest, dropRequest, dropReply},
	} {
		for _, claims := range []consumer.Claims{consumer.ClaimIDs, consumer.ClaimNone} {
			t.Run(fmt.Sprintf("%s lost with claims %s", name, claims), func(t *testing.T) {
				t.Parallel()
				lostCommit(t, claims, faults)
			})
		}
	}
}

func lostCommit(t *testing.T, claims consumer.Claims, faults []fault) {
	t.Helper()
	r := newRig(t, 1)
	pool, proxy := r.throughProxy()
	c := r.config()
	c.Claims, c.Concurrency, c.Retry = claims, 1, never
	c.DeadLetterTopic = "dead"
	insert := `insert into ` + r.db.Schema + `.effects (id, value) values ($1, $2)`
	c.Handler = consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
		switch string(m.Record.Value) {
		case "fails":
			return errBoom
		case "dies":
			return consumer.Permanent(errBoom)
		}
		if _, err := tx.Exec(ctx, insert, m.Identity.ID, m.Record.Value); err != nil {
			return err
		}
		return m.Emit(outbox.Effect{Name: "done", Topic: "effects", Value: m.Record.Value})
	})
	// One that works first: the fault hits a running consumer.
	r.produce(message(0, "first", "first", "works"))
	if _, err := r.tryStart(c, pool); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first is done", func() bool { return r.outcome("processed") == 1 })
	proxy.next(faults...)
	r.produce(message(0, "a", "a", "works"), message(0, "b", "b", "fails"), message(0, "c", "c", "dies"))
	eventually(t, "three more are done", func() bool {
		return r.outcome("processed") == 2 && r.outcome("delayed") == 1 && r.outcome("dead") == 1
	})
	if left := proxy.left(); left > 0 {
		t.Fatalf("%d faults did not happen", left)
	}
	want := 0
	for _, f := range faults {
		if f == dropReply {
			want++
		}
	}
	if n := r.metric("claimq_recovered_commits_total", "", ""); n != want {
		t.Errorf("%d commits recovered, want %d", n, want)
	}
	for sql, want := range map[string]int{
		`select count(*) from %s.effects`:                      2,
		`select count(*) from %s.delayed`:                      1,
		`select sum(attempts)::int from %s.delayed`:            1,
		`select count(*) from %s.dead_letters`:                 1,
		`select count(*) from %s.outbox`:                       3,
		`select count(*) from %s.outbox where topic='effects'`: 2,
	} {
		if n := r.count(sql); n != want {
			t.Errorf("%s: %d, want %d", sql, n, want)
		}
	}
	if claims == consumer.ClaimIDs {
		if n := r.count(`select count(*) from %s.claims`); n != 2 {
			t.Errorf("%d claims, want 2", n)
		}
	}
	if got := r.position(0); got != 4 {
		t.Errorf("position %d, want 4", got)
	}
	if n := r.outcome("duplicate"); n != 0 {
		t.Errorf("%d duplicates: a recovered commit counts as processed", n)
	}
}
