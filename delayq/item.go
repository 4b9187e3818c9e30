package delayq

import (
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/rowrecord"
)

// Kind is why an item is in the delay queue. Whether it is blocked *now* is not
// its kind: that is derived from the items before it.
type Kind string

const (
	// Failed: an attempt failed and another one is due.
	Failed Kind = "failed"
	// Blocked: stored behind an unfinished item of its order key. It has had no
	// attempt.
	Blocked Kind = "blocked"
	// Scheduled: its producer wants it handled later. Until it is due it holds up
	// nothing and nothing holds it up; then it joins the end of its order key.
	Scheduled Kind = "scheduled"
	// Replay: a dead letter that an operator wants tried again.
	Replay Kind = "replay"
)

// Source is where an item's record came from. A queue stores one item for a
// source, however often the record is read.
type Source struct {
	Topic       int32 // the topic's number in claimq.topics
	Partition   int32
	Offset      int64
	LeaderEpoch int32 // -1: not known
}

// SourceID is the id that an item of this source has in a queue, and its dead
// letter after it: the same each time that a batch is run.
func SourceID(queue int32, s Source) uuid.UUID {
	return rowrecord.SourceID(queue, s.Topic, s.Partition, s.Offset)
}

// Item is one message in the delay queue.
type Item struct {
	// ID is kept through death and replay. Nil at Put: SourceID, or a new id when
	// there is no source.
	ID uuid.UUID
	// OrderPos is the item's place in its order key. 0 at Put: the next one.
	OrderPos int64
	Queue    int32
	Kind     Kind
	// OrderKey is the digest of what is kept in order. Nil: nothing is, and the
	// item waits for itself only.
	OrderKey uuid.UUID

	// DueIn is when the item is due, counted by the database's clock from the
	// statement that stores it. DueAt, when it is set, is an absolute time instead.
	// Items that come out have DueAt.
	DueIn time.Duration
	DueAt time.Time

	// Starts is how often a handler was started or about to be, the start that an
	// item was handed out for included. Attempts ended with a verdict; Crashes are
	// leases that ended without; Interrupted were cut short by a shutdown, a lost
	// partition or the like, for InterruptedWhy the last time. At Put after a first
	// failure Starts and Attempts are 1.
	Starts, Attempts, Crashes, Interrupted int
	InterruptedWhy                         string

	// Claim is the digest of the message's id; not valid for a queue without
	// claims. Two items never have one claim: the second is folded.
	Claim              uuid.NullUUID
	Fingerprint        uuid.UUID
	FingerprintVersion int16 // 0: there is no fingerprint
	Tenant, Operation  *string
	Shown              string // the id for people, shortened; empty when that is turned off

	// Source is nil for a message that was scheduled outside of Kafka.
	Source *Source
	// Record is the message, byte for byte. When there is a source, partition,
	// offset and leader epoch are the source's.
	Record *kgo.Record

	// FirstSeen is when the message was first met, kept through death and replay.
	// Zero at Put: now, by the database's clock.
	FirstSeen time.Time
	// Age is how long ago the item was stored, by the database's clock: what
	// Policy.Next takes as elapsed. Set on items that come out.
	Age time.Duration
	// ErrorClass and ErrorMessage are of the newest failure. Any bytes: what
	// Postgres cannot hold is shown escaped, and the message is bounded.
	ErrorClass, ErrorMessage string

	// ReplayID is the replay that put the item here, ReplayCount how many have.
	ReplayID    uuid.NullUUID
	ReplayCount int

	// Folded is set when Put's statements have run and found that the item's id,
	// claim or source is there already: nothing was stored for it.
	Folded bool
}
