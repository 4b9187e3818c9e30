package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/pgtext"
)

// A Beginner begins transactions: a pool or a connection of pgx.
type Beginner interface {
	DB
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// An Order is an operator's: who gives it, and why. Both are stored and needed.
type Order struct {
	Who, Why string
}

// A Selection names records that are set aside: those that have one of IDs, and
// those of Topic. All names every one. The zero value names none.
type Selection struct {
	IDs   []uuid.UUID
	Topic string
	All   bool
}

var (
	// ErrNoReason says that an order does not tell who gives it, or why.
	ErrNoReason = errors.New("outbox: an order needs to say who gives it and why: both are kept in claimq.audit")
	// ErrNoSelection says that an order names no records.
	ErrNoSelection = errors.New("outbox: an order needs to say which records it means: ids, a topic, or all")
)

// adminRows bounds what one transaction of an order touches, so that it holds its
// locks briefly.
const adminRows = 1000

// The lock that leases change hands under. A relay that sets rows aside, or settles
// rows that were set aside, holds it shared; an order that removes such rows takes
// it alone. So between finding that a row stands behind another and storing it
// behind that one, the other cannot vanish unseen.
const (
	sqlAdminLock   = `select pg_advisory_xact_lock(hashtext($1), -2)`
	sqlSettleLock  = `select pg_advisory_xact_lock_shared(hashtext($1), -2)`
	adminStatement = `set local lock_timeout = '10s'`
)

// sqlRetry makes rows due. A row behind another of its key moves when that one
// does, so the first of its key is made due with it; of a topic that took nothing,
// all rows are, since its oldest one is the probe. attempts stays: a row that is
// refused again waits as long as it would have.
const sqlRetry = `
with named as (
    select h.topic, h.key, h.scope, h.seq
      from claimq.outbox_held h
     where $3 or h.topic = nullif($2, '') or h.id = any ($1::uuid[])),
due as (
    update claimq.outbox_held h
       set next_at = clock_timestamp()
     where h.scope <> 'key' and h.next_at > clock_timestamp()
       and exists (select from named n
                    where n.topic = h.topic
                      and (n.seq = h.seq or h.scope = 'topic' or n.scope = 'key' and n.key = h.key and h.ordered)))
select count(*) from named`

// Retry makes records that are set aside due now, with what they wait behind, and
// returns how many records were named. The relay tries them within its next poll;
// one that is refused again goes on waiting with growing delays. The order is kept
// in claimq.audit in the same transaction, unless it names nothing.
func (o *Outbox) Retry(ctx context.Context, db Beginner, what Selection, order Order) (named int, err error) {
	if err := what.check(order); err != nil {
		return 0, err
	}
	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, o.schema.SQL(sqlRetry), uuidsOf(what.IDs), what.Topic, what.All).Scan(&named); err != nil || named == 0 {
			return err
		}
		_, err := tx.Exec(ctx, o.schema.SQL(sqlAuditRetry), order.who(), order.why(), named, what.Topic, what.All, uuidsOf(what.IDs))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("outbox: retry records that are set aside: %w", err)
	}
	return named, nil
}

const sqlAuditRetry = `
insert into claimq.audit (who, why, action, detail)
values ($1, $2, 'outbox retry', jsonb_strip_nulls(jsonb_build_object(
        'records', $3::int, 'topic', nullif($4::text, ''), 'all', nullif($5::bool, false),
        'ids', nullif(to_jsonb($6::uuid[]), '[]'::jsonb))))`

// sqlDiscard forgets records, the oldest first. The audit keeps what they were,
// without their content.
const sqlDiscard = `
with named as (
    select h.bucket, h.seq
      from claimq.outbox_held h
     where $3 or h.topic = nullif($2, '') or h.id = any ($1::uuid[])
     order by h.seq
     limit $4)
delete from claimq.outbox_held h
 using named n
 where h.bucket = n.bucket and h.seq = n.seq
returning h.seq, h.id, h.topic, h.key, h.scope::text, h.reason, h.attempts, h.created_at, h.held_at, h.next_at`

