package dlq

import (
	"bytes"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// resolveSQL closes letters whose processing commits with this transaction, and
// frees the order keys that they held. Only open ones: what an operator has
// discarded stays discarded.
//
// keep_keys runs after the last row was closed, because array_agg needs them all,
// and sees that, because a volatile function's statements see what the calling
// statement has written.
const resolveSQL = `
with closed as (
     update claimq.dead_letters l
        set state = 'resolved', settled_at = now()
       from unnest($1::uuid[]) as u (id)
      where l.id = u.id and l.state in ('dead', 'replaying')
     returning l.queue, l.order_key, l.holds_key),
held as (
     select queue, array_agg(order_key) as keys from closed where holds_key group by queue)
select claimq.keep_keys(queue, keys) from held`

// resolveClaimsSQL is resolveSQL by claim, through dead_letters_open_claim.
const resolveClaimsSQL = `
with closed as (
     update claimq.dead_letters l
        set state = 'resolved', settled_at = now()
       from unnest($1::uuid[]) as u (claim)
      where l.claim = u.claim and l.state in ('dead', 'replaying')
     returning l.queue, l.order_key, l.holds_key),
held as (
     select queue, array_agg(order_key) as keys from closed where holds_key group by queue)
select claimq.keep_keys(queue, keys) from held`

// Resolve queues the statements that close letters by their ids, in the
// transaction in which a replay's processing commits. Letters that are not open,
// and ids that are none, are left alone. They set enable_seqscan off for the rest
// of the transaction.
func (s *Store) Resolve(b *pgx.Batch, ids []uuid.UUID) { queueClosing(b, s.sql.resolve, ids) }

// ResolveClaims is Resolve by the digests of messages' ids: when a repeat of a
// dead message has succeeded, its letter has no more to tell.
func (s *Store) ResolveClaims(b *pgx.Batch, claims []uuid.UUID) {
	queueClosing(b, s.sql.resolveClaims, claims)
}

func queueClosing(b *pgx.Batch, sql string, ids []uuid.UUID) {
	if len(ids) == 0 {
		return
	}
	b.Queue(protectPlans)
	b.Queue(sql, ids)
}

func compareKeys(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }
