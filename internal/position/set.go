package position

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/pgschema"
)

// A Move says where a partition is to go on.
type Move struct {
	TopicID   uuid.UUID
	TopicName string
	Partition int32
	// Next is the offset of the next record to be handled.
	Next int64
	// LeaderEpoch is Kafka's for that offset, -1 when it is not known.
	LeaderEpoch int32
}

// An Order is an operator's: what is to be moved, who gives it, and why.
type Order struct {
	Queue    int32
	Moves    []Move
	Who, Why string
}

// A Moved tells what became of a Move.
type Moved struct {
	Move
	// From is where the partition stood, nil when it had no position.
	From *int64
	// Epoch is the new owner epoch.
	Epoch int64
}

// A NotBegunError says that the queue has not begun to read a topic. Where it
// begins is decided for all partitions at once, when its first worker starts.
type NotBegunError struct {
	Topic string
}

func (e *NotBegunError) Error() string {
	return fmt.Sprintf("the queue has not begun to read topic %s, under the id that Kafka has for it today: start a worker, whose `start` says where it begins", e.Topic)
}

// A Beginner begins transactions: a pool or a connection of pgx.
type Beginner interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

const (
	sqlTopicNumber = `
select t.id from claimq.topics t join claimq.queue_topics q on q.topic = t.id and q.queue = $2 where t.topic_id = $1`

	// Keeps: no batch stands between its fence and its COMMIT when the position is
	// read and moved, and every worker that owned one of the partitions finds another
	// token at its next fence.
	sqlTake = `select topic, partition, epoch from claimq.take_ownership($1, $2, $3, $4, $5)`

	// A statement of its own after sqlTake, so that it sees what the last batch of the
	// owner has committed.
	sqlStands = `select topic, partition, epoch, next_offset from claimq.positions_of($1)`

	// Keeps: the row in force is the one with the highest epoch and, of those, offset.
	// So a row that moves a partition back needs an epoch above all that were written.
	sqlPut = `
insert into claimq.positions (slot, id, queue, topics, partitions, epochs, offsets, leader_epochs)
values (claimq.position_slot(clock_timestamp()), $1, $2, $3, $4, $5, $6, $7)`

	sqlAudit = `
insert into claimq.audit (who, why, action, queue, detail)
select $1, $2, 'position set', $3,
       jsonb_build_object('moves', jsonb_agg(jsonb_build_object('topic', u.topic, 'partition', u.partition, 'from', u.at, 'to', u.next)))
  from unnest($4::text[], $5::int[], $6::bigint[], $7::bigint[]) as u (topic, partition, at, next)`
)

// key is a partition by its topic's number.
type key struct{ topic, partition int32 }

type standing struct{ epoch, next int64 }

// Set moves positions, in one transaction, while workers may run. A worker that
// owns one of the partitions is fenced: its running batch rolls back, it takes
// ownership again and goes on at the new position. Set waits for batches that are
// just committing, for as long as ctx lasts.
//
// What is read again is handled again unless its id is remembered; that is for the
// caller to tell. Whether Kafka has the offsets is for the caller to know.
func Set(ctx context.Context, db Beginner, schema pgschema.Schema, order Order) ([]Moved, error) {
	if err := order.check(); err != nil {
		return nil, err
	}
	moved := make([]Moved, len(order.Moves))
	err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		s := setter{tx: tx, schema: schema, order: order, moved: moved}
		return s.run(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("set the position: %w", err)
	}
	return moved, nil
}

func (o *Order) check() error {
	if o.Who == "" || o.Why == "" {
		return errors.New("set the position: an order needs to say who gives it and why: both are kept in claimq.audit")
	}
	if len(o.Moves) == 0 {
		return errors.New("set the position: no partition is named")
	}
	type place struct {
		topic     uuid.UUID
		partition int32
	}
	seen := make(map[place]bool, len(o.Moves))
	for _, m := range o.Moves {
		if m.Next < 0 || m.Partition < 0 {
			return fmt.Errorf("set the position: %s[%d]: offset %d is none: neither can be negative", m.TopicName, m.Partition, m.Next)
		}
		at := place{m.TopicID, m.Partition}
		if seen[at] {
			return fmt.Errorf("set the position: %s[%d] is named twice", m.TopicName, m.Partition)
		}
		seen[at] = true
	}
	return nil
}

