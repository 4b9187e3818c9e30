package dlq

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Range is a stretch of one partition's offsets, both ends included.
type Range struct {
	Topic, Partition int32
	First, Last      int64
}

// knownSQL reads one stretch of dead_letters_source for each range.
const knownSQL = `
select l.topic, l.partition, l."offset"
  from unnest($2::int[], $3::int[], $4::bigint[], $5::bigint[]) as u (topic, partition, first, last)
  join claimq.dead_letters l on l.queue = $1 and l.topic = u.topic and l.partition = u.partition
                             and l."offset" between u.first and u.last
 where l.topic is not null`

// Known queues the question which records of the ranges have a letter, in
// whatever state: they move the position and nothing else. found is called for
// each when the batch is run.
func (s *Store) Known(b *pgx.Batch, queue int32, ranges []Range, found func(topic, partition int32, offset int64)) {
	var topics, partitions []int32
	var firsts, lasts []int64
	for _, r := range ranges {
		topics, partitions = append(topics, r.Topic), append(partitions, r.Partition)
		firsts, lasts = append(firsts, r.First), append(lasts, r.Last)
	}
	b.Queue(s.sql.known, queue, topics, partitions, firsts, lasts).Query(func(rows pgx.Rows) error {
		var topic, partition int32
		var offset int64
		_, err := pgx.ForEachRow(rows, []any{&topic, &partition, &offset}, func() error {
			found(topic, partition, offset)
			return nil
		})
		return err
	})
}

// openClaimsSQL looks claims up one by one through dead_letters_open_claim.
const openClaimsSQL = `
select distinct l.claim
  from unnest($1::uuid[]) as u (claim)
  join claimq.dead_letters l on l.claim = u.claim and l.state in ('dead', 'replaying')`

// OpenClaims queues the question which of the claims have an open letter: a repeat
// of such an id runs, and closes the letter when it succeeds (see ResolveClaims).
// found is called for each of them when the batch is run.
func (s *Store) OpenClaims(b *pgx.Batch, claims []uuid.UUID, found func(uuid.UUID)) {
	b.Queue(s.sql.openClaims, claims).Query(func(rows pgx.Rows) error {
		var claim uuid.UUID
		_, err := pgx.ForEachRow(rows, []any{&claim}, func() error { found(claim); return nil })
		return err
	})
}
