package outbox

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"
)

// An Effect is a record to publish once its transaction has committed, and never
// if it rolls back.
//
// Key, Value and Headers are borrowed until the statement has been sent and are
// published byte for byte: a nil Key or Value is Kafka's null and not the empty
// value, and header names may repeat.
type Effect struct {
	// Name names the effect within its claim, for example "order-confirmed": with
	// the claim and Step it makes the effect's id, which is therefore the same
	// whenever the handler runs again. It may be empty only when ID is given.
	Name string
	// Step tells repeats of one name apart, from 0.
	Step int
	// ID is an explicit id, for an application that has no claim; it has to be the
	// same when the application tries again. Zero: derived from claim and name.
	ID uuid.UUID
	// Topic is where the record goes. A topic that does not exist holds up only
	// its own records.
	Topic string
	// Key is the record key. Records of one key and topic keep their order; nil is
	// a null key, which has none.
	Key []byte
	// Value is the record's value; nil is null (a tombstone).
	Value []byte
	// Headers are published as they stand and in their order, before the ones
	// that claimq adds: id, correlation-id and causation-id, each of which is left
	// out when a header of its name is among these.
	Headers []kgo.RecordHeader
	// CloudEvent, when set, adds the headers of a CloudEvent behind Headers.
	CloudEvent *CloudEvent
	// At is when the record is to be published, not before: by the database's clock,
	// and as much later as the relay's IdlePoll. After says it as a pause from when the
	// effect is added. Until then the record lies in claimq.outbox_due, where it costs
	// nothing; it takes its place in the order of its key when it is due. Zero: at once.
	At    time.Time
	After time.Duration
	// Unordered gives up the order per key: the record waits behind no other.
	Unordered bool
	// NoSizeLimit exempts the record from Config.MaxBytes. One that the broker
	// refuses is then set aside by the relay and stays a row.
	NoSizeLimit bool
}

// The reasons that an EffectError can hold.
var (
	// ErrTooLarge says that key, value and headers exceed Config.MaxBytes.
	ErrTooLarge = errors.New("the record is too large")
	// ErrNoID says that the effect has neither an id nor a claim to derive one from.
	ErrNoID = errors.New("the effect has no id: set ID, or give it a Name and a context that carries a Cause with a claim")
	// ErrNoTopic says that the effect names no topic.
	ErrNoTopic = errors.New("the effect has no topic: set Topic")
	// ErrTopicName says that no topic can have the effect's name for one.
	ErrTopicName = errors.New("no topic can have this name: Kafka takes letters, digits, dots, underscores and hyphens, at most 249")
	// ErrSameID says that two effects of one call would be published under one id,
	// so that their consumer would drop the second.
	ErrSameID = errors.New("two effects of one call have the same id: tell them apart by Name or Step")
)

// An EffectError names the effect that was refused. Nothing has been written by
// the call that returns it.
type EffectError struct {
	// Name and Step are the effect's.
	Name string
	Step int
	// Topic is the effect's topic.
	Topic string
	// Size is the record's size in bytes: key, value, and names and values of headers.
	Size int
	// Limit is the size allowed; 0 when the size was not the reason.
	Limit int
	// Err is one of the Err values of this package.
	Err error
}

func (e *EffectError) Error() string {
	text := fmt.Sprintf("outbox: effect %q step %d to topic %q (%d bytes): %v", e.Name, e.Step, e.Topic, e.Size, e.Err)
	if e.Limit > 0 {
		text += fmt.Sprintf(": at most %d bytes are allowed; store the payload elsewhere and publish where it is, or raise MaxBytes together with the topic's max.message.bytes", e.Limit)
	}
	return text
}

func (e *EffectError) Unwrap() error { return e.Err }

// size is what Config.MaxBytes limits.
func (e *Effect) size() int {
	n := len(e.Key) + len(e.Value)
	for _, h := range e.allHeaders(uuid.Nil) {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// refuse makes the error for an effect; limit is 0 unless the size is at fault.
func (e *Effect) refuse(reason error, limit int) error {
	return &EffectError{Name: e.Name, Step: e.Step, Topic: e.Topic, Size: e.size(), Limit: limit, Err: reason}
}

// check reports what makes the effect impossible, and returns its id.
func (e *Effect) check(cause Cause, maxBytes int) (uuid.UUID, error) {
	switch {
	case e.Topic == "":
		return uuid.Nil, e.refuse(ErrNoTopic, 0)
	case !topicName(e.Topic):
		return uuid.Nil, e.refuse(ErrTopicName, 0)
	}
	if e.CloudEvent != nil && !e.CloudEvent.valid() {
		return uuid.Nil, e.refuse(ErrCloudEvent, 0)
	}
	if !e.delayIsClear() {
		return uuid.Nil, e.refuse(ErrDelay, 0)
	}
	if !e.NoSizeLimit {
		if n := e.size(); n > maxBytes {
			return uuid.Nil, e.refuse(ErrTooLarge, maxBytes)
		}
	}
	if e.ID != uuid.Nil {
		return e.ID, nil
	}
	if e.Name == "" || cause.Claim == uuid.Nil || e.Step < 0 || int64(e.Step) > math.MaxInt32 {
		return uuid.Nil, e.refuse(ErrNoID, 0)
	}
	return cause.EffectID(e.Name, e.Step), nil
}

// topicName reports whether Kafka could have a topic of that name. One with bytes
// that a text column does not take would fail the whole transaction.
func topicName(name string) bool {
	for _, c := range []byte(name) {
		letter, digit := c|0x20 >= 'a' && c|0x20 <= 'z', c >= '0' && c <= '9'
		if !letter && !digit && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return len(name) <= 249
}
