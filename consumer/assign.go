package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// topicInfo is what a topic of Kafka is in the database.
type topicInfo struct {
	number     int32 // in claimq.topics
	id         [16]byte
	partitions []int32
}

// assign is called by the client when partitions have been assigned, before the
// first fetch. It answers with the positions from Postgres, whatever Kafka's
// committed offsets are. Any error but the context's would cost the member all its
// partitions, so it tries again until the session ends.
func (c *Consumer) assign(ctx context.Context, committed map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	var keys []partitionKey
	for topic, partitions := range committed {
		for number := range partitions {
			keys = append(keys, partitionKey{topic, number})
		}
	}
	if len(keys) == 0 {
		return committed, nil
	}
	c.hold(keys)
	pause := newPause()
	for {
		taken, err := c.takeOver(ctx, keys)
		if err == nil {
			c.health.database(nil)
			return c.install(taken, committed), nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err() //nolint:wrapcheck // the client asks for exactly this error
		}
		if _, ok := errors.AsType[*PositionsLostError](err); ok {
			c.fatal(err)
			<-ctx.Done()
			return nil, ctx.Err() //nolint:wrapcheck // as above
		}
		c.health.database(err)
		c.config.Logger.WarnContext(ctx, "partitions are assigned and cannot be taken over yet",
			slog.String("queue", c.config.Queue), slog.Any("error", err))
		select {
		case <-time.After(pause.after(err)):
		case <-ctx.Done():
		}
	}
}

// hold notes that Kafka has given us partitions which Postgres has not yet.
func (c *Consumer) hold(keys []partitionKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		if c.held[key].IsZero() {
			c.held[key] = time.Now()
		}
	}
}

// takeOver makes this worker the owner of partitions and returns them with their
// positions. Whoever owned them can commit nothing for them afterwards.
func (c *Consumer) takeOver(ctx context.Context, keys []partitionKey) ([]*partition, error) {
	infos, err := c.topicInfos(ctx, keys)
	if err != nil {
		return nil, err
	}
	if err := c.beginTopics(ctx, infos); err != nil {
		return nil, err
	}
	numbers := make(map[int32]string, len(infos))
	for topic, info := range infos {
		numbers[info.number] = topic
	}
	var topics, partitions []int32
	for _, key := range keys {
		topics, partitions = append(topics, infos[key.topic].number), append(partitions, key.partition)
	}
	token := uuid.New()
	var taken []*partition
	var server string
	err = c.inTx(ctx, func(tx pgx.Tx) error {
		taken = nil
		var slot int16
		if err := tx.QueryRow(ctx, c.sql.incarnation).Scan(&server, &slot); err != nil {
			return fmt.Errorf("ask which database server this is: %w", err)
		}
		rows, err := tx.Query(ctx, c.sql.takeOwnership, c.queue, c.instance, token, topics, partitions)
		if err != nil {
			return fmt.Errorf("take ownership: %w", err)
		}
		var missing []*partition
		var topic, number int32
		var epoch int64
		var position *int64
		var leaderEpoch *int32
		_, err = pgx.ForEachRow(rows, []any{&topic, &number, &epoch, &position, &leaderEpoch}, func() error {
			name := numbers[topic]
			p := newPartition(partitionKey{name, number}, topic, 0, c.strandsPerPartition())
			p.epoch, p.token, p.topicID = epoch, token, infos[name].id
			if position == nil {
				missing = append(missing, p)
			} else {
				p.written, p.track.position = *position, *position
				p.leaderEpoch.Store(*leaderEpoch)
			}
			taken = append(taken, p)
			return nil
		})
		if err != nil {
			return fmt.Errorf("take ownership: %w", err)
		}
		return c.placeNew(ctx, tx, missing)
	})
	if err != nil {
		return nil, err
	}
	c.metServer(server)
	return taken, nil
}

