package consumer

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// askEvery is how often a worker that was fenced asks whether it still has the
// partition.
const askEvery = 500 * time.Millisecond

// A seek puts a partition that was taken over again into service. The poll loop
// does it, between a poll and the permission to rebalance.
type seek struct{ partition *partition }

// fenced drops what this worker holds of partitions that somebody else has taken
// over in Postgres, and finds out who is right.
//
// Two workers can each believe that they own a partition: one was frozen inside the
// assignment callback, and woke up after Kafka had given its partitions to another;
// it then takes ownership as if nothing had happened. The other finds itself fenced,
// is told by the coordinator that it is right, and takes ownership back; the zombie
// is told that it is wrong.
func (c *Consumer) fenced(w *work, err error) {
	var lost []*partition
	named := fencedPartitions(err)
	seen := map[*partition]bool{}
	for _, t := range w.tasks {
		p := t.strand.partition
		if !seen[p] && (len(named) == 0 || named[numberedPartition{p.number, p.partition}]) {
			lost = append(lost, p)
		}
		seen[p] = true
	}
	c.config.Logger.Warn("another worker has taken partitions over", slog.String("queue", c.config.Queue), slog.Int("partitions", len(lost)))
	c.dropAndAsk(lost)
}

// checkOwners finds partitions that somebody else has taken over in Postgres while
// nothing was written for them: an idle one, or one that stands still and was moved
// with `claimq position set`.
func (c *Consumer) checkOwners(ctx context.Context) {
	ps := c.owned() // before the question: what is taken over meanwhile is another value
	ctx, cancel := context.WithTimeout(ctx, housekeepBudget)
	defer cancel()
	rows, err := c.pool.Query(ctx, c.sql.ownersOf, c.queue)
	if err != nil {
		return // the heartbeat tells the health of the database
	}
	tokens := map[numberedPartition]uuid.UUID{}
	var at numberedPartition
	var token uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&at.topic, &at.partition, &token}, func() error {
		tokens[at] = token
		return nil
	})
	if err != nil {
		return
	}
	var lost []*partition
	for _, p := range ps {
		if !p.gone.Load() && tokens[numberedPartition{p.number, p.partition}] != p.token {
			lost = append(lost, p)
		}
	}
	if len(lost) > 0 {
		c.config.Logger.WarnContext(ctx, "partitions were taken over by somebody else", slog.String("queue", c.config.Queue), slog.Int("partitions", len(lost)))
		c.metrics.fenced(c.config.Queue)
		c.dropAndAsk(lost)
	}
}

type numberedPartition struct{ topic, partition int32 }

// fencedPartitions reads the detail that assert_owner raised: topic/partition,….
func fencedPartitions(err error) map[numberedPartition]bool {
	named := map[numberedPartition]bool{}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return named
	}
	for part := range strings.SplitSeq(pg.Detail, ",") {
		topic, number, ok := strings.Cut(part, "/")
		t, err1 := strconv.ParseInt(topic, 10, 32)
		n, err2 := strconv.ParseInt(number, 10, 32)
		if ok && err1 == nil && err2 == nil {
			named[numberedPartition{int32(t), int32(n)}] = true
		}
	}
	return named
}

// forget throws away all that this worker remembers of its partitions: the
// database is another server, or has lost what was acknowledged.
func (c *Consumer) forget(reason error) {
	c.metrics.forgot(c.config.Queue)
	c.config.Logger.Warn("the positions are read again from the database", slog.String("queue", c.config.Queue), slog.Any("reason", reason))
	c.forgetFor("")
}

