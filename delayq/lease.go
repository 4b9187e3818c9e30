package delayq

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/claimq/claimq/internal/rowrecord"
)

// The defaults of LeaseOptions.
const (
	DefaultLeaseKeys  = 100
	DefaultLeaseItems = 500
	DefaultLeaseBytes = 16 << 20
	DefaultLeaseFor   = 45 * time.Second
)

// LeaseOptions bound what one Lease takes. Zero fields have their defaults.
type LeaseOptions struct {
	// Keys is how many order keys are taken at most. More spread the work of one
	// lease wider; it never exceeds Items.
	Keys int
	// Items is how many items are handed out at most, over all keys.
	Items int
	// Bytes bounds the keys, values and headers handed out. One item is always,
	// however large it is.
	Bytes int64
	// For is how long the lease lasts unless it is renewed. It must be longer than
	// the time between two renewals by far: what a lease is lost by is counted as
	// a crash.
	For time.Duration
}

// Run is the head of one order key's items, handed out to be handled in order. An
// item that is not ordered is a run by itself, under its own id.
// It belongs to its holder: it may be passed between goroutines, but not used by
// two at once.
type Run struct {
	Queue    int32
	OrderKey uuid.UUID
	// Token proves the lease. It is random: a failover that loses the newest
	// leases could hand a counter's values out twice.
	Token uuid.UUID
	// Items are in order; there is at least one. Their Starts include this one.
	Items []*Item
}

// lockReadySQL takes keys that are ready, oldest first, and skips those that
// others have locked. It reads delayed_keys_ready from its low end, $2 rows of it:
// never an item, so neither a million future items nor a million items behind one
// head are looked at. A row that another poller has leased in the meantime is
// judged again after its lock is given, by its new ready_at, and left alone.
const lockReadySQL = `
with ready as materialized (
     select k.queue, k.order_key
       from claimq.delayed_keys k
      where k.queue = $1 and k.ready_at <= now()
      order by k.ready_at
      limit $2
        for update skip locked)
update claimq.delayed_keys k
   set lease_token = gen_random_uuid(), ready_at = clock_timestamp() + $3::interval
  from ready r
 where k.queue = r.queue and k.order_key = r.order_key
returning k.order_key, k.lease_token`

// joinScheduledSQL moves scheduled items that are due to the end of their order key.
const joinScheduledSQL = `select claimq.join_scheduled($1, $2)`

// handOutSQL records a start for the head run of each leased key: its items in
// order for as long as they are due, $4 of them at most, and over all keys as many
// as $5 bytes allow. The cut goes through the keys breadth first, so what is left
// of each key is a prefix of its order.
//
// It is a statement of its own behind the keys' locks, so it sees every item whose
// storing held a lock that they waited for. An item that still has a token was
// handed out under a lease that ended without a verdict: that was a crash.
const handOutSQL = `
with due as (
     select i.id, l.token, row_number() over (order by i.nth, l.n) as place,
            sum(i.size) over (order by i.nth, l.n) as bytes
       from unnest($2::uuid[], $3::uuid[]) with ordinality as l (order_key, token, n)
      cross join lateral (
            select f.id, f.size, row_number() over w as nth, bool_and(f.due_at <= now()) over w as ready
              from (select d.id, d.order_pos, d.due_at,
                           coalesce(octet_length(d.record_key), 0) + coalesce(octet_length(d.record_value), 0)
                           + pg_column_size(d.header_keys) + pg_column_size(d.header_values)::bigint as size
                      from claimq.delayed d
                     where d.queue = $1 and d.order_key = l.order_key
                     order by d.order_pos
                     limit $4::bigint) f
            window w as (order by f.order_pos)) i
      where i.ready)
update claimq.delayed d
   set starts = d.starts + 1,
       crashes = d.crashes + case when d.lease_token is null then 0 else 1 end,
       lease_token = due.token
  from due
 where d.id = due.id and (due.place = 1 or due.bytes <= $5::bigint)
returning ` + itemColumns

// dropIdleSQL gives back the leased keys of which nothing was handed out: the
// bytes did not suffice, or the head was moved.
const dropIdleSQL = `
select claimq.settle_keys($1, array_agg(l.order_key), array_agg(l.token))
  from unnest($2::uuid[], $3::uuid[]) as l (order_key, token)
 where l.token is distinct from (
       select d.lease_token from claimq.delayed d
        where d.queue = $1 and d.order_key = l.order_key
        order by d.order_pos limit 1)
having count(*) > 0`

// itemColumns is what scanItem reads.
const itemColumns = `
       d.id, d.order_pos, d.queue, d.kind, d.order_key, d.joins, d.due_at,
       d.starts, d.attempts, d.crashes, d.interrupted, coalesce(d.interrupted_why, ''),
       d.claim, d.fingerprint, d.fingerprint_version, d.tenant, d.operation, coalesce(d.shown, ''),
       d.topic, d.partition, d."offset", d.leader_epoch,
       d.record_topic, d.record_key, d.record_value, d.header_keys, d.header_values, d.record_at, d.record_attributes,
       d.first_seen, (extract(epoch from clock_timestamp() - d.stored_at) * 1000000)::bigint, coalesce(d.error_class, ''), coalesce(d.error_message, ''),
       d.replay, d.replay_count`

// leaseSettings are the transaction's own: a start that is handed out has to be
// durable.
const leaseSettings = `
select set_config('synchronous_commit', case current_setting('synchronous_commit')
                  when 'off' then 'on' else current_setting('synchronous_commit') end, true)`

