package dedup_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/dedup"
)

// Claim alone, without Kafka: an HTTP handler, a job, anything with a transaction.
func ExampleClaim() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()

	body := []byte(`{"amount": 120}`)
	sum, version := dedup.Raw().Sum(body)
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		outcomes, err := dedup.Claim(ctx, tx, dedup.Request{Identity: dedup.Identity{
			Queue: "payments", ID: "idempotency-key-of-the-request", Fingerprint: sum, FingerprintVersion: version,
		}})
		if err != nil {
			return err
		}
		switch outcomes[0].Kind {
		case dedup.Claimed:
			_, err := tx.Exec(ctx, `insert into payments (amount) values (120)`)
			return err // the claim and the payment commit together, or neither does
		case dedup.Duplicate:
			fmt.Println("done before:", string(outcomes[0].Result))
		case dedup.Conflict:
			fmt.Println("the key was used for another payment")
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}
