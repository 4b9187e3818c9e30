package consumer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/outbox"
)

// A queue from end to end: it stops gracefully when the process is interrupted.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	queue, err := consumer.New(pool, []kgo.Opt{kgo.SeedBrokers("localhost:9092")}, consumer.Config{
		Queue:  "orders",
		Topics: []string{"orders"},
		Rules:  dedup.Rules{ID: []dedup.Source{dedup.Header("correlation-id")}},
		Handler: consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
			_, err := tx.Exec(ctx, `insert into orders (id, body) values ($1, $2)`, m.Identity.ID, m.Record.Value)
			return err
		}),
		DeadLetterTopic: "orders-dead",
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := queue.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// One message at a time, with reads and writes: the kind to start with.
func ExampleOne() {
	handler := consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
		var order struct {
			SKU string `json:"sku"`
			N   int    `json:"n"`
		}
		if err := json.Unmarshal(m.Record.Value, &order); err != nil {
			return consumer.Permanent(err) // no attempt can cure it
		}
		var left int
		err := tx.QueryRow(ctx, `update stock set n = n - $2 where sku = $1 returning n`, order.SKU, order.N).Scan(&left)
		if err != nil {
			return err // another attempt, after a delay
		}
		if left < 10 {
			// Published when the transaction has committed, and never if it rolls back.
			return m.Emit(outbox.Effect{Name: "stock-low", Topic: "stock-low", Key: []byte(order.SKU)})
		}
		return nil
	})
	fmt.Println(check(handler))
	// Output: <nil>
}

// Writes only: the statements of the whole batch go to the server in one flight, and
// a statement that fails names its message.
func ExamplePipelined() {
	handler := consumer.Pipelined(func(_ context.Context, b *pgx.Batch, m *consumer.Message) error {
		b.Queue(`insert into orders (id, body) values ($1, $2)`, m.Identity.ID, m.Record.Value)
		return nil
	})
	fmt.Println(check(handler))
	// Output: <nil>
}

// Many messages in one statement: the fastest kind in Go.
func ExampleBatch() {
	handler := consumer.Batch(func(ctx context.Context, tx pgx.Tx, ms []*consumer.Message) error {
		ids, bodies := make([]string, len(ms)), make([]string, len(ms))
		for i, m := range ms {
			if !json.Valid(m.Record.Value) {
				return consumer.FailedAt(i, consumer.Permanent(fmt.Errorf("order %s is not JSON", m.Identity.ID)))
			}
			ids[i], bodies[i] = m.Identity.ID, string(m.Record.Value)
		}
		_, err := tx.Exec(ctx, `insert into orders (id, body) select * from unnest($1::text[], $2::jsonb[])`, ids, bodies)
		return err
	})
	fmt.Println(check(handler))
	// Output: <nil>
}

// Routes send messages of one queue to handlers of their own; the order per key
// holds across them. What no route takes is skipped and writes no claim.
func ExampleRoute() {
	created := consumer.One(func(context.Context, pgx.Tx, *consumer.Message) error { return nil })
	cancelled := consumer.One(func(context.Context, pgx.Tx, *consumer.Message) error { return nil })
	config := consumer.Config{
		Queue: "orders", Topics: []string{"orders"},
		Rules: dedup.Rules{ID: []dedup.Source{dedup.Header("id")}},
		Routes: []consumer.Route{
			{Name: "created", Header: "type", Value: "order.created", Handler: created},
			{Name: "cancelled", Header: "type", Value: "order.cancelled", Handler: cancelled},
		},
	}
	fmt.Println(config.Validate())
	// Output: <nil>
}

// Middleware decodes once for the handlers behind it, and names the message that it
// cannot decode.
func ExampleMiddleware() {
	type order struct{ ID, Customer string }
	decode := func(ctx context.Context, ms []*consumer.Message, next func(context.Context) error) error {
		for i, m := range ms {
			var o order
			if err := json.Unmarshal(m.Record.Value, &o); err != nil {
				return consumer.FailedAt(i, consumer.Permanent(err))
			}
			m.Decoded = o
		}
		return next(ctx)
	}
	config := consumer.Config{
		Queue: "orders", Topics: []string{"orders"},
		Rules:      dedup.Rules{ID: []dedup.Source{dedup.Header("id")}},
		Middleware: []consumer.Middleware{decode},
		Handler: consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
			_, err := tx.Exec(ctx, `insert into orders (id, customer) values ($1, $2)`, m.Identity.ID, m.Decoded.(order).Customer)
			return err
		}),
	}
	fmt.Println(config.Validate())
	// Output: <nil>
}

// What cannot work is said by field, all of it at once.
func ExampleConfig_Validate() {
	err := consumer.Config{Queue: "orders", Topics: []string{"orders"}, DeadLetterTopic: "orders"}.Validate()
	fmt.Println(err)
	// Output:
	// queue "orders": DeadLetterTopic: "orders" is also read: a dead letter would come back for ever; name another topic
	// queue "orders": Rules.ID: no id rule: say where a message's id is found, or set Claims to ClaimNone for a handler that is idempotent by itself
	// queue "orders": Handler: there is neither a handler nor a route
}

func check(handler consumer.Handler) error {
	return consumer.Config{
		Queue: "orders", Topics: []string{"orders"},
		Rules:   dedup.Rules{ID: []dedup.Source{dedup.Header("id")}},
		Handler: handler,
	}.Validate()
}
