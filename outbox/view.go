package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A HeldQuery says which records that are set aside are listed. The zero value
// lists the first hundred.
type HeldQuery struct {
	// Topic is the only topic that is meant; empty: all.
	Topic string
	// After is the number behind which the list begins, of a Held before.
	After int64
	// Limit bounds the list. Default: 100.
	Limit int
	// Keys reads the records' keys too, which a login of the reader role may not.
	Keys bool
}

// Two texts, because a column that may not be read may not be named either.
const (
	sqlHeldKeys = `
select seq, id, topic, key, scope::text, reason, attempts, created_at, held_at, next_at
  from claimq.outbox_held
 where seq > $1 and ($3 = '' or topic = $3)
 order by seq
 limit $2`
	sqlHeldNoKeys = `
select seq, id, topic, null::bytea, scope::text, reason, attempts, created_at, held_at, next_at
  from claimq.outbox_held
 where seq > $1 and ($3 = '' or topic = $3)
 order by seq
 limit $2`
)

// ListHeld lists records that are set aside, in the order of adding.
func (o *Outbox) ListHeld(ctx context.Context, db DB, query HeldQuery) ([]Held, error) {
	if query.Limit == 0 {
		query.Limit = 100
	}
	text := sqlHeldNoKeys
	if query.Keys {
		text = sqlHeldKeys
	}
	rows, err := db.Query(ctx, o.schema.SQL(text), query.After, query.Limit, query.Topic)
	if err != nil {
		return nil, fmt.Errorf("outbox: held records: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Held])
	if err != nil {
		return nil, fmt.Errorf("outbox: held records: %w", err)
	}
	return list, nil
}

// A HeldTopic sums up what is set aside of one topic.
type HeldTopic struct {
	Topic string
	// Refused is how many records were refused, Behind how many wait behind one.
	Refused, Behind int
	// HeldAt is when the oldest was set aside; NextAt when the next is tried.
	HeldAt, NextAt time.Time
	// Reason is why the oldest that was refused was, with what can be done.
	Reason string
}

const sqlHeldTopics = `
select topic, count(*) filter (where scope <> 'key'), count(*) filter (where scope = 'key'), min(held_at),
       coalesce(min(next_at) filter (where scope <> 'key'), min(next_at)),
       coalesce((array_agg(reason order by seq) filter (where scope <> 'key'))[1], min(reason))
  from claimq.outbox_held
 group by topic
 order by topic`

// HeldTopics sums up what is set aside, by topic.
func (o *Outbox) HeldTopics(ctx context.Context, db DB) ([]HeldTopic, error) {
	return collect[HeldTopic](ctx, db, "held topics", o.schema.SQL(sqlHeldTopics))
}

// A Slice is a part of the outbox and the relay that publishes it.
type Slice struct {
	// Index is the slice's number, of Of slices.
	Index, Of int
	// Instance is the relay that has or had it, Leased whether its lease goes on.
	Instance string
	Leased   bool
	// PlaceAge is how long ago the relay last wrote where it stands. It writes at
	// least three times within a lease.
	PlaceAge time.Duration
}

// Of the layout that was written last: slices of an older one are nobody's.
const sqlSlices = `
select w.slice::int, w.slices::int, w.instance,
       w.leased_until > clock_timestamp() and w.incarnation = claimq.incarnation(),
       greatest(clock_timestamp() - w.written_at, '0')
  from claimq.relay_rows() w
 where w.slices = (select n.slices from claimq.relay_windows n where n.slices > 0 order by n.id desc limit 1)
 order by w.slice`

// Slices tells who relays the outbox; none before the first relay.
func (o *Outbox) Slices(ctx context.Context, db DB) ([]Slice, error) {
	return collect[Slice](ctx, db, "slices", o.schema.SQL(sqlSlices))
}

func collect[T any](ctx context.Context, db DB, what, sql string) ([]T, error) {
	rows, err := db.Query(ctx, sql)
	if err != nil {
		return nil, fmt.Errorf("outbox: %s: %w", what, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		return nil, fmt.Errorf("outbox: %s: %w", what, err)
	}
	return list, nil
}
