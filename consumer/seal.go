package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/dlq"
	"github.com/claimq/claimq/internal/sqlstate"
	"github.com/claimq/claimq/outbox"
)

// A partitionPosition is what a batch makes of one partition's position.
type partitionPosition struct {
	partition   *partition
	position    int64
	leaderEpoch int32
}

// errUnknownCommit says that COMMIT was sent and not answered.
var errUnknownCommit = errors.New("the answer to COMMIT did not come")

// errNotCommitted says that the server answered COMMIT with something else.
var errNotCommitted = errors.New("the server rolled the transaction back at COMMIT")

// deferredError is a constraint that failed only when it was made to speak.
type deferredError struct{ err error }

func (e *deferredError) Error() string { return e.err.Error() }
func (e *deferredError) Unwrap() error { return e.err }

// seal is the last flight: what the handlers left, what failed, where the
// partitions stand, the fence, and COMMIT, in this order and in one round trip.
// An error of any statement keeps the server from seeing the COMMIT behind it.
func (a *attempt) seal() ([]partitionPosition, error) {
	if err := a.ctx.Err(); err != nil {
		return nil, context.Cause(a.ctx)
	}
	answers, err := a.answerRepeats()
	if err != nil {
		return nil, err
	}
	b := &pgx.Batch{}
	b.Queue(sqlCheckConstraints)
	if err := a.queueOutcomes(b, answers); err != nil {
		return nil, err
	}
	if err := a.queueFinished(b); err != nil {
		return nil, err
	}
	positions := a.c.positionsAfter(a.w)
	a.c.queuePositions(b, a.id, a.slot, positions)
	tag := ""
	b.Queue("commit").Exec(func(ct pgconn.CommandTag) error { tag = ct.String(); return nil })

	// Not the work's context: cutting a COMMIT short makes its outcome unknown.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), commitBudget+a.c.config.LockTimeout)
	defer cancel()
	err = a.send(ctx, b)
	switch {
	case err == nil && strings.HasPrefix(tag, "COMMIT"):
		return positions, nil
	case err == nil:
		return nil, fmt.Errorf("%w: %s", errNotCommitted, tag)
	case certainlyNot(err):
		return nil, err
	}
	a.broken = true
	a.noteUnsettled(positions)
	return nil, fmt.Errorf("%w: %w", errUnknownCommit, err)
}

// send sends the last flight. The first statement is the handlers': what it says is
// of a message, and what the others say is not.
func (a *attempt) send(ctx context.Context, b *pgx.Batch) error {
	results := a.tx.Conn().SendBatch(ctx, b)
	if _, err := results.Exec(); err != nil {
		_ = results.Close()
		if sqlstate.Code(err) != "" && !sqlstate.Infrastructure(err) {
			return &deferredError{err: err}
		}
		return err
	}
	return results.Close()
}

// certainlyNot reports whether an error of the last flight proves that nothing was
// committed: the server said so itself and went on living.
func certainlyNot(err error) bool {
	return sqlstate.Code(err) != "" && !sqlstate.Disconnected(err)
}

func (a *attempt) noteUnsettled(positions []partitionPosition) {
	u := unsettled{id: a.id, slot: a.slot, tasks: a.w.tasks, positions: positions}
	for _, t := range a.w.tasks {
		u.verdicts = append(u.verdicts, t.verdict)
	}
	a.w.unsettled = append(a.w.unsettled, u)
}

// queueOutcomes adds everything that the tasks' verdicts ask for, and the answers to
// repeats.
func (a *attempt) queueOutcomes(b *pgx.Batch, answers []outbox.Caused) error {
	var (
		unclaim []uuid.UUID
		items   []*delayq.Item
		letters []*dlq.Letter
	)
	for _, t := range a.w.tasks {
		v := &t.verdict
		switch v.fate {
		case succeeded, skipped:
			continue
		case delayed, blocked:
			if t.item == nil {
				items = append(items, a.itemOf(t))
			}
		case dead:
			letters = append(letters, a.letterOf(t))
		default:
		}
		if v.claimed {
			unclaim = append(unclaim, t.message.claim)
		}
	}
	if a.flight != nil {
		a.flight.Unclaim(b, unclaim)
	}
	a.c.delayed.Put(b, items)
	a.queueOvertaken(b)
	a.c.letters.Put(b, letters) // gives letters their ids, which feed needs
	return a.queueSuccesses(b, append(answers, a.c.feed(letters)...))
}