// memoryHolds looks closer when the newest acknowledged row is not there: the rows
// of a queue that was idle for long have been carried over and emptied, and then
// every position is there all the same.
func (c *Consumer) memoryHolds(ctx context.Context) bool {
	rows, err := c.pool.Query(ctx, c.sql.positionsOf, c.queue)
	if err != nil {
		return false
	}
	there := map[numberedPartition]int64{}
	var p numberedPartition
	var epoch, position int64
	_, err = pgx.ForEachRow(rows, []any{&p.topic, &p.partition, &epoch, &position}, func() error {
		there[p] = position
		return nil
	})
	if err != nil {
		return false
	}
	for _, owned := range c.owned() {
		if there[numberedPartition{owned.number, owned.partition}] < c.scheduler.writtenOf(owned) {
			return false
		}
	}
	return true
}

func (c *Consumer) forgetNewest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest = acknowledgement{}
}

// forgetFor drops every partition and only then notes the server: the other way
// round a lane could find the server right and go on with what was remembered of
// the one before.
func (c *Consumer) forgetFor(server string) {
	c.dropAndAsk(c.owned())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest = acknowledgement{}
	c.server = server
}

func (c *Consumer) dropAndAsk(ps []*partition) {
	keys := make([]partitionKey, 0, len(ps))
	for _, p := range ps {
		if p.gone.Load() {
			continue
		}
		c.scheduler.drop(p)
		keys = append(keys, p.partitionKey)
	}
	if len(keys) > 0 {
		c.hold(keys)
		c.life.service.Go(func() { c.takeAgain(keys) })
	}
}

// takeAgain asks Kafka's coordinator whether partitions are still ours, and takes
// those over again for which it says so, for as long as Kafka has not taken them
// away.
func (c *Consumer) takeAgain(keys []partitionKey) {
	ctx := c.life.polling
	for {
		keys = c.stillHeld(keys)
		if len(keys) == 0 || ctx.Err() != nil {
			return
		}
		ours := c.ask(ctx, keys)
		if len(ours) > 0 {
			taken, err := c.takeOver(ctx, ours)
			if err == nil {
				c.reportLost(taken)
				c.requestSeek(taken)
				keys = without(keys, ours)
				continue
			}
			c.config.Logger.WarnContext(ctx, "partitions cannot be taken over yet", slog.String("queue", c.config.Queue), slog.Any("error", err))
		}
		select {
		case <-time.After(askEvery):
		case <-ctx.Done():
			return
		}
	}
}

// stillHeld returns the keys that Kafka has not taken away and that are not in
// service again.
func (c *Consumer) stillHeld(keys []partitionKey) []partitionKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := keys[:0:0]
	for _, key := range keys {
		if since, held := c.held[key]; held && !since.IsZero() {
			left = append(left, key)
		}
	}
	return left
}

// ask commits offsets synchronously, which the coordinator accepts from the current
// generation's member only, and returns the partitions for which it did.
func (c *Consumer) ask(ctx context.Context, keys []partitionKey) []partitionKey {
	offsets := map[string]map[int32]kgo.EpochOffset{}
	c.mu.Lock()
	for _, key := range keys {
		p := c.partitions[key]
		if p == nil {
			continue
		}
		if offsets[key.topic] == nil {
			offsets[key.topic] = map[int32]kgo.EpochOffset{}
		}
		// The offset that was told last, or could have been: nothing moves.
		offsets[key.topic][key.partition] = kgo.EpochOffset{Epoch: -1, Offset: c.scheduler.writtenOf(p)}
	}
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, c.config.SessionTimeout)
	defer cancel()
	var ours []partitionKey
	c.client.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error) {
		if err != nil || response == nil {
			return
		}
		for _, topic := range response.Topics {
			for _, p := range topic.Partitions {
				if kerr.ErrorForCode(p.ErrorCode) == nil {
					ours = append(ours, partitionKey{topic.Topic, p.Partition})
				}
			}
		}
	})
	return ours
}

