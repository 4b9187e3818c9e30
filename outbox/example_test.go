package outbox_test

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/outbox"
)

// In a handler the context carries the cause, so a name is all that an effect
// needs: its id is the same whenever the handler runs again.
func ExampleAdd() {
	handle := func(ctx context.Context, tx pgx.Tx, order string) error {
		if _, err := tx.Exec(ctx, `update orders set confirmed = true where id = $1`, order); err != nil {
			return err
		}
		return outbox.Add(ctx, tx, outbox.Effect{
			Name:  "order-confirmed",
			Topic: "confirmations",
			Key:   []byte(order), // records of one order keep their order
			Value: []byte(`{"confirmed":true}`),
		})
	}
	_ = handle
}

// An application without claimq's consumer gives its effects ids of its own, which
// must be the same when it tries again.
func ExampleOutbox_Add() {
	box, err := outbox.New(outbox.Config{MaxBytes: 64 << 10})
	if err != nil {
		panic(err)
	}
	confirm := func(ctx context.Context, pool *pgxpool.Pool, request uuid.UUID, order string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			// Locking the aggregate before adding is what puts its effects in order.
			if _, err := tx.Exec(ctx, `update orders set confirmed = true where id = $1`, order); err != nil {
				return err
			}
			return box.Add(ctx, tx, outbox.Effect{ID: request, Topic: "confirmations", Key: []byte(order)})
		})
	}
	_ = confirm
}

// An effect's id depends on the claim, its name and its step, and on nothing else.
func ExampleCause_EffectID() {
	cause := outbox.Cause{Claim: uuid.MustParse("0b3a4a5e-9e0e-4d0e-8a55-111111111111")}
	fmt.Println(cause.EffectID("order-confirmed", 0))
	fmt.Println(cause.EffectID("order-confirmed", 1))
	// Output:
	// 0e3aed16-ebf0-58b5-ad65-192852a7f955
	// 44f5925a-6b5b-5b7b-8266-349272e50b3f
}

// A relay runs beside the consumer or in a process of its own.
func ExampleNewRelay() {
	run := func(ctx context.Context, pool *pgxpool.Pool) error {
		relay, err := outbox.NewRelay(pool, []kgo.Opt{kgo.SeedBrokers("localhost:9092")}, outbox.RelayConfig{})
		if err != nil {
			return err
		}
		if err := relay.Start(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		<-ctx.Done()
		return relay.Stop(context.WithoutCancel(ctx))
	}
	_ = run
}
