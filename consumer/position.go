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

// positionColumns are the parameters of a position's row and of its fence.
type positionColumns struct {
	topics, partitions, leaderEpochs []int32
	epochs, offsets                  []int64
	tokens                           []uuid.UUID
}

func (c *positionColumns) add(p partitionPosition) {
	c.topics = append(c.topics, p.partition.number)
	c.partitions = append(c.partitions, p.partition.partition)
	c.epochs = append(c.epochs, p.partition.epoch)
	c.offsets = append(c.offsets, p.position)
	c.leaderEpochs = append(c.leaderEpochs, p.leaderEpoch)
	c.tokens = append(c.tokens, p.partition.token)
}

func (c *positionColumns) args(id uuid.UUID, queue int32) []any {
	if c.topics == nil {
		empty := []int32{}
		return []any{id, queue, empty, empty, []int64{}, []int64{}, empty}
	}
	return []any{id, queue, c.topics, c.partitions, c.epochs, c.offsets, c.leaderEpochs}
}

// queuePositions adds the position's row and the fence. Work of the delay queue has
// no partitions; its row is there so that an unknown COMMIT can be settled.
func (c *Consumer) queuePositions(b *pgx.Batch, id uuid.UUID, slot int16, positions []partitionPosition) {
	var columns positionColumns
	for _, p := range positions {
		columns.add(p)
	}
	b.Queue(c.sql.putPosition[slot], columns.args(id, c.queue)...)
	if len(positions) > 0 {
		b.Queue(c.sql.fenceLock, c.queue)
		b.Queue(c.sql.assertOwner, c.queue, columns.topics, columns.partitions, columns.tokens)
	}
}

// positionsAfter computes, for each partition of the work, the position that holds
// once it has committed. Partitions that do not move are in it too: they are fenced.
func (c *Consumer) positionsAfter(w *work) []partitionPosition {
	if w.batch == nil {
		return nil
	}
	s := c.scheduler
	s.mu.Lock()
	defer s.mu.Unlock()
	var positions []partitionPosition
	at := map[*partition]int{}
	for _, t := range w.tasks {
		p := t.strand.partition
		switch t.verdict.fate {
		case undecided, setAside:
			p.track.hold(t.record.Offset, nil)
		default:
			p.track.hold(t.record.Offset, w.batch)
		}
		i, ok := at[p]
		if !ok {
			i = len(positions)
			at[p] = i
			positions = append(positions, partitionPosition{partition: p, leaderEpoch: p.leaderEpoch.Load()})
		}
		positions[i].leaderEpoch = max(positions[i].leaderEpoch, t.record.LeaderEpoch)
	}
	for i := range positions {
		positions[i].position = positions[i].partition.track.with(w.batch)
	}
	return positions
}

// acknowledged notes what Postgres has confirmed.
func (c *Consumer) acknowledged(id uuid.UUID, slot int16, positions []partitionPosition) {
	c.mu.Lock()
	c.newest = acknowledgement{id: id, slot: slot}
	c.mu.Unlock()
	c.scheduler.mu.Lock()
	defer c.scheduler.mu.Unlock()
	for _, p := range positions {
		p.partition.written = max(p.partition.written, p.position)
		p.partition.leaderEpoch.Store(p.leaderEpoch)
	}
}

func (c *Consumer) lastAcknowledged() acknowledgement {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest
}

// mark tells Kafka's side how far the partitions of a batch are, in Postgres.
func (c *Consumer) mark(b *batch) {
	ps := make([]*partition, 0, len(b.strands))
	for _, st := range b.strands {
		ps = append(ps, st.partition)
	}
	c.markPartitions(ps)
}

func (c *Consumer) markPartitions(ps []*partition) {
	marks := map[string]map[int32]kgo.EpochOffset{}
	c.scheduler.mu.Lock()
	for _, p := range ps {
		if p.gone.Load() {
			continue
		}
		if marks[p.topic] == nil {
			marks[p.topic] = map[int32]kgo.EpochOffset{}
		}
		marks[p.topic][p.partition] = kgo.EpochOffset{Epoch: p.leaderEpoch.Load(), Offset: p.written}
	}
	c.scheduler.mu.Unlock()
	if len(marks) > 0 {
		c.client.MarkCommitOffsets(marks)
	}
}

// ownTransactionHold is how long the server lets one of the consumer's own
// transactions stand still. A worker that is frozen between its statements holds
// the queue's fence for that long at most.
const ownTransactionHold = 3 * time.Second

// inTx runs f in a transaction of the consumer's own: bounded in every wait, so
// that a worker which is frozen or cut off in the middle of it holds nobody up.
func (c *Consumer) inTx(ctx context.Context, f func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, c.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlOwnSettings, milliseconds(c.config.LockTimeout), milliseconds(ownTransactionHold))
		if err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		return f(tx)
	})
}

// flushPositions writes what lanes that finished out of order have left unwritten.
func (c *Consumer) flushPositions(ctx context.Context, ps []*partition) {
	var positions []partitionPosition
	c.scheduler.mu.Lock()
	for _, p := range ps {
		if position := p.track.with(nil); position > p.written && !p.gone.Load() {
			positions = append(positions, partitionPosition{partition: p, position: position, leaderEpoch: p.leaderEpoch.Load()})
		}
	}
	c.scheduler.mu.Unlock()
	if len(positions) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, commitBudget)
	defer cancel()
	if err := c.writeFenced(ctx, positions); err != nil {
		// The next owner reads a little again, and drops it.
		c.config.Logger.WarnContext(ctx, "positions were not flushed", slog.String("queue", c.config.Queue), slog.Any("error", err))
		if errors.Is(err, errIncarnation) {
			c.forget(err)
		}
		return
	}
	c.markPartitions(ps)
}

// writeFenced writes positions in a transaction of their own, under the fence.
func (c *Consumer) writeFenced(ctx context.Context, positions []partitionPosition) error {
	var server string
	var slot int16
	id := uuid.New()
	err := c.inTx(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, c.sql.incarnation).Scan(&server, &slot); err != nil {
			return fmt.Errorf("ask which database server this is: %w", err)
		}
		if server != c.incarnation() {
			return errIncarnation
		}
		b := &pgx.Batch{}
		c.queuePositions(b, id, slot, positions)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return err
	}
	c.acknowledged(id, slot, positions)
	return nil
}