// Lease takes ready keys of a queue and hands out their runs. The starts are
// committed before it returns, so a crash after it is seen: the lease ends, the
// keys are ready again, and the next Lease counts a crash, no attempt, for each
// item that had no verdict. No ready key: no runs and no error.
//
// When the COMMIT's outcome is unknown an error comes back; if it was done, the
// lease ends unused and one crash is counted that was none.
//
// Any number of workers may lease at once: a key is with one of them at a time.
func (s *Store) Lease(ctx context.Context, db DB, queue int32, o LeaseOptions) ([]*Run, error) {
	o = o.withDefaults()
	var runs []*Run
	err := pgx.BeginTxFunc(ctx, db, readCommitted, func(tx pgx.Tx) error {
		keys, tokens, err := s.lockReady(ctx, tx, queue, o)
		if err != nil || len(keys) == 0 {
			return err
		}
		runs, err = s.handOut(ctx, tx, queue, keys, tokens, o)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("lease delayed items of queue %d: %w", queue, err)
	}
	return runs, nil
}

func (s *Store) lockReady(ctx context.Context, tx pgx.Tx, queue int32, o LeaseOptions) (keys, tokens []uuid.UUID, err error) {
	var b pgx.Batch
	b.Queue(protectPlans)
	b.Queue(leaseSettings)
	b.Queue(s.sql.lockReady, queue, o.Keys, interval(o.For)).Query(func(rows pgx.Rows) error {
		var key, token uuid.UUID
		_, err := pgx.ForEachRow(rows, []any{&key, &token}, func() error {
			keys, tokens = append(keys, key), append(tokens, token)
			return nil
		})
		return err
	})
	err = tx.SendBatch(ctx, &b).Close()
	return keys, tokens, err
}

func (s *Store) handOut(ctx context.Context, tx pgx.Tx, queue int32, keys, tokens []uuid.UUID, o LeaseOptions) ([]*Run, error) {
	byKey := make(map[uuid.UUID]*Run, len(keys))
	var b pgx.Batch
	b.Queue(s.sql.joinScheduled, queue, keys)
	each := max(o.Items/len(keys), 1)
	b.Queue(s.sql.handOut, queue, keys, tokens, each, o.Bytes).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			item, key, err := scanItem(rows)
			if err != nil {
				return err
			}
			run := byKey[key]
			if run == nil {
				run = &Run{Queue: queue, OrderKey: key}
				byKey[key] = run
			}
			run.Items = append(run.Items, item)
		}
		return rows.Err()
	})
	b.Queue(s.sql.dropIdle, queue, keys, tokens)
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return nil, err
	}
	runs := make([]*Run, 0, len(byKey))
	for i, key := range keys {
		if run := byKey[key]; run != nil {
			run.Token = tokens[i]
			slices.SortFunc(run.Items, func(a, b *Item) int { return cmp.Compare(a.OrderPos, b.OrderPos) })
			runs = append(runs, run)
		}
	}
	return runs, nil
}

func (o LeaseOptions) withDefaults() LeaseOptions {
	if o.Items <= 0 {
		o.Items = DefaultLeaseItems
	}
	if o.Keys <= 0 {
		o.Keys = DefaultLeaseKeys
	}
	o.Keys = min(o.Keys, o.Items)
	if o.Bytes <= 0 {
		o.Bytes = DefaultLeaseBytes
	}
	if o.For <= 0 {
		o.For = DefaultLeaseFor
	}
	return o
}

// scanItem reads one row of itemColumns, and the key that the item is stored
// under: its own id when nothing is ordered.
func scanItem(rows pgx.Rows) (item *Item, key uuid.UUID, err error) {
	item = &Item{}
	var (
		joins, claim, fingerprint, replay pgtype.UUID
		tenant, operation                 pgtype.Text
		topic, partition                  pgtype.Int4
		offset                            pgtype.Int8
		leaderEpoch                       int32
		columns                           rowrecord.Columns
		age                               int64 // microseconds
	)
	targets := []any{
		&item.ID, &item.OrderPos, &item.Queue, &item.Kind, &key, &joins, &item.DueAt,
		&item.Starts, &item.Attempts, &item.Crashes, &item.Interrupted, &item.InterruptedWhy,
		&claim, &fingerprint, &item.FingerprintVersion, &tenant, &operation, &item.Shown,
		&topic, &partition, &offset, &leaderEpoch,
	}
	targets = append(targets, columns.Targets()...)
	targets = append(targets, &item.FirstSeen, &age, &item.ErrorClass, &item.ErrorMessage, &replay, &item.ReplayCount)
	if err := rows.Scan(targets...); err != nil {
		return nil, key, err
	}
	switch {
	case joins.Valid:
		item.OrderKey = joins.Bytes
	case key != item.ID:
		item.OrderKey = key
	}
	item.Claim = uuid.NullUUID{UUID: claim.Bytes, Valid: claim.Valid}
	item.Fingerprint = fingerprint.Bytes
	item.ReplayID = uuid.NullUUID{UUID: replay.Bytes, Valid: replay.Valid}
	item.Tenant, item.Operation = pointer(tenant), pointer(operation)
	item.Age = time.Duration(age) * time.Microsecond
	at := rowrecord.Position{LeaderEpoch: leaderEpoch}
	if topic.Valid {
		item.Source = &Source{Topic: topic.Int32, Partition: partition.Int32, Offset: offset.Int64, LeaderEpoch: leaderEpoch}
		at.Partition, at.Offset = partition.Int32, offset.Int64
	}
	item.Record = columns.Record(at)
	return item, key, nil
}

func pointer(t pgtype.Text) *string {
	if !t.Valid {
		return nil
	}
	return &t.String
}

func compareKeys(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }
