package consumer_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/delayq"
)

// A conflict is judged before any handler runs. With OnDead Block it holds what
// stands behind it in its order key, and not what stands before it in the batch.
func TestAJudgedDeathHoldsOnlyWhatStandsBehindIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	config := r.config()
	config.OnDead = consumer.Block
	config.Concurrency = 1
	r.produce(
		message(0, "used", "other", "first payload"),
		message(0, "m0", "k", "before"),
		message(0, "used", "k", "second payload: a conflict"),
		message(0, "m2", "k", "behind"),
	)
	r.start(config)
	eventually(t, "the conflict is dead and what stands behind it is held", func() bool {
		return r.outcome("dead") == 1 && r.outcome("blocked") == 1
	})
	if got := r.strings(`select id from %s.effects order by n`); len(got) != 2 || got[0] != "used" || got[1] != "m0" {
		t.Errorf("effects %v, want used and m0: what stands before the dead message does not wait for it", got)
	}
}

// The same in the delay queue, where it would be leased and given up for ever.
func TestAJudgedDeathInARunDoesNotStopWhatStandsBeforeIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	config := r.config()
	config.OnDead = consumer.Block
	config.Concurrency = 1
	config.Retry = delayq.Policy{MaxAttempts: 5, InitialDelay: 300 * time.Millisecond, Factor: 1}
	insert := `insert into ` + r.db.Schema + `.effects (id, value) values ($1, $2)`
	config.Handler = consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
		if m.Identity.ID == "m0" && m.Attempt == 1 {
			return errBoom
		}
		_, err := tx.Exec(ctx, insert, m.Identity.ID, m.Record.Value)
		return err
	})
	// m0 fails once; m1 of the same key waits behind it. Meanwhile m1's id is used for
	// something else, on another partition and under another order key.
	r.produce(message(0, "m0", "k", "a"), message(0, "m1", "k", "b"))
	r.start(config)
	eventually(t, "both are in the delay queue", func() bool { return r.outcome("delayed") == 1 && r.outcome("blocked") == 1 })
	r.exec(`insert into `+r.db.Schema+`.claims_0 (record_at, queue, segment, fingerprint_version, id, fingerprint)
	        select now(), queue, 0, fingerprint_version, claim, gen_random_uuid() from `+r.db.Schema+`.delayed where shown = $1`, "m1")
	eventually(t, "m0 has run and m1 is a dead conflict", func() bool {
		return r.count(`select count(*) from %s.effects where id = 'm0'`) == 1 &&
			r.count(`select count(*) from %s.dead_letters where reason = 'conflict'`) == 1
	})
}
