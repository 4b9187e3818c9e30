package consumer

import (
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/delayq"
	"github.com/claimq/claimq/dlq"
	"github.com/claimq/claimq/outbox"
)

// A task is a message with what the engine knows of it: from a partition, or from
// the delay queue.
type task struct {
	record  *kgo.Record
	message *Message

	// One of the two is set.
	strand *strand
	item   *delayq.Item

	size     int
	orderKey uuid.UUID // uuid.Nil: not ordered
	handler  *Handler  // nil: no route takes it
	unfit    error     // no id, or undecodable: it is dead without being handled
	verdict  verdict
	place    int // in the claims' flight of the attempt
	turn     int // in the attempt: its place among the tasks
}

// fate is what becomes of a task in the transaction that is being made.
type fate uint8

const (
	undecided fate = iota
	succeeded      // the handler ran
	skipped        // the handler said Skip, or no route takes it
	duplicate      // its id is claimed
	known          // its source is delayed or dead already: only the position moves
	folded         // its id waits in the delay queue
	blocked        // stored behind an unfinished message of its order key
	delayed        // failed, to be tried again
	dead           // failed for good
	setAside       // goes back to its strand, for a batch of its own
)

// String returns the outcome's word in metrics.
func (f fate) String() string {
	return [...]string{
		"undecided", "processed", "skipped", "duplicate", "known", "folded", "blocked", "delayed", "dead", "set_aside",
	}[f]
}

// A verdict is a fate with its reasons.
type verdict struct {
	fate     fate
	err      error
	reason   dlq.Reason
	claimed  bool // this transaction has claimed the id
	closes   []uuid.UUID
	recorded *dedup.Outcome // what the claim said, for duplicates and conflicts
	after    time.Duration  // delayed: until due
	started  bool           // the handler was called for it
}

func (t *task) source() *dedup.Sighting {
	if t.strand == nil {
		if t.item.Source == nil {
			return nil
		}
		return &dedup.Sighting{Topic: t.item.Source.Topic, Partition: t.item.Source.Partition, Offset: t.item.Source.Offset}
	}
	p := t.strand.partition
	return &dedup.Sighting{Topic: p.number, Partition: p.partition, Offset: t.record.Offset}
}

// decided reports whether the transaction decided something of the task: what was
// left for later counts then.
func (t *task) decided() bool {
	switch t.verdict.fate {
	case undecided, setAside:
		return false
	case blocked, folded:
		return t.item == nil
	default:
		return true
	}
}

// attempts is how many attempts had a verdict before this one.
func (t *task) attempts() int {
	if t.item == nil {
		return 0
	}
	return t.item.Attempts
}

// cause ties the effects of the task to it.
func (t *task) cause() outbox.Cause {
	cause := outbox.Cause{Claim: t.message.claim, CausationID: t.message.Identity.ID}
	if value, ok := t.message.Header(outbox.HeaderCorrelation); ok {
		cause.CorrelationID = string(value)
	} else {
		cause.CorrelationID = t.message.Identity.ID
	}
	return cause
}

// renewMessage takes the message away from a handler that was left behind with it:
// what that one still does to it is nobody's business. Only what a handler may not
// write is read from it, since it may be writing the rest at this moment.
func (t *task) renewMessage() {
	old := t.message
	t.message = &Message{
		Record: old.Record, Identity: old.Identity, Attempt: old.Attempt, MaxAttempts: old.MaxAttempts,
		FirstSeen: old.FirstSeen, Replayed: old.Replayed, Scheduled: old.Scheduled, claim: old.claim,
	}
}
