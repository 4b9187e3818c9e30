package bench

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/internal/pgarray"
)

// A Figure is one contestant's run.
type Figure struct {
	Name string `json:"name"`
	// PerSecond is the rate over the second half of the messages; Whole over all.
	PerSecond, Whole float64
	// Rows is how many business rows were made.
	Rows int64
}

// meter notes when messages are done, to tell the rate of the second half.
type meter struct {
	total     int64
	done      atomic.Int64
	started   time.Time
	once      sync.Once
	halfAt    time.Time
	halfDone  int64
	ended     time.Time
	completed chan struct{}
	finish    sync.Once
}

func newMeter(total int) *meter {
	return &meter{total: int64(total), started: time.Now(), completed: make(chan struct{})}
}

func (m *meter) add(n int) {
	done := m.done.Add(int64(n))
	if done >= m.total/2 {
		m.once.Do(func() { m.halfAt, m.halfDone = time.Now(), done })
	}
	if done >= m.total {
		m.finish.Do(func() { m.ended = time.Now(); close(m.completed) })
	}
}

func (m *meter) figure(name string, rows int64) Figure {
	return Figure{
		Name: name, Rows: rows,
		PerSecond: float64(m.total-m.halfDone) / m.ended.Sub(m.halfAt).Seconds(),
		Whole:     float64(m.total) / m.ended.Sub(m.started).Seconds(),
	}
}

const limitName = "limit-pg"

// limitTables makes what the limit writes: the same columns and indexes as a leaf
// of claimq's claims, and the business table.
const limitTables = `
drop table if exists %[1]s.limit_claims, %[1]s.limit_orders;
create table %[1]s.limit_claims (like %[1]s.claims_0 including all);
create table %[1]s.limit_orders (id text not null, body jsonb not null)`

const limitClaim = `
insert into %s.limit_claims ("offset", record_at, queue, topic, partition, segment, fingerprint_version, id, fingerprint, shown)
select u.at_offset, now(), 1, 1, u.partition, 0, 1, u.id, u.fingerprint, u.shown
  from unnest($1::uuid[], $2::uuid[], $3::int4[], $4::int8[], $5::text[]) as u (id, fingerprint, partition, at_offset, shown)
    on conflict (id) do nothing
returning id`

const limitInsert = `insert into %s.limit_orders (id, body) select u.id, u.body from unnest($1::text[], $2::jsonb[]) as u (id, body)`

// Limit makes the rows with bare batched SQL and nothing else: no Kafka, no order,
// no position, no failures. It is what the database gives.
func Limit(ctx context.Context, pool *pgxpool.Pool, schema string, records []*kgo.Record, connections, batch int) (Figure, error) {
	if _, err := pool.Exec(ctx, fmt.Sprintf(limitTables, schema)); err != nil {
		return Figure{}, fmt.Errorf("make the limit's tables: %w", err)
	}
	m := newMeter(len(records))
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, connections)
	for range connections {
		wg.Go(func() {
			for {
				from := int(next.Add(int64(batch))) - batch
				if from >= len(records) {
					return
				}
				part := records[from:min(from+batch, len(records))]
				if err := limitBatch(ctx, pool, schema, part, from); err != nil {
					errs <- err
					return
				}
				m.add(len(part))
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return Figure{}, err
	default:
	}
	var rows int64
	if err := pool.QueryRow(ctx, fmt.Sprintf("select count(*) from %s.limit_orders", schema)).Scan(&rows); err != nil {
		return Figure{}, fmt.Errorf("count the rows: %w", err)
	}
	return m.figure(limitName, rows), nil
}

func limitBatch(ctx context.Context, pool *pgxpool.Pool, schema string, records []*kgo.Record, from int) error {
	n := len(records)
	// Sorted, or two connections with a repeat between them deadlock.
	records = slices.Clone(records)
	slices.SortFunc(records, func(a, b *kgo.Record) int { return bytes.Compare(digestOf(a), digestOf(b)) })
	byID := make(map[uuid.UUID]int, n)
	ids, prints := make([]uuid.UUID, 0, n), make([]uuid.UUID, 0, n)
	partitions, offsets, shown := make([]int32, 0, n), make([]int64, 0, n), make([]string, 0, n)
	for i, r := range records {
		identity := dedup.Identity{Queue: "limit", ID: string(r.Headers[0].Value)}
		id := identity.Digest()
		if _, seen := byID[id]; seen {
			continue
		}
		byID[id] = i
		sum, _ := dedup.Raw().Sum(r.Value)
		ids, prints, shown = append(ids, id), append(prints, sum), append(shown, identity.ID)
		partitions, offsets = append(partitions, r.Partition), append(offsets, int64(from+i))
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, fmt.Sprintf(limitClaim, schema),
			pgarray.UUIDs(ids), pgarray.UUIDs(prints), pgarray.Int4s(partitions), pgarray.Int8s(offsets), pgarray.Texts(shown))
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		names, bodies := make([]string, 0, n), make([]string, 0, n)
		var id pgtype.UUID
		_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
			r := records[byID[id.Bytes]]
			names, bodies = append(names, string(r.Headers[0].Value)), append(bodies, string(r.Value))
			return nil
		})
		if err != nil {
			return fmt.Errorf("claim: %w", err)
		}
		if _, err := tx.Exec(ctx, fmt.Sprintf(limitInsert, schema), pgarray.Texts(names), pgarray.Texts(bodies)); err != nil {
			return fmt.Errorf("insert: %w", err)
		}
		return nil
	})
}

func digestOf(r *kgo.Record) []byte {
	digest := dedup.Identity{Queue: "limit", ID: string(r.Headers[0].Value)}.Digest()
	return digest[:]
}
