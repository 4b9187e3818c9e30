package bench

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dedup"
)

// A Kind names one of the handler kinds.
type Kind string

// The handler kinds that a benchmark can run.
const (
	SQL       Kind = "sql"
	Batch     Kind = "batch"
	Pipelined Kind = "pipelined"
	One       Kind = "one"
)

// Kinds are all of them, fastest first.
var Kinds = []Kind{SQL, Batch, Pipelined, One}

// handler inserts one business row a message, and tells the meter.
func handler(kind Kind, schema string) (consumer.Handler, error) {
	each := fmt.Sprintf(`insert into %s.bench_orders (id, body) values ($1, $2)`, schema)
	many := fmt.Sprintf(`insert into %s.bench_orders (id, body) select u.id, u.body from unnest($1::text[], $2::jsonb[]) as u (id, body)`, schema)
	switch kind {
	case SQL:
		return consumer.SQL(consumer.SQLStatement{
			Statement: fmt.Sprintf(`insert into %s.bench_orders (id, body) select m.id, m.body from unnest(@ids, @values) as m (id, body)`, schema),
		})
	case Batch:
		return consumer.Batch(func(ctx context.Context, tx pgx.Tx, ms []*consumer.Message) error {
			ids, bodies := make([]string, len(ms)), make([]string, len(ms))
			for i, m := range ms {
				ids[i], bodies[i] = m.Identity.ID, string(m.Record.Value)
			}
			_, err := tx.Exec(ctx, many, ids, bodies)
			return err
		}), nil
	case Pipelined:
		return consumer.Pipelined(func(_ context.Context, b *pgx.Batch, m *consumer.Message) error {
			b.Queue(each, m.Identity.ID, m.Record.Value)
			return nil
		}), nil
	case One:
		return consumer.One(func(ctx context.Context, tx pgx.Tx, m *consumer.Message) error {
			_, err := tx.Exec(ctx, each, m.Identity.ID, m.Record.Value)
			return err
		}), nil
	}
	return consumer.Handler{}, fmt.Errorf("handler kind %q: the kinds are sql, batch, pipelined, one", kind)
}

// A Drain is one run of a queue over a preloaded topic.
type Drain struct {
	Schema, Topic, Queue string
	Kind                 Kind
	Total, Distinct      int
	Lanes, Batch         int
}

// Queue drains a preloaded topic with a claimq queue and checks that each distinct
// id has made one row.
func Queue(ctx context.Context, pool *pgxpool.Pool, kafka []kgo.Opt, d Drain) (Figure, error) {
	if err := makeOrders(ctx, pool, d.Schema); err != nil {
		return Figure{}, err
	}
	h, err := handler(d.Kind, d.Schema)
	if err != nil {
		return Figure{}, err
	}
	m := newMeter(d.Total)
	q, err := consumer.New(pool, kafka, consumer.Config{
		Queue: d.Queue, Topics: []string{d.Topic}, Schema: d.Schema,
		Rules:       dedup.Rules{ID: []dedup.Source{dedup.Header(IDHeader)}},
		Handler:     h,
		Start:       consumer.StartEarliest(),
		Concurrency: d.Lanes, Batch: consumer.BatchLimits{Messages: d.Batch},
		Logger:    slog.New(slog.DiscardHandler),
		Committed: m.add,
	})
	if err != nil {
		return Figure{}, err
	}
	if err := q.Start(ctx); err != nil {
		return Figure{}, err
	}
	defer stopQueue(ctx, q)
	select {
	case <-m.completed:
	case <-q.Done():
		return Figure{}, fmt.Errorf("the queue ended: %w", q.Err())
	case <-ctx.Done():
		return Figure{}, ctx.Err()
	}
	var rows, ids int64
	if err := pool.QueryRow(ctx, fmt.Sprintf("select count(*), count(distinct id) from %s.bench_orders", d.Schema)).Scan(&rows, &ids); err != nil {
		return Figure{}, fmt.Errorf("count the rows: %w", err)
	}
	if rows != ids || ids != int64(d.Distinct) {
		return Figure{}, fmt.Errorf("%s: %d rows for %d ids, and %d were sent: the result is not exact", figureName(d.Kind), rows, ids, d.Distinct)
	}
	return m.figure(figureName(d.Kind), rows), nil
}

func figureName(kind Kind) string { return "claimq " + string(kind) }

func makeOrders(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	_, err := pool.Exec(ctx, fmt.Sprintf(`drop table if exists %[1]s.bench_orders; create table %[1]s.bench_orders (id text not null, body jsonb not null)`, schema))
	if err != nil {
		return fmt.Errorf("make the business table: %w", err)
	}
	return nil
}

// stopQueue stops a queue whose work is done: that it stops late loses nothing.
func stopQueue(ctx context.Context, q *consumer.Consumer) {
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	_ = q.Stop(stopping)
}
