package consumer_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/delayq"
)

// A run of the delay queue whose fourth message failed was given up and leased
// again for ever: the failure was applied before the messages in front of it had
// run, which then counted as standing behind it.
func TestAFailureInARunOfTheDelayQueueWaitsForWhatStandsBeforeIt(t *testing.T) {
	t.Parallel()
	const messages = 8
	fails := map[string]bool{"m0": true, "m4": true, "m6": true} // at their first attempt
	handlers := map[string]func(r *rig) consumer.Handler{
		"one": func(r *rig) consumer.Handler {
			sql := `insert into ` + r.db.Schema + `.effects (id, value) values ($1, $2)`
			return consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
				if fails[m.Identity.ID] && m.Attempt == 1 {
					return errBoom
				}
				_, err := tx.Exec(ctx, sql, m.Identity.ID, m.Record.Value)
				return err
			})
		},
		"pipelined": func(r *rig) consumer.Handler {
			sql := `insert into ` + r.db.Schema + `.effects (id, value) values ($1, $2)`
			return consumer.Pipelined(func(_ context.Context, b *pgx.Batch, m *consumer.Message) error {
				if fails[m.Identity.ID] && m.Attempt == 1 {
					return errBoom
				}
				b.Queue(sql, m.Identity.ID, m.Record.Value)
				return nil
			})
		},
	}
	for name, handler := range handlers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			for i := range messages {
				id := "m" + strconv.Itoa(i)
				r.produce(message(0, id, "one key", "value of "+id))
			}
			config := r.config()
			config.Handler = handler(r)
			config.Retry = delayq.Policy{InitialDelay: 2 * time.Second, Factor: 1}
			r.start(config)
			// Batches without a failure, so that the run is first tried as a whole.
			const clean = 12
			for i := range clean {
				r.produce(message(0, "clean"+strconv.Itoa(i), "another key", ""))
				eventually(t, "a clean batch is done", func() bool { return r.count(`select count(*) from %s.effects`) == i+1 })
			}
			r.exec(`delete from ` + r.db.Schema + `.effects`)
			eventually(t, "all messages are done", func() bool { return r.count(`select count(*) from %s.effects`) == messages })
			for i, id := range r.strings(`select id from %s.effects order by n`) {
				if want := "m" + strconv.Itoa(i); id != want {
					t.Errorf("effect %d is of %s, want %s", i, id, want)
				}
			}
		})
	}
}