// A setter is one call of Set within its transaction.
type setter struct {
	tx     pgx.Tx
	schema pgschema.Schema
	order  Order
	moved  []Moved
	// Aligned with the order's moves.
	topics, partitions []int32
}

func (s *setter) run(ctx context.Context) error {
	if err := s.findTopics(ctx); err != nil {
		return err
	}
	taken, err := s.take(ctx)
	if err != nil {
		return fmt.Errorf("take the partitions over: %w", err)
	}
	stood, err := s.stands(ctx)
	if err != nil {
		return fmt.Errorf("read where they stand: %w", err)
	}
	for i, move := range s.order.Moves {
		at := key{s.topics[i], s.partitions[i]}
		s.moved[i] = Moved{Move: move, Epoch: taken[at]}
		if stood, ok := stood[at]; ok {
			next := stood.next
			s.moved[i].From = &next
			// After a failover the owner's epoch can lie below the position's.
			s.moved[i].Epoch = max(taken[at], stood.epoch+1)
		}
	}
	return s.put(ctx)
}

func (s *setter) findTopics(ctx context.Context) error {
	numbers := map[uuid.UUID]int32{}
	for _, move := range s.order.Moves {
		number, known := numbers[move.TopicID]
		if !known {
			err := s.tx.QueryRow(ctx, s.schema.SQL(sqlTopicNumber), move.TopicID, s.order.Queue).Scan(&number)
			if errors.Is(err, pgx.ErrNoRows) {
				return &NotBegunError{Topic: move.TopicName}
			}
			if err != nil {
				return fmt.Errorf("find topic %s: %w", move.TopicName, err)
			}
			numbers[move.TopicID] = number
		}
		s.topics = append(s.topics, number)
		s.partitions = append(s.partitions, move.Partition)
	}
	return nil
}

func (s *setter) take(ctx context.Context) (map[key]int64, error) {
	rows, err := s.tx.Query(ctx, s.schema.SQL(sqlTake), s.order.Queue, "position set by "+s.order.Who, uuid.New(), s.topics, s.partitions)
	if err != nil {
		return nil, err
	}
	taken := make(map[key]int64, len(s.topics))
	var at key
	var epoch int64
	_, err = pgx.ForEachRow(rows, []any{&at.topic, &at.partition, &epoch}, func() error {
		taken[at] = epoch
		return nil
	})
	return taken, err
}

func (s *setter) stands(ctx context.Context) (map[key]standing, error) {
	rows, err := s.tx.Query(ctx, s.schema.SQL(sqlStands), s.order.Queue)
	if err != nil {
		return nil, err
	}
	stood := map[key]standing{}
	var at key
	var row standing
	_, err = pgx.ForEachRow(rows, []any{&at.topic, &at.partition, &row.epoch, &row.next}, func() error {
		stood[at] = row
		return nil
	})
	return stood, err
}

func (s *setter) put(ctx context.Context) error {
	var names []string
	var epochs, nexts []int64
	var from []*int64
	var leaderEpochs []int32
	for _, m := range s.moved {
		names = append(names, m.TopicName)
		epochs = append(epochs, m.Epoch)
		nexts = append(nexts, m.Next)
		from = append(from, m.From)
		leaderEpochs = append(leaderEpochs, m.LeaderEpoch)
	}
	b := &pgx.Batch{}
	b.Queue(s.schema.SQL(sqlPut), uuid.New(), s.order.Queue, s.topics, s.partitions, epochs, nexts, leaderEpochs)
	b.Queue(s.schema.SQL(sqlAudit), s.order.Who, s.order.Why, s.order.Queue, names, s.partitions, from, nexts)
	return s.tx.SendBatch(ctx, b).Close()
}
