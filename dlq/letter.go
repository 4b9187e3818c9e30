package dlq

import (
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/rowrecord"
)

// Reason is why no further attempt is made. Queues may have reasons of their own;
// these are claimq's.
type Reason string

const (
	// Exhausted: all attempts failed, or the policy's deadline passed.
	Exhausted Reason = "exhausted"
	// Permanent: the handler said that trying again is of no use.
	Permanent Reason = "permanent"
	// MissingID: no id rule yielded an id, and the queue rejects such messages.
	MissingID Reason = "missing_id"
	// Undecodable: the message could not be read as what it should be.
	Undecodable Reason = "undecodable"
	// Conflict: the id has been used for another payload.
	Conflict Reason = "conflict"
	// Crashed: the message was alone in work, more than once, when its worker died.
	Crashed Reason = "crashed the worker"
)

// State is where a letter stands.
type State string

const (
	// Dead: nothing is tried until someone decides.
	Dead State = "dead"
	// Replaying: it is in the delay queue again.
	Replaying State = "replaying"
	// Resolved: its processing has committed, by a replay or by a repeat of its id.
	Resolved State = "resolved"
	// Discarded: an operator decided that it is not needed. It can be restored.
	Discarded State = "discarded"
	// Erased: discarded, and its bytes are gone for good.
	Erased State = "erased"
)

// Source is where a letter's record came from. A queue has one letter for a source.
type Source struct {
	Topic       int32 // the topic's number in claimq.topics
	Partition   int32
	Offset      int64
	LeaderEpoch int32 // -1: not known
}

// SourceID is the id that the letter of a source has in a queue, and the delayed
// item before it: the same each time that a batch is run.
func SourceID(queue int32, s Source) uuid.UUID {
	return rowrecord.SourceID(queue, s.Topic, s.Partition, s.Offset)
}

// Letter is one dead message.
type Letter struct {
	// ID is the item's when it died in the delay queue. Nil at Put: SourceID, or a
	// new id when there is no source.
	ID    uuid.UUID
	Queue int32
	// QueueName is the queue's name: part of the cause and of the fed record. Put
	// needs it; letters that come out have it.
	QueueName string
	State     State
	// Round is how often the message has died, this time included. 0 at Put:
	// ReplayCount + 1.
	Round int

	Reason Reason
	// ErrorClass and ErrorMessage are of the last failure, Stack is a panic's. Any
	// bytes: what Postgres cannot hold is shown escaped, and all three are bounded.
	ErrorClass, ErrorMessage, Stack string
	// Cause groups letters, see Cause. Set by Put.
	Cause        uuid.UUID
	CauseVersion int16

	// What it took, as the delay queue counts.
	Starts, Attempts, Crashes, Interrupted int
	InterruptedWhy                         string

	// OrderKey is the digest of what is kept in order; nil: nothing is. OrderPos is
	// the place in it; 0 at Put: the next one.
	OrderKey uuid.UUID
	OrderPos int64
	// HoldsKey makes what is stored behind this letter wait for as long as it is
	// dead (on_dead: block).
	HoldsKey bool

	Claim              uuid.NullUUID
	Fingerprint        uuid.UUID
	FingerprintVersion int16 // 0: there is no fingerprint
	Tenant, Operation  *string
	Shown              string // the id for people, shortened; empty when that is turned off

	// Source is nil for a message that did not come from Kafka.
	Source *Source
	// Record is the message, byte for byte; nil once it has been erased. When there
	// is a source, partition, offset and leader epoch are the source's.
	Record *kgo.Record

	// FirstSeen is when the message was first met. Zero at Put: now, by the
	// database's clock, which sets the other two as well.
	FirstSeen, DiedAt time.Time
	// SettledAt is when it was resolved or discarded; zero while it is open.
	SettledAt   time.Time
	ReplayCount int

	// Known is set when Put's statements have run and found this death written
	// already: nothing was stored.
	Known bool
}
