package consumer

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
)

// slowBatch is from when on a batch's partitions are kept apart from others the
// next time.
const slowBatch = 2 * time.Second

// lane takes batches from the scheduler and performs them, one after the other.
func (c *Consumer) lane(ctx context.Context) {
	for {
		b := c.scheduler.take(ctx)
		if b == nil {
			return
		}
		c.performBatch(b)
	}
}

func (c *Consumer) performBatch(b *batch) {
	defer b.cancel(nil)
	for _, t := range b.tasks {
		if t.message == nil {
			c.prepare(t)
		}
	}
	w := &work{ctx: b.ctx, tasks: b.tasks, batch: b}
	err := c.perform(w)
	if err != nil {
		c.undecide(w)
		c.doubt(w)
	}
	c.count(w, err)
	wake := c.finishTasks(w)
	took := time.Since(b.taken)
	// From here on tasks that go back to their strands can be in another lane's hands.
	c.scheduler.done(b, err == nil && took > slowBatch)
	c.mark(b)
	c.resumeRoom()
	wake()
}

// doubt reads the positions again of partitions that stay when work on them was
// given up with its COMMIT unanswered: it may have happened, and without claims
// only the position tells.
func (c *Consumer) doubt(w *work) {
	if len(w.unsettled) == 0 {
		return
	}
	seen := map[*partition]bool{}
	var ps []*partition
	for _, t := range w.tasks {
		if p := t.strand.partition; !seen[p] {
			seen[p] = true
			ps = append(ps, p)
		}
	}
	c.dropAndAsk(ps)
}

// prepare identifies a record: on the lane, so that several do it at once.
func (c *Consumer) prepare(t *task) {
	t.message = &Message{Record: t.record, Attempt: 1, MaxAttempts: c.maxAttempts}
	c.identify(t, t.strand.partition.topicID)
}

// count counts what became of the tasks.
func (c *Consumer) count(w *work, err error) {
	if err != nil {
		c.metrics.interrupted(c.config.Queue, len(w.tasks))
		return
	}
	now := time.Now()
	for _, t := range w.tasks {
		if !t.decided() {
			continue
		}
		c.metrics.outcome(c.config.Queue, t.verdict.fate)
		c.stats.note(t.verdict.fate, now)
		c.logOutcome(t)
	}
	c.metrics.batch(c.config.Queue, len(w.tasks))
	if c.config.Committed != nil {
		c.config.Committed(len(w.tasks))
	}
}

// finishTasks lets go of what handlers left on the messages and returns a function
// that wakes whoever waits for it.
func (c *Consumer) finishTasks(w *work) (wake func()) {
	left, later := false, false
	for _, t := range w.tasks {
		left = left || len(t.message.effects) > 0 || t.verdict.fate == dead ||
			c.config.OnDuplicate == SendReply && (t.verdict.claimed || t.verdict.fate == duplicate)
		later = later || t.verdict.fate == delayed || t.verdict.fate == blocked
		t.message.reset()
	}
	return func() {
		if left && c.config.Relay != nil {
			c.config.Relay.Wake()
		}
		if later {
			c.wakeDelayed()
		}
	}
}

// orderKeyOf is the digest of what a record is kept in order by; uuid.Nil: nothing.
func (c *Consumer) orderKeyOf(t *task) uuid.UUID {
	switch c.config.Order {
	case OrderNone:
		return uuid.Nil
	case OrderPartition:
		return orderDigest(c.config.Queue, t.record.Topic, t.record.Partition, nil)
	case OrderKey:
	}
	if len(c.config.OrderBy) == 0 {
		if t.record.Key == nil {
			return uuid.Nil
		}
		return orderDigest(c.config.Queue, "", -1, t.record.Key)
	}
	for _, source := range c.config.OrderBy {
		if value, found, err := source.Find(t.record); err == nil && found && value != "" {
			return orderDigest(c.config.Queue, "", -1, []byte(value))
		}
	}
	return uuid.Nil
}

// logOutcome tells what an operator should know of a message; most need no line.
func (c *Consumer) logOutcome(t *task) {
	v := &t.verdict
	level := slog.LevelDebug
	switch v.fate {
	case dead:
		level = slog.LevelError
	case delayed:
		level = slog.LevelWarn
	case duplicate:
		if c.config.Repeats == RepeatsLog {
			level = slog.LevelInfo
		}
	default:
		return
	}
	ctx := context.Background()
	if !c.config.Logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("queue", c.config.Queue), slog.String("outcome", v.fate.String()),
		slog.String("topic", t.record.Topic), slog.Int("partition", int(t.record.Partition)), slog.Int64("offset", t.record.Offset),
	}
	if t.message.claim != uuid.Nil {
		attrs = append(attrs, slog.String("claim", t.message.claim.String()))
	}
	if v.err != nil {
		attrs = append(attrs, slog.String("class", errorClass(v.err)), slog.String("error", v.err.Error()))
	}
	if v.fate == dead {
		attrs = append(attrs, slog.String("reason", string(v.reason)))
	}
	if v.fate == delayed {
		attrs = append(attrs, slog.Duration("again_in", v.after))
	}
	c.config.Logger.LogAttrs(ctx, level, "message "+v.fate.String(), attrs...)
}
