package consumer_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dedup"
)

// A handler without Go: one statement over the batch's values as arrays, the
// fastest kind, and a record on another topic for each message.
func ExampleSQL() {
	handler, err := consumer.SQL(consumer.SQLStatement{
		Statement: `
			insert into orders (id, customer, total)
			select m.id, m.body->>'customer', (m.body->>'total')::numeric
			  from unnest(@ids, @values) as m (id, body)`,
		Effects: []consumer.SQLEffect{{Name: "order-stored", Topic: "orders.stored", Key: dedup.JSON("customer")}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	config := consumer.Config{
		Queue: "orders", Topics: []string{"orders"},
		Rules:   dedup.Rules{ID: []dedup.Source{dedup.Header("id")}},
		Handler: handler,
	}
	fmt.Println(config.Validate())
	// Output: <nil>
}

// A statement for one message at a time: a mistake in it names its message, and a
// column named result is what repeats of the message are answered with.
func ExampleSQL_each() {
	_, err := consumer.SQL(consumer.SQLStatement{
		Statement: `insert into orders (id, body) values (@id, @value) returning id as result`,
		Each:      true,
	})
	fmt.Println(err)
	// Output: <nil>
}

// What a statement names is checked when the handler is made.
func ExampleSQLError() {
	_, err := consumer.SQL(consumer.SQLStatement{Statement: "insert into orders (id, body)\nselect unnest(@ids), @value"})
	fmt.Println(err)
	// Output: SQL statement, line 2, column 22: @value does not exist in a statement for a batch: it is @values here
}

// Tables, columns and types are checked by the database, before the first message.
func ExampleSQLStatement_Check() {
	check := func(ctx context.Context, conn *pgx.Conn) error {
		return consumer.SQLStatement{
			Statement: `insert into orders (id, body) select * from unnest(@ids, @values)`,
		}.Check(ctx, conn)
	}
	_ = check
}
