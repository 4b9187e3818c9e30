package consumer_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/outbox"
)

// An effect that the outbox cannot take is its message's failure, not the batch's.
func TestABadEffectFailsItsOwnMessage(t *testing.T) {
	t.Parallel()
	for what, effects := range map[string][]outbox.Effect{
		"no topic":          {{Name: "e"}},
		"topic of no Kafka": {{Name: "e", Topic: "a\x00b"}},
		"too large":         {{Name: "e", Topic: "effects", Value: make([]byte, 2<<20)}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.Retry, c.Concurrency = never, 1
			c.Handler = consumer.Batch(func(_ context.Context, _ pgx.Tx, ms []*consumer.Message) error {
				for _, m := range ms {
					emitted := []outbox.Effect{{Name: "good", Topic: "effects"}}
					if string(m.Record.Value) == "bad" {
						emitted = effects
					}
					for _, e := range emitted {
						if err := m.Emit(e); err != nil {
							return err
						}
					}
				}
				return nil
			})
			r.produce(message(0, "a", "", "good"), message(0, "b", "", "bad"), message(0, "c", "", "good"))
			r.start(c)
			r.outcomes(map[string]int{"processed": 2, "delayed": 1})
			if n := r.count(`select count(*) from %s.outbox`); n != 2 {
				t.Errorf("%d effects, want 2", n)
			}
		})
	}
}

// Executions that were rolled back leave neither effects nor results.
func TestRolledBackExecutionsLeaveNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"one", "pipelined", "batch"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			c := r.config()
			c.Retry, c.Concurrency = never, 1
			runs := map[string]int{}
			f := func(m *consumer.Message) error {
				runs[m.Identity.ID]++
				run := strconv.Itoa(runs[m.Identity.ID])
				if err := m.Emit(outbox.Effect{Name: "run", Topic: "effects", Value: []byte(m.Identity.ID)}); err != nil {
					return err
				}
				if err := m.SetResult([]byte(run)); err != nil {
					return err
				}
				return act(m)
			}
			c.Handler = map[string]consumer.Handler{
				"one":       consumer.One(func(_ context.Context, _ pgx.Tx, m *consumer.Message) error { return f(m) }),
				"pipelined": consumer.Pipelined(func(_ context.Context, _ *pgx.Batch, m *consumer.Message) error { return f(m) }),
				"batch": consumer.Batch(func(_ context.Context, _ pgx.Tx, ms []*consumer.Message) error {
					for _, m := range ms {
						if err := f(m); err != nil {
							return err
						}
					}
					return nil
				}),
			}[kind]
			for i := range 12 {
				value := "works"
				if i == 7 {
					value = "fails"
				}
				r.produce(message(0, "m"+strconv.Itoa(i), "", value))
			}
			r.start(c)
			r.outcomes(map[string]int{"processed": 11, "delayed": 1})
			if n := r.count(`select count(*) from %s.outbox`); n != 11 {
				t.Errorf("%d effects, want 11", n)
			}
			if n := r.count(`select count(*) from %s.outbox where value = 'm7'`); n != 0 {
				t.Errorf("the failed message left %d effects", n)
			}
			if n := r.count(`select count(*) from %s.results`); n != 11 {
				t.Errorf("%d results, want 11", n)
			}
		})
	}
}
