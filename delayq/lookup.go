package delayq

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// waitingSQL looks keys up one by one through the primary key.
const waitingSQL = `
select k.order_key
  from unnest($2::uuid[]) as u (order_key)
  join claimq.delayed_keys k on k.queue = $1 and k.order_key = u.order_key`

// Waiting queues the question which of the order keys have something unfinished:
// a message of such a key is stored behind it, as Blocked. found is called for each
// of them when the batch is run.
//
// A key that begins to wait after the answer is no race: whoever stores a message
// of the key owns the key's partition, and ownership changes only between a
// worker's fence and the next one's first flight. A key that has stopped waiting
// after the answer costs one item that is due at once.
func (s *Store) Waiting(b *pgx.Batch, queue int32, keys []uuid.UUID, found func(uuid.UUID)) {
	b.Queue(s.sql.waiting, queue, distinct(keys)).Query(func(rows pgx.Rows) error {
		var key uuid.UUID
		_, err := pgx.ForEachRow(rows, []any{&key}, func() error { found(key); return nil })
		return err
	})
}

// Range is a stretch of one partition's offsets, both ends included.
type Range struct {
	Topic, Partition int32
	First, Last      int64
}

// sourcesSQL reads one stretch of delayed_source for each range.
const sourcesSQL = `
select d.topic, d.partition, d."offset"
  from unnest($2::int[], $3::int[], $4::bigint[], $5::bigint[]) as u (topic, partition, first, last)
  join claimq.delayed d on d.queue = $1 and d.topic = u.topic and d.partition = u.partition
                       and d."offset" between u.first and u.last
 where d.topic is not null`

// Known queues the question which records of the ranges are in the delay queue
// already: they move the position and nothing else. found is called for each when
// the batch is run. Dead letters answer for themselves.
func (s *Store) Known(b *pgx.Batch, queue int32, ranges []Range, found func(topic, partition int32, offset int64)) {
	var topics, partitions []int32
	var firsts, lasts []int64
	for _, r := range ranges {
		topics, partitions = append(topics, r.Topic), append(partitions, r.Partition)
		firsts, lasts = append(firsts, r.First), append(lasts, r.Last)
	}
	b.Queue(s.sql.sources, queue, topics, partitions, firsts, lasts).Query(func(rows pgx.Rows) error {
		var topic, partition int32
		var offset int64
		_, err := pgx.ForEachRow(rows, []any{&topic, &partition, &offset}, func() error {
			found(topic, partition, offset)
			return nil
		})
		return err
	})
}

// claimsSQL looks claims up one by one through delayed_claim.
const claimsSQL = `
select d.claim
  from unnest($1::uuid[]) as u (claim)
  join claimq.delayed d on d.claim = u.claim
 where d.claim is not null`

// WaitingClaims queues the question which of the claims have an item here: a
// repeat of such an id is folded into it. found is called for each of them when
// the batch is run.
func (s *Store) WaitingClaims(b *pgx.Batch, claims []uuid.UUID, found func(uuid.UUID)) {
	b.Queue(s.sql.claims, distinct(claims)).Query(func(rows pgx.Rows) error {
		var claim uuid.UUID
		_, err := pgx.ForEachRow(rows, []any{&claim}, func() error { found(claim); return nil })
		return err
	})
}
