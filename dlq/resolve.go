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

// Resolve queues the statements that close letters by their ids, in the
// transaction in which the processing of a replayed item commits, or that of a
// repeat of a dead message. Letters that are not open,
// and ids that are none, are left alone. They have statements planned as they are run
// for the rest of the transaction.
func (s *Store) Resolve(b *pgx.Batch, ids []uuid.UUID) {
	if len(ids) == 0 {
		return
	}
	b.Queue(protectPlans)
	b.Queue(s.sql.resolve, ids)
}

func compareKeys(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }
