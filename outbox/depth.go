package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A DB runs queries: a pool, a connection or a transaction of pgx.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// depthLimit bounds what Depth counts of each slice.
const depthLimit = 10_000

// A Depth is what an outbox still holds.
type Depth struct {
	// Rows is how many committed records are not yet out or set aside, as of the
	// relays' last written places; it can be some too high while they work.
	Rows int
	// AtLeast says that counting has stopped at Rows.
	AtLeast bool
	// Oldest is the age of the oldest record counted, 0 without one.
	Oldest time.Duration
	// Delayed is how many records wait for a time of their own; of many it stops at
	// some ten thousand.
	Delayed int
	// Held is how many records are set aside, those behind others included.
	Held int
	// OldestHeld is the age of the oldest of those.
	OldestHeld time.Duration
}

// sqlDepth counts rows that are not visible in their slice's place. It reads the
// same parts of the index as the relay, and at most a bounded number of rows of
// each. Without a relay so far, all rows count.
const sqlDepth = `
with layout as (
    select w.slices from claimq.relay_windows w where w.slices > 0 order by w.id desc limit 1),
place as (
    select w.slices, w.slice, w.done, w.until, w.after
      from claimq.relay_rows() w join layout l on l.slices = w.slices
    union all
    select 1::smallint, 0::smallint, '3:3:'::pg_snapshot, null, 0 where not exists (select 1 from layout)),
missing as (
    select r.created_at, count(*) over (partition by p.slice) > $1 as cut
      from place p
     cross join lateral (
           (select o.created_at from claimq.outbox o
             where o.xid >= pg_snapshot_xmax(p.done)
               and o.bucket::int * p.slices / 64 = p.slice
               and not coalesce(pg_visible_in_snapshot(o.xid, p.until) and o.seq <= p.after, false)
             limit $1 + 1)
           union all
           (select o.created_at from claimq.outbox o
             where o.xid = any (array(select pg_snapshot_xip(p.done)))
               and o.bucket::int * p.slices / 64 = p.slice
               and not coalesce(pg_visible_in_snapshot(o.xid, p.until) and o.seq <= p.after, false)
             limit $1 + 1)) r)
select count(*), coalesce(bool_or(cut), false), coalesce(clock_timestamp() - min(created_at), '0'),
       (select count(*) from (select from claimq.outbox_due limit $1) d),
       (select count(*) from claimq.outbox_held),
       (select coalesce(clock_timestamp() - min(created_at), '0') from claimq.outbox_held)
  from missing`

// Depth tells what the outbox holds. It is for people and metrics: cheap, and
// bounded however much has piled up.
func (o *Outbox) Depth(ctx context.Context, db DB) (Depth, error) {
	var d Depth
	err := db.QueryRow(ctx, o.schema.SQL(sqlDepth), depthLimit).Scan(&d.Rows, &d.AtLeast, &d.Oldest, &d.Delayed, &d.Held, &d.OldestHeld)
	if err != nil {
		return Depth{}, fmt.Errorf("outbox: depth: %w", err)
	}
	d.Oldest, d.OldestHeld = max(d.Oldest, 0), max(d.OldestHeld, 0)
	return d, nil
}

// A Held is a record that was set aside.
type Held struct {
	// Seq is the record's number, in the order of adding.
	Seq int64
	// ID is the effect's id.
	ID    uuid.UUID
	Topic string
	Key   []byte
	// Scope is row (this record is refused), topic (its topic takes nothing) or key
	// (an earlier record of its key is held).
	Scope string
	// Reason is what the broker said, with what can be done.
	Reason string
	// Attempts counts refusals.
	Attempts int
	// CreatedAt is when the effect was added, HeldAt when it was set aside, NextAt
	// when it is tried again; the latter means nothing for scope key.
	CreatedAt, HeldAt, NextAt time.Time
}

// Held lists records that are set aside, with their keys, in the order of adding:
// up to limit of those behind the number after, 0 for the first.
func (o *Outbox) Held(ctx context.Context, db DB, after int64, limit int) ([]Held, error) {
	return o.ListHeld(ctx, db, HeldQuery{After: after, Limit: limit, Keys: true})
}
