// Package position reads and moves the positions of a queue: per partition the
// next offset whose effect is not yet in Postgres. It is what `claimq position`
// does, and knows nothing of Kafka.
package position

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/pgschema"
)

// A Partition is what the database knows of a queue's partition.
type Partition struct {
	// Topic is the topic's number, TopicID Kafka's id of it, TopicName its name. A topic
	// that was deleted and made again has one name, two ids and two numbers.
	Topic     int32
	TopicID   uuid.UUID
	TopicName string
	Partition int32
	// Next is the next offset to be handled, nil when there is no position.
	Next *int64
	// Epoch counts the owners that the position was written under; WrittenAt is when.
	Epoch     *int64
	WrittenAt *time.Time
	// OwnerEpoch, Owner and OwnedSince tell who may write it now; nil and "" when no
	// worker ever has. An owner need not be alive.
	OwnerEpoch *int64
	Owner      string
	OwnedSince *time.Time
}

// A Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Owners and positions are outer-joined: a partition can be owned before it has a
// position, and its position outlives a restored owners table.
const sqlPartitions = `
select t.id, t.topic_id, t.name, u.partition, p.next_offset, p.epoch, p.written_at, o.epoch, coalesce(o.instance, ''), o.taken_at
  from (select topic, partition from claimq.positions_of($1)
        union select topic, partition from claimq.owners where queue = $1) u
  join claimq.topics t on t.id = u.topic
  left join claimq.positions_of($1) p on p.topic = u.topic and p.partition = u.partition
  left join claimq.owners o on o.queue = $1 and o.topic = u.topic and o.partition = u.partition
 order by t.name, t.id, u.partition`

// Partitions returns what the database knows of a queue's partitions, by topic
// and partition.
func Partitions(ctx context.Context, db Querier, schema pgschema.Schema, queue int32) ([]Partition, error) {
	rows, err := db.Query(ctx, schema.SQL(sqlPartitions), queue)
	if err != nil {
		return nil, fmt.Errorf("read the positions: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Partition])
	if err != nil {
		return nil, fmt.Errorf("read the positions: %w", err)
	}
	return list, nil
}