// queueSuccesses adds what handlers that succeeded have left: results, effects, and
// that their dead letters are settled.
func (a *attempt) queueSuccesses(b *pgx.Batch, fed []outbox.Caused) error {
	var (
		closed  []uuid.UUID
		results []dedup.Result
		effects []outbox.Caused
	)
	for _, t := range a.w.tasks {
		if t.verdict.fate != succeeded && t.verdict.fate != skipped {
			continue
		}
		closed = append(closed, t.verdict.closes...)
		answered := a.answers(t)
		if (t.message.left || answered) && t.verdict.claimed {
			results = append(results, dedup.Result{Claim: t.message.claim, Value: t.message.result, Lifetime: a.c.config.ResultLifetime})
		}
		for i := range t.message.effects {
			effects = append(effects, outbox.Caused{Cause: t.cause(), Effect: t.message.effects[i]})
		}
		if answered {
			effects = append(effects, a.answer(t, t.message.result, false))
		}
	}
	a.c.claims.QueueResults(b, results)
	a.c.letters.Resolve(b, append(closed, a.replayedDone()...))
	a.queueOvertakenHere(b)
	return a.queueEffects(b, append(effects, fed...))
}

// queueEffects adds effects, in several statements when ids repeat: two messages may
// mean the same effect by an id of their own, or be given the same answer, and its
// consumers drop the second.
func (a *attempt) queueEffects(b *pgx.Batch, effects []outbox.Caused) error {
	given := map[uuid.UUID]bool{}
	start := 0
	for i := range effects {
		id := effects[i].Effect.ID
		if id == uuid.Nil {
			continue
		}
		if given[id] {
			if err := a.c.outbox.QueueAll(b, effects[start:i]); err != nil {
				return err
			}
			clear(given)
			start = i
		}
		given[id] = true
	}
	return a.c.outbox.QueueAll(b, effects[start:])
}

// checkEffects asks the outbox whether it would take what a message emitted: a
// record that is too large, or has no topic, is the message's failure and not the
// batch's.
func (a *attempt) checkEffects(t *task) error {
	if len(t.message.effects) == 0 {
		return nil
	}
	return a.c.outbox.Check(t.cause(), t.message.effects)
}

// itemOf makes the delay queue's item of a record.
func (a *attempt) itemOf(t *task) *delayq.Item {
	identity := &t.message.Identity
	s := t.source()
	item := &delayq.Item{
		Queue: a.c.queue, Kind: delayq.Failed, OrderKey: t.orderKey, DueIn: t.verdict.after,
		Starts: 1, Attempts: 1,
		Fingerprint: identity.Fingerprint, FingerprintVersion: identity.FingerprintVersion,
		Tenant: identity.Tenant, Operation: identity.Operation, Shown: a.c.shown(identity),
		Source: &delayq.Source{Topic: s.Topic, Partition: s.Partition, Offset: s.Offset, LeaderEpoch: t.record.LeaderEpoch},
		Record: t.record,
	}
	if a.flight != nil {
		item.Claim = uuid.NullUUID{UUID: t.message.claim, Valid: true}
	}
	if t.verdict.fate == blocked {
		item.Kind, item.Starts, item.Attempts, item.DueIn = delayq.Blocked, 0, 0, 0
	}
	if t.verdict.err != nil {
		item.ErrorClass, item.ErrorMessage = errorClass(t.verdict.err), t.verdict.err.Error()
	}
	return item
}

// letterOf makes the dead letter of a record or an item.
func (a *attempt) letterOf(t *task) *dlq.Letter {
	identity := &t.message.Identity
	l := &dlq.Letter{
		Queue: a.c.queue, QueueName: a.c.config.Queue, Reason: t.verdict.reason,
		ErrorClass: errorClass(t.verdict.err), ErrorMessage: t.verdict.err.Error(), Stack: stackOf(t.verdict.err),
		OrderKey: t.orderKey, HoldsKey: a.c.config.OnDead == Block && t.orderKey != uuid.Nil,
		Fingerprint: identity.Fingerprint, FingerprintVersion: identity.FingerprintVersion,
		Tenant: identity.Tenant, Operation: identity.Operation, Shown: a.c.shown(identity),
		Record: t.record,
	}
	if a.c.config.Claims == ClaimIDs && t.unfit == nil {
		l.Claim = uuid.NullUUID{UUID: t.message.claim, Valid: true}
	}
	started := 0
	if t.verdict.started {
		started = 1
	}
	if t.item == nil {
		s := t.source()
		l.Source = &dlq.Source{Topic: s.Topic, Partition: s.Partition, Offset: s.Offset, LeaderEpoch: t.record.LeaderEpoch}
		l.Starts, l.Attempts = started, started
		return l
	}
	i := t.item
	l.ID, l.OrderPos, l.FirstSeen, l.ReplayCount = i.ID, i.OrderPos, i.FirstSeen, i.ReplayCount
	l.Starts, l.Attempts, l.Crashes, l.Interrupted, l.InterruptedWhy = i.Starts, i.Attempts+started, i.Crashes, i.Interrupted, i.InterruptedWhy
	if i.Source != nil {
		l.Source = &dlq.Source{Topic: i.Source.Topic, Partition: i.Source.Partition, Offset: i.Source.Offset, LeaderEpoch: i.Source.LeaderEpoch}
	}
	return l
}

func (t *task) age() time.Duration {
	if t.item == nil {
		return 0
	}
	return t.item.Age
}
