package delayq_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/claimq/claimq/delayq"
)

func ExamplePolicy() {
	policy := delayq.Policy{MaxAttempts: 5, InitialDelay: time.Second, Factor: 4, MaxDelay: 30 * time.Second, NoJitter: true}
	for attempt := 1; ; attempt++ {
		delay, again := policy.Next(attempt, 0, 0, nil)
		if !again {
			fmt.Printf("attempt %d fails: dead\n", attempt)
			break
		}
		fmt.Printf("attempt %d fails: again in %v\n", attempt, delay)
	}
	fmt.Println("horizon:", policy.Horizon())
	// Output:
	// attempt 1 fails: again in 1s
	// attempt 2 fails: again in 4s
	// attempt 3 fails: again in 16s
	// attempt 4 fails: again in 30s
	// attempt 5 fails: dead
	// horizon: 51s
}

func ExamplePolicy_Validate() {
	fmt.Println(delayq.Policy{MaxAttempts: -3, Factor: 0.5}.Validate())
	// Output:
	// max_attempts: -3 is below 1; it counts the first attempt too
	// delay_factor: 0.5 is not between 1 and 1000
}

// One round of a poller: what is ready is handled in a transaction that its
// verdicts commit with.
func ExampleStore() {
	round := func(ctx context.Context, pool *pgxpool.Pool, queue int32, handle func(pgx.Tx, *delayq.Item) error) error {
		store, err := delayq.New(delayq.Config{})
		if err != nil {
			return err
		}
		// A savepoint for each item: more than 64 in a transaction would be slow.
		runs, err := store.Lease(ctx, pool, queue, delayq.LeaseOptions{Items: 50})
		if err != nil {
			return err
		}
		var policy delayq.Policy
		for _, run := range runs {
			verdicts := make([]delayq.Verdict, len(run.Items)) // all Untouched
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				for i, item := range run.Items {
					err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return handle(tx, item) })
					if err == nil {
						verdicts[i] = delayq.Verdict{Outcome: delayq.Done}
						continue
					}
					delay, again := policy.Next(item.Attempts+1, item.Age, 0, nil)
					if !again {
						verdicts[i] = delayq.Verdict{Outcome: delayq.Dead} // and dlq.Store.Put here
						continue
					}
					verdicts[i] = delayq.Verdict{Outcome: delayq.Retry, After: delay, Message: err.Error()}
					break // what is behind it keeps its place
				}
				var last pgx.Batch
				if err := store.Finish(&last, queue, []delayq.Finished{{Run: run, Verdicts: verdicts}}); err != nil {
					return err
				}
				return tx.SendBatch(ctx, &last).Close()
			})
			if err != nil {
				log.Print(err) // the lease ends by itself, or Release ends it at once
			}
		}
		return nil
	}
	_ = round
}