// sqlRelease makes the first of the rows that stood behind a removed one due: no
// row of scope key is without an earlier one of its key. It must be a statement
// after the one that took sqlAdminLock or sqlSettleLock, so that it sees what
// others have removed or stored before.
const sqlRelease = `
update claimq.outbox_held h
   set scope = 'row', next_at = clock_timestamp()
  from (select distinct t.topic, t.key from unnest($1::text[], $2::bytea[]) as t (topic, key)) k
 cross join lateral (
       select f.bucket, f.seq from claimq.outbox_held f
        where f.key = k.key and f.ordered and f.key is not null and f.topic = k.topic
        order by f.seq
        limit 1) first
 where h.bucket = first.bucket and h.seq = first.seq and h.scope = 'key'`

const sqlAuditDiscard = `
insert into claimq.audit (who, why, action, detail)
select $1, $2, 'outbox discard',
       jsonb_build_object('records', (select jsonb_agg(jsonb_build_object('seq', u.seq, 'id', u.id, 'topic', u.topic, 'reason', u.reason) order by u.seq)
                                        from unnest($3::bigint[], $4::uuid[], $5::text[], $6::text[]) as u (seq, id, topic, reason)))`

// Discard gives records that are set aside up: they are never published. What
// stands behind them in their keys is tried next. It returns what it discarded, in
// the order of adding; on error, what was discarded before it, which stays so. The
// order is kept in claimq.audit, in the same transactions, with ids and topics.
//
// A record that a relay is just trying may go out all the same. So may one of the
// last minutes after a failover or a restore, when the relay begins again at the
// oldest row that the outbox still has.
func (o *Outbox) Discard(ctx context.Context, db Beginner, what Selection, order Order) ([]Held, error) {
	if err := what.check(order); err != nil {
		return nil, err
	}
	var gone []Held
	for {
		some, err := o.discardSome(ctx, db, what, order)
		if err != nil {
			return gone, fmt.Errorf("outbox: discard records that are set aside: %w", err)
		}
		gone = append(gone, some...)
		if len(some) < adminRows {
			return gone, nil
		}
	}
}

func (o *Outbox) discardSome(ctx context.Context, db Beginner, what Selection, order Order) (gone []Held, err error) {
	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, adminStatement); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlAdminLock, o.schema.Name()); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, o.schema.SQL(sqlDiscard), uuidsOf(what.IDs), what.Topic, what.All, adminRows)
		if err != nil {
			return err
		}
		if gone, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Held]); err != nil || len(gone) == 0 {
			return err
		}
		var seqs []int64
		var ids []uuid.UUID
		var topics, reasons []string
		var keys [][]byte
		for i := range gone {
			seqs, ids = append(seqs, gone[i].Seq), append(ids, gone[i].ID)
			topics, keys, reasons = append(topics, gone[i].Topic), append(keys, gone[i].Key), append(reasons, gone[i].Reason)
		}
		if _, err := tx.Exec(ctx, o.schema.SQL(sqlRelease), topics, keys); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, o.schema.SQL(sqlAuditDiscard), order.who(), order.why(), seqs, uuidsOf(ids), topics, reasons)
		return err
	})
	if err != nil {
		return nil, err
	}
	return gone, nil
}

func (s *Selection) check(order Order) error {
	switch {
	case order.who() == "" || order.why() == "":
		return ErrNoReason
	case !s.All && s.Topic == "" && len(s.IDs) == 0:
		return ErrNoSelection
	}
	return nil
}

// maxOrderText bounds what is kept of a name or a reason, in bytes.
const maxOrderText = 1000

func (o Order) who() string { return pgtext.Storable(o.Who, maxOrderText) }
func (o Order) why() string { return pgtext.Storable(o.Why, maxOrderText) }

// uuidsOf is never null, which no id would equal, nor be without.
func uuidsOf(ids []uuid.UUID) []uuid.UUID {
	if ids == nil {
		return []uuid.UUID{}
	}
	return ids
}