// placeNew gives partitions that appeared after their topic was begun a position:
// always their beginning, whatever Start says, since nothing in them was ever seen.
func (c *Consumer) placeNew(ctx context.Context, tx pgx.Tx, missing []*partition) error {
	if len(missing) == 0 {
		return nil
	}
	names := map[string]bool{}
	for _, p := range missing {
		names[p.topic] = true
	}
	for topic := range names {
		starts, err := c.startsOf(ctx, topic, StartEarliest())
		if err != nil {
			return err
		}
		var of []*partition
		for _, p := range missing {
			if p.topic != topic {
				continue
			}
			position, ok := starts[p.partition]
			if !ok {
				return fmt.Errorf("partition %d of topic %q has no beginning in Kafka yet", p.partition, topic)
			}
			p.written, p.track.position = position, position
			of = append(of, p)
			c.config.Logger.InfoContext(ctx, "a new partition begins at its beginning", slog.String("queue", c.config.Queue),
				slog.String("topic", topic), slog.Int("partition", int(p.partition)), slog.Int64("position", position))
		}
		if err := c.writePositions(ctx, tx, of); err != nil {
			return err
		}
	}
	return nil
}

// install puts partitions that were taken over into service and returns the
// client's answer. Kafka's own committed offset is only compared.
func (c *Consumer) install(taken []*partition, committed map[string]map[int32]kgo.Offset) map[string]map[int32]kgo.Offset {
	offsets := make(map[string]map[int32]kgo.Offset, len(committed))
	for _, p := range taken {
		if offsets[p.topic] == nil {
			offsets[p.topic] = map[int32]kgo.Offset{}
		}
		offsets[p.topic][p.partition] = kgo.NewOffset().At(p.written).WithEpoch(p.leaderEpoch.Load())
		c.compareCommitted(p, committed[p.topic][p.partition].EpochOffset().Offset)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range taken {
		if old := c.partitions[p.partitionKey]; old != nil {
			c.scheduler.drop(old)
		}
		c.partitions[p.partitionKey] = p
		c.held[p.partitionKey] = time.Time{}
	}
	c.metrics.assigned(c.config.Queue, len(c.partitions))
	return offsets
}

// compareCommitted looks for the witness of lost history: Kafka's offset is only
// ever told after Postgres has the position, so it can be ahead only when Postgres
// has lost its newest transactions, or when someone moved it by hand.
func (c *Consumer) compareCommitted(p *partition, committed int64) {
	if committed < 0 || committed == p.written {
		return
	}
	attrs := []any{
		slog.String("queue", c.config.Queue), slog.String("topic", p.topic), slog.Int("partition", int(p.partition)),
		slog.Int64("position", p.written), slog.Int64("kafka_offset", committed),
	}
	if committed > p.written {
		c.metrics.rereads(c.config.Queue, committed-p.written)
		c.config.Logger.Warn("Kafka's committed offset is ahead of the position: the database has lost its newest transactions in a failover, or someone moved the offset by hand. It is ignored, and the records between are read again; use `claimq position set` to move the position", attrs...)
		return
	}
	c.config.Logger.Info("Kafka's committed offset is behind the position and is ignored: the position is the database's; use `claimq position set` to move it", attrs...)
}

// strandsPerPartition: a queue without claims must finish a partition in order,
// because its position alone tells what has been done.
func (c *Consumer) strandsPerPartition() int {
	if c.config.Claims == ClaimNone || c.config.Order == OrderPartition {
		return 1
	}
	return c.config.Concurrency
}

// topicInfos finds topics in Kafka, by name, and in the database, by topic id.
func (c *Consumer) topicInfos(ctx context.Context, keys []partitionKey) (map[string]topicInfo, error) {
	wanted := map[string]bool{}
	for _, key := range keys {
		wanted[key.topic] = true
	}
	names := make([]string, 0, len(wanted))
	for name := range wanted {
		names = append(names, name)
	}
	details, err := c.admin.ListTopics(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("ask Kafka for its topics: %w", err)
	}
	infos := make(map[string]topicInfo, len(names))
	for _, name := range names {
		d, ok := details[name]
		if !ok || d.Err != nil {
			return nil, fmt.Errorf("ask Kafka for topic %q: %w", name, errors.Join(d.Err, &MissingTopicError{Queue: c.config.Queue, Topics: []string{name}}))
		}
		info := topicInfo{id: d.ID, partitions: d.Partitions.Numbers()}
		id := uuid.UUID(info.id)
		if id == uuid.Nil { // brokers before 2.8 have no topic ids
			id = uuid.NewSHA1(uuid.NameSpaceURL, []byte("kafka-topic:"+name))
		}
		if err := c.pool.QueryRow(ctx, c.sql.topicNumber, id, name).Scan(&info.number); err != nil {
			return nil, fmt.Errorf("register topic %q: %w", name, err)
		}
		infos[name] = info
	}
	return infos, nil
}
