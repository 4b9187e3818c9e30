package outbox

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/kafkatest"
	"github.com/claimq/claimq/internal/pgtest"
)

const benchValue = 200

// benchRows are effects as the consumer makes them: one a message, each with a
// cause of its own.
func benchRows(n int) []Caused {
	rows := make([]Caused, n)
	for i := range rows {
		rows[i] = Caused{
			Cause:  Cause{Claim: uuid.New(), CorrelationID: uuid.NewString(), CausationID: uuid.NewString()},
			Effect: Effect{Name: "order-confirmed", Topic: "t", Key: fmt.Append(nil, "key", i), Value: make([]byte, benchValue)},
		}
	}
	return rows
}

// BenchmarkAdd is the price of an effect: a transaction of 100 business rows, bare
// and with an effect for each. "plain" is the effect as a row of a table that has
// nothing but its columns and one index.
func BenchmarkAdd(b *testing.B) {
	const batch = 100
	const business = `insert into claimq.bench_orders select * from unnest($1::uuid[], $2::bytea[])`
	const plain = `
insert into claimq.bench_plain (id, topic, key, value, correlation, causation)
select * from unnest($1::uuid[], $2::text[], $3::bytea[], $4::bytea[], $5::text[], $6::text[])`
	ctx := b.Context()
	s := newStage(b, 1, "t")
	s.exec(`create table claimq.bench_orders (id uuid primary key, value bytea not null)`)
	s.exec(`create table claimq.bench_plain (seq bigint generated always as identity primary key, id uuid not null, topic text not null,
	                                         key bytea, value bytea, correlation text, causation text, created_at timestamptz not null default now())`)
	for _, kind := range []string{"business only", "with plain row", "with effect"} {
		b.Run(kind, func(b *testing.B) {
			for range b.N {
				rows := benchRows(batch)
				var flight pgx.Batch
				ids, values, keys := make([]pgtype.UUID, batch), make([][]byte, batch), make([][]byte, batch)
				topics, correlations, causations := make([]string, batch), make([]string, batch), make([]string, batch)
				for i := range rows {
					ids[i] = pgtype.UUID{Bytes: uuid.New(), Valid: true}
					values[i], keys[i], topics[i] = rows[i].Effect.Value, rows[i].Effect.Key, "t"
					correlations[i], causations[i] = rows[i].Cause.CorrelationID, rows[i].Cause.CausationID
				}
				flight.Queue(s.sql(business), ids, values)
				switch kind {
				case "with plain row":
					flight.Queue(s.sql(plain), ids, topics, keys, values, correlations, causations)
				case "with effect":
					if err := s.outbox.QueueAll(&flight, rows); err != nil {
						b.Fatal(err)
					}
				}
				err := pgx.BeginFunc(ctx, s.db.Pool, func(tx pgx.Tx) error { return tx.SendBatch(ctx, &flight).Close() })
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

func fill(b *testing.B, s *stage, topic string, n int) {
	b.Helper()
	s.exec(`insert into claimq.outbox (bucket, id, topic, key, value)
	        select claimq.outbox_bucket(k, null), gen_random_uuid(), $3, k, decode(repeat('61', $2), 'hex')
	          from (select convert_to('key' || i % 1000, 'UTF8') as k from generate_series(1, $1) i) x`, n, benchValue, topic)
}

// BenchmarkRelay drains 50,000 records, into an in-process Kafka; the bare sides
// are the same records read by one statement, and produced without a database.
func BenchmarkRelay(b *testing.B) {
	const n = 50_000
	b.Run("bare read", func(b *testing.B) {
		s := newStage(b, 3, "t")
		fill(b, s, "t", n)
		b.ResetTimer()
		for range b.N {
			rows, err := s.db.Pool.Query(b.Context(), s.sql(`select id, topic, key, value, header_keys, header_values from claimq.outbox order by seq`))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (o outRow, err error) {
				err = r.Scan(&o.id, &o.topic, &o.key, &o.value, &o.headerKeys, &o.headerValues)
				return o, err
			}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "records/s")
	})
	b.Run("bare produce", func(b *testing.B) {
		s := newStage(b, 3, "t")
		client, err := kgo.NewClient(s.options()...)
		if err != nil {
			b.Fatal(err)
		}
		defer client.Close()
		b.ResetTimer()
		for range b.N {
			for i := range n {
				client.Produce(b.Context(), &kgo.Record{
					Topic: "t", Key: fmt.Append(nil, "key", i%1000), Value: make([]byte, benchValue),
					Headers: []kgo.RecordHeader{{Key: HeaderID, Value: []byte(uuid.NewString())}},
				}, nil)
			}
			if err := client.Flush(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "records/s")
	})
	b.Run("relay", func(b *testing.B) {
		s := newStage(b, 3, "t")
		r := s.relay(RelayConfig{})
		for range b.N {
			b.StopTimer()
			fill(b, s, "t", n)
			b.StartTimer()
			for sent := 0; sent < n; {
				did, err := r.runOnce(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				sent += did.published
			}
		}
		b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "records/s")
	})
}

// BenchmarkRealKafka is BenchmarkRelay's two Kafka sides against the shared broker.
func BenchmarkRealKafka(b *testing.B) {
	const n = 50_000
	b.Run("bare produce", func(b *testing.B) {
		topic := kafkatest.Topic(b, 3)
		client := kafkatest.Client(b, kafkatest.Brokers(b))
		b.ResetTimer()
		for range b.N {
			for i := range n {
				client.Produce(b.Context(), &kgo.Record{
					Topic: topic, Key: fmt.Append(nil, "key", i%1000), Value: make([]byte, benchValue),
					Headers: []kgo.RecordHeader{{Key: HeaderID, Value: []byte(uuid.NewString())}},
				}, nil)
			}
			if err := client.Flush(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "records/s")
	})
	b.Run("relay", func(b *testing.B) {
		topic := kafkatest.Topic(b, 3)
		db := pgtest.New(b)
		s := &stage{t: b, db: db, outbox: newOutbox(b, db, 0)}
		r, err := NewRelay(db.Pool, []kgo.Opt{kgo.SeedBrokers(kafkatest.Brokers(b)...)}, RelayConfig{Schema: db.Schema})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(r.slices[0].discard)
		for range b.N {
			b.StopTimer()
			fill(b, s, topic, n)
			b.StartTimer()
			for sent := 0; sent < n; {
				did, err := r.runOnce(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				sent += did.published
			}
		}
		b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "records/s")
	})
}

// BenchmarkLatency is the way from COMMIT to the topic of one effect at a time,
// with the wake-up that a consumer gives and with polling only.
func BenchmarkLatency(b *testing.B) {
	for name, wake := range map[string]bool{"with Wake": true, "polling": false} {
		b.Run(name, func(b *testing.B) {
			s := newStage(b, 1, "t")
			reader, r := s.reader("t"), s.relay(RelayConfig{})
			if err := r.Start(b.Context()); err != nil {
				b.Fatal(err)
			}
			s.add("t", "k", "warm")
			reader.untilCount(b, 1)
			var sum time.Duration
			b.ResetTimer()
			for i := range b.N {
				inTx(b, s.db, func(ctx context.Context, tx pgx.Tx) error { return s.outbox.Add(ctx, tx, keyed("t", "k", "v")) })
				began := time.Now()
				if wake {
					r.Wake()
				}
				reader.untilCount(b, i+2)
				sum += time.Since(began)
			}
			b.ReportMetric(sum.Seconds()*1000/float64(b.N), "ms/effect")
		})
	}
}
