package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
)

// A PositionsLostError says that a queue has read topics before and has no position
// for them any more: somebody deleted rows, or restored a part of the database. It
// does not guess where to go on.
type PositionsLostError struct {
	Queue  string
	Topics []string
}

func (e *PositionsLostError) Error() string {
	return fmt.Sprintf("queue %q has read topic %s before and its positions are gone: set them with `claimq position set`, or start it with `start: earliest` and `start_anew: true`: what is still remembered is then dropped as duplicate", e.Queue, strings.Join(e.Topics, ", "))
}

type begunTopic struct {
	number    int32
	name      string
	positions bool
}

// beginTopics decides, once for a topic and all its partitions, where the queue
// begins. Kafka is asked before the lock is taken; of two workers that come at the
// same time the first one's answer holds.
func (c *Consumer) beginTopics(ctx context.Context, infos map[string]topicInfo) error {
	begun, err := c.begunTopics(ctx)
	if err != nil {
		return err
	}
	var lost []string
	for topic, info := range infos {
		known, anew := begun[info.number]
		if anew && known.positions {
			continue
		}
		if anew && !c.config.Start.anew {
			lost = append(lost, topic)
			continue
		}
		start := c.config.Start
		if recreated(begun, topic, info.number) {
			start = StartEarliest()
		}
		if err := c.beginTopic(ctx, topic, info, start, anew); err != nil {
			return err
		}
	}
	if len(lost) > 0 {
		return &PositionsLostError{Queue: c.config.Queue, Topics: lost}
	}
	return nil
}

func (c *Consumer) begunTopics(ctx context.Context) (map[int32]begunTopic, error) {
	rows, err := c.pool.Query(ctx, c.sql.topicsBegun, c.queue)
	if err != nil {
		return nil, fmt.Errorf("read which topics were begun: %w", err)
	}
	begun := map[int32]begunTopic{}
	var t begunTopic
	var id uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&t.number, &t.name, &id, &t.positions}, func() error {
		begun[t.number] = t
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read which topics were begun: %w", err)
	}
	return begun, nil
}

// recreated reports whether the queue knows the topic's name under another topic
// id: it was deleted and created again, and all of it is new.
func recreated(begun map[int32]begunTopic, name string, number int32) bool {
	for _, t := range begun {
		if t.name == name && t.number != number {
			return true
		}
	}
	return false
}

func (c *Consumer) beginTopic(ctx context.Context, topic string, info topicInfo, start Start, anew bool) error {
	starts, err := c.startsOf(ctx, topic, start)
	if err != nil {
		return err
	}
	partitions := make([]*partition, 0, len(starts))
	for number, position := range starts {
		p := newPartition(partitionKey{topic, number}, info.number, position, 0)
		partitions = append(partitions, p)
	}
	return c.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, c.sql.startLock, c.queue); err != nil {
			return fmt.Errorf("begin topic %q: %w", topic, err)
		}
		var first int32
		err := tx.QueryRow(ctx, c.sql.startTopic, c.queue, info.number).Scan(&first)
		if errors.Is(err, pgx.ErrNoRows) && !anew {
			return nil // another worker was quicker
		}
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("begin topic %q: %w", topic, err)
		}
		c.config.Logger.InfoContext(ctx, "a topic is begun", slog.String("queue", c.config.Queue),
			slog.String("topic", topic), slog.String("start", start.String()), slog.Int("partitions", len(partitions)))
		return c.writePositions(ctx, tx, partitions)
	})
}

// startsOf asks Kafka for the offset at which each partition of a topic begins.
func (c *Consumer) startsOf(ctx context.Context, topic string, start Start) (map[int32]int64, error) {
	listed, err := c.listOffsets(ctx, topic, start)
	if err != nil {
		return nil, err
	}
	starts := map[int32]int64{}
	for number, o := range listed[topic] {
		if o.Err != nil {
			return nil, fmt.Errorf("ask Kafka for the offsets of topic %q, partition %d: %w", topic, number, o.Err)
		}
		starts[number] = o.Offset
	}
	if len(starts) == 0 {
		return nil, fmt.Errorf("Kafka knows no offset of topic %q", topic)
	}
	if start.kind == startCommitted {
		committed, err := c.admin.FetchOffsetsForTopics(ctx, c.config.Group, topic)
		if err != nil {
			return nil, fmt.Errorf("ask Kafka for the committed offsets of group %q: %w", c.config.Group, err)
		}
		committed.Each(func(o kadm.OffsetResponse) {
			if o.Topic == topic && o.Err == nil && o.At >= 0 {
				starts[o.Partition] = o.At
			}
		})
	}
	return starts, nil
}

func (c *Consumer) listOffsets(ctx context.Context, topic string, start Start) (listed kadm.ListedOffsets, err error) {
	switch start.kind {
	case startLatest:
		listed, err = c.admin.ListEndOffsets(ctx, topic)
	case startAt:
		listed, err = c.admin.ListOffsetsAfterMilli(ctx, start.at.UnixMilli(), topic)
	default:
		listed, err = c.admin.ListStartOffsets(ctx, topic)
	}
	if err != nil {
		return nil, fmt.Errorf("ask Kafka for the offsets of topic %q: %w", topic, err)
	}
	return listed, nil
}

// writePositions writes one row with the partitions' positions.
func (c *Consumer) writePositions(ctx context.Context, tx pgx.Tx, ps []*partition) error {
	if len(ps) == 0 {
		return nil
	}
	var server string
	var slot int16
	if err := tx.QueryRow(ctx, c.sql.incarnation).Scan(&server, &slot); err != nil {
		return fmt.Errorf("ask which database server this is: %w", err)
	}
	columns := positionColumns{}
	for _, p := range ps {
		columns.add(partitionPosition{partition: p, position: p.written, leaderEpoch: -1})
	}
	_, err := tx.Exec(ctx, c.sql.putPosition[slot], columns.args(uuid.New(), c.queue)...)
	if err != nil {
		return fmt.Errorf("write positions: %w", err)
	}
	return nil
}