// reportLost compares what this worker had acknowledged with what the database has
// now: the difference was lost by the database, and is read again.
func (c *Consumer) reportLost(taken []*partition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range taken {
		old := c.partitions[p.partitionKey]
		if old == nil {
			continue
		}
		had := c.scheduler.writtenOf(old)
		if had <= p.written {
			continue
		}
		// Taking a partition raises its epoch by one. If it has risen by more, somebody
		// else was there in between and wrote the position: `claimq position set`.
		if p.epoch > old.epoch+1 {
			c.config.Logger.Info("the position was moved back: the records are read again, and what is remembered is dropped",
				slog.String("queue", c.config.Queue), slog.String("topic", p.topic), slog.Int("partition", int(p.partition)),
				slog.Int64("from", had), slog.Int64("to", p.written))
		} else {
			c.metrics.lostHistory(c.config.Queue, had-p.written)
			c.config.Logger.Error("the database has lost its newest transactions: the records are read again, and what was published or called for them from the lost history has happened",
				slog.String("queue", c.config.Queue), slog.String("topic", p.topic), slog.Int("partition", int(p.partition)),
				slog.Int64("from", p.written), slog.Int64("to", had))
		}
	}
}

func (c *Consumer) requestSeek(taken []*partition) {
	c.mu.Lock()
	for _, p := range taken {
		c.pending = append(c.pending, seek{partition: p})
	}
	c.mu.Unlock()
	select {
	case c.seeks <- struct{}{}:
	default:
	}
}

// seekPending puts partitions that were taken over again into service. Rebalances
// are blocked, so none of them can be taken away meanwhile; records that were
// fetched before are void, and the client returns none of them after SetOffsets.
func (c *Consumer) seekPending() {
	offsets := c.placePending()
	if len(offsets) == 0 {
		return
	}
	c.client.SetOffsets(offsets)
	for topic, partitions := range offsets {
		for number := range partitions {
			c.client.ResumeFetchPartitions(map[string][]int32{topic: {number}})
			c.health.partition(partitionKey{topic, number}, nil)
		}
	}
}

func (c *Consumer) placePending() map[string]map[int32]kgo.EpochOffset {
	c.mu.Lock()
	defer c.mu.Unlock()
	offsets := map[string]map[int32]kgo.EpochOffset{}
	for _, s := range c.pending {
		p := s.partition
		if since, held := c.held[p.partitionKey]; !held || since.IsZero() {
			continue // taken away meanwhile, or assigned anew with another token
		}
		if old := c.partitions[p.partitionKey]; old != nil {
			c.scheduler.drop(old)
		}
		c.partitions[p.partitionKey] = p
		c.held[p.partitionKey] = time.Time{}
		if offsets[p.topic] == nil {
			offsets[p.topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[p.topic][p.partition] = kgo.EpochOffset{Epoch: p.leaderEpoch.Load(), Offset: p.written}
	}
	c.pending = nil
	return offsets
}

func without(keys, taken []partitionKey) []partitionKey {
	gone := map[partitionKey]bool{}
	for _, key := range taken {
		gone[key] = true
	}
	left := keys[:0:0]
	for _, key := range keys {
		if !gone[key] {
			left = append(left, key)
		}
	}
	return left
}

// metServer notes which server the positions were read from. When it is another
// than before, what other partitions remember is void too.
func (c *Consumer) metServer(server string) {
	before := c.incarnation()
	if before != "" && before != server {
		c.config.Logger.Warn("the database server has been replaced", slog.String("queue", c.config.Queue), slog.String("server", server))
		c.forgetFor(server)
		return
	}
	c.mu.Lock()
	c.server = server
	c.mu.Unlock()
}

// sameServer compares the server with the one that memory is of. While nothing is
// remembered any server will do, and is remembered.
func (c *Consumer) sameServer(server string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == "" {
		c.server = server
	}
	return c.server == server
}

func (c *Consumer) incarnation() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server
}

// owned returns the partitions in service.
func (c *Consumer) owned() []*partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	ps := make([]*partition, 0, len(c.partitions))
	for _, p := range c.partitions {
		ps = append(ps, p)
	}
	return ps
}
