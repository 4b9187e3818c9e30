package demo

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dlq"
	"github.com/claimq/claimq/outbox"
)

// evidence is what the database and the topics hold at the end.
type evidence struct {
	orders  []orderRow
	letters []letterRow
	// effects and fed are all records of the effects topic and of the dead-letter
	// topic, by partition and in the order of each.
	effects, fed []*kgo.Record
	left         progress
}

// An orderRow is a row of the business table, in the order of writing.
type orderRow struct {
	ID, Customer string
	Cents        int64
	Payload      []byte
	Attempt      int
	Waited       bool
}

// A letterRow is a dead letter.
type letterRow struct {
	ID        uuid.UUID
	Partition int32
	Offset    int64
	Reason    dlq.Reason
	Key       []byte
	Value     []byte
}

const sqlOrderRows = `
select order_id, customer, cents, payload, attempt, waited
  from claimq.demo_orders
 order by n`

// A letter whose record came from nowhere has no place here: the topic is the only
// source of the queue.
const sqlLetterRows = `
select id, partition, "offset", reason, record_key, record_value
  from claimq.dead_letters
 where state = 'dead'
 order by partition, "offset"`

// gather reads all of it.
func (s *stack) gather(ctx context.Context) (*evidence, error) {
	e := &evidence{}
	rows, err := s.pool.Query(ctx, s.sql(sqlOrderRows))
	if err != nil {
		return nil, fmt.Errorf("read the orders: %w", err)
	}
	if e.orders, err = pgx.CollectRows(rows, pgx.RowToStructByPos[orderRow]); err != nil {
		return nil, fmt.Errorf("read the orders: %w", err)
	}
	rows, err = s.pool.Query(ctx, s.sql(sqlLetterRows))
	if err != nil {
		return nil, fmt.Errorf("read the dead letters: %w", err)
	}
	if e.letters, err = pgx.CollectRows(rows, pgx.RowToStructByPos[letterRow]); err != nil {
		return nil, fmt.Errorf("read the dead letters: %w", err)
	}
	if e.effects, err = s.readTopic(ctx, s.names.Effects); err != nil {
		return nil, err
	}
	if e.fed, err = s.readTopic(ctx, s.names.DeadLetters); err != nil {
		return nil, err
	}
	e.left, err = s.progress(ctx)
	return e, err
}

// readTopic reads a topic from its beginning to the end that it has now.
func (s *stack) readTopic(ctx context.Context, topic string) ([]*kgo.Record, error) {
	ends, err := s.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the end of topic %s: %w", topic, err)
	}
	left := map[int32]int64{} // the end of each partition that is not read to it
	start := map[int32]kgo.Offset{}
	for _, end := range ends[topic] {
		if end.Offset > 0 {
			left[end.Partition] = end.Offset
			start[end.Partition] = kgo.NewOffset().AtStart()
		}
	}
	if len(left) == 0 {
		return nil, nil
	}
	reader, err := kgo.NewClient(append(slices.Clip(s.kafka), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: start}))...)
	if err != nil {
		return nil, fmt.Errorf("read topic %s: %w", topic, err)
	}
	defer reader.Close()
	found := map[int32][]*kgo.Record{}
	for len(left) > 0 {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return nil, fmt.Errorf("read topic %s: %w", topic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			found[r.Partition] = append(found[r.Partition], r)
			if end, ok := left[r.Partition]; ok && r.Offset+1 >= end {
				delete(left, r.Partition)
			}
		})
	}
	var all []*kgo.Record
	for _, partition := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[partition]...)
	}
	return all, nil
}

// progress is how far the queue is, and what is not finished.
type progress struct {
	// positions is the sum of all partitions' next offsets.
	positions int64
	// owners is how many consumers own a partition.
	owners int
	// delayed is how many messages are in the delay queue, of which leased are keys
	// that a consumer has in work.
	delayed, leased int
	// pending is what the outbox holds that is not out, held what was set aside.
	pending, held int
}

// One statement, so that what moves from one place to another is not missed
// between two.
const sqlProgress = `
select coalesce(sum(p.next_offset), 0)::bigint,
       (select count(distinct o.instance) from claimq.owners o),
       (select count(*) from claimq.delayed),
       (select count(*) from claimq.delayed_keys k where k.lease_token is not null)
  from claimq.queues q
  left join lateral claimq.positions_of(q.id) p on true
 where q.name = $1`

func (s *stack) progress(ctx context.Context) (progress, error) {
	var p progress
	if err := s.pool.QueryRow(ctx, s.sql(sqlProgress), s.names.Queue).Scan(&p.positions, &p.owners, &p.delayed, &p.leased); err != nil {
		return p, fmt.Errorf("ask how far the queue is: %w", err)
	}
	o, err := outbox.New(outbox.Config{Schema: s.names.Schema})
	if err != nil {
		return p, err
	}
	depth, err := o.Depth(ctx, s.pool)
	p.pending, p.held = depth.Rows, depth.Held
	return p, err
}

// settled reports whether all of sent has its fate and everything is out.
func (p progress) settled(sent int) bool {
	return p.positions == int64(sent) && p.delayed == 0 && p.pending == 0 && p.held == 0
}

// String tells what is not finished, for an error.
func (p progress) String() string {
	return fmt.Sprintf("%s messages read, %s of them in the delay queue (%s keys in work), %s effects in the outbox, %s set aside, %d consumers own partitions",
		grouped(p.positions), grouped(p.delayed), grouped(p.leased), grouped(p.pending), grouped(p.held), p.owners)
}
