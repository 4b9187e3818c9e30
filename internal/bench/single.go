package bench

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/consumer"
	"github.com/claimq/claimq/dedup"
)

// Single times n messages one by one through an idle queue: from the call that
// produces one to the commit of its row.
func Single(ctx context.Context, pool *pgxpool.Pool, kafka []kgo.Opt, schema string, n int) ([]time.Duration, error) {
	topic := "claimq-bench-single-" + uuid.NewString()[:8]
	if err := Preload(ctx, kafka, topic, 1, nil); err != nil {
		return nil, err
	}
	defer deleteTopic(ctx, kafka, topic)
	if err := makeOrders(ctx, pool, schema); err != nil {
		return nil, err
	}
	h, err := handler(SQL, schema)
	if err != nil {
		return nil, err
	}
	committed := make(chan time.Time, n)
	q, err := consumer.New(pool, kafka, consumer.Config{
		Queue: topic, Topics: []string{topic}, Schema: schema,
		Rules:     dedup.Rules{ID: []dedup.Source{dedup.Header(IDHeader)}},
		Handler:   h,
		Start:     consumer.StartEarliest(),
		Logger:    slog.New(slog.DiscardHandler),
		Committed: func(int) { committed <- time.Now() },
	})
	if err != nil {
		return nil, err
	}
	if err := q.Start(ctx); err != nil {
		return nil, err
	}
	defer stopQueue(ctx, q)
	client, err := kgo.NewClient(append(kafka, kgo.ProducerLinger(0))...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	defer client.Close()
	const warm = 20 // connections, plans, caches
	ways := make([]time.Duration, 0, n)
	for i := range n + warm {
		started := time.Now()
		client.Produce(ctx, &kgo.Record{
			Topic: topic, Value: []byte(`{"single":true}`),
			Headers: []kgo.RecordHeader{{Key: IDHeader, Value: fmt.Appendf(nil, "single-%d", i)}},
		}, nil)
		select {
		case at := <-committed:
			if i >= warm {
				ways = append(ways, at.Sub(started))
			}
		case <-q.Done():
			return nil, fmt.Errorf("the queue ended: %w", q.Err())
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return ways, nil
}
