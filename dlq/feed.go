package dlq

import (
	"encoding/binary"
	"errors"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/pgtext"
)

// HeaderPrefix is what claimq's own headers on a dead-letter topic begin with.
// Headers of the record that have it already, from an earlier death, are replaced.
const HeaderPrefix = "claimq-"

// The headers of a fed record. All values are text; times are RFC 3339 in UTC with
// milliseconds. A header whose value would be empty is left out.
const (
	HeaderLetterID          = HeaderPrefix + "letter-id"
	HeaderReason            = HeaderPrefix + "reason"
	HeaderQueue             = HeaderPrefix + "queue"
	HeaderRound             = HeaderPrefix + "round"
	HeaderOriginalTopic     = HeaderPrefix + "original-topic"
	HeaderOriginalPartition = HeaderPrefix + "original-partition"
	HeaderOriginalOffset    = HeaderPrefix + "original-offset"
	HeaderOriginalTimestamp = HeaderPrefix + "original-timestamp"
	HeaderAttempts          = HeaderPrefix + "attempts"
	HeaderID                = HeaderPrefix + "id"
	HeaderTenant            = HeaderPrefix + "tenant"
	HeaderOperation         = HeaderPrefix + "operation"
	HeaderCause             = HeaderPrefix + "cause"
	HeaderErrorClass        = HeaderPrefix + "error-class"
	HeaderErrorMessage      = HeaderPrefix + "error-message"
	HeaderPointer           = HeaderPrefix + "pointer"
)

// DefaultMaxBytes is what a record may have unless FeedOptions say otherwise: the
// client library's default limit for a batch, which is below the brokers'.
const DefaultMaxBytes = 1_000_012

// Bounds of header values, in bytes.
const (
	maxHeaderMessage = 1 << 10
	maxHeaderText    = 256
)

// minHeaderMessage is how much room the error message must have to be worth it.
const minHeaderMessage = 64

// FeedOptions say what the dead-letter topic takes. The zero value is ready to use.
type FeedOptions struct {
	// MaxBytes is the least of the topic's max.message.bytes and the producer's
	// limits: a batch with nothing but this record must not be larger before
	// compression. 0 means DefaultMaxBytes.
	MaxBytes int
}

// FeedRecord is what goes to the dead-letter topic.
type FeedRecord struct {
	Topic   string
	Key     []byte
	Value   []byte
	Headers []kgo.RecordHeader
	// EffectID is the outbox effect's id: the same each time that this death is
	// written, another one for the next round.
	EffectID uuid.UUID
	// Pointer says that the record did not fit: the value, and what else
	// HeaderPointer names, is in the row only.
	Pointer bool
}

// ErrNoRoom says that a topic's limit has no room for even a pointer record.
var ErrNoRoom = errors.New("dlq: the dead-letter topic's max.message.bytes has no room for a pointer record: raise it above 1024")

// effectSpace is the namespace of the fed records' effect ids.
var effectSpace = uuid.MustParse("0e0c6c5b-2d9e-5b7a-a3f5-1f8c7d3f9a44")

// Feed returns the letter as a record for the dead-letter topic: the exact key,
// value and headers, and claimq's headers behind them.
//
//	claimq-letter-id           the letter: `claimq dlq show <id>`
//	claimq-reason              exhausted, permanent, missing_id, conflict, …
//	claimq-queue               the queue's name
//	claimq-round               how often the message has died: 1, 2, …
//	claimq-original-topic      where the record came from; not there when it did
//	claimq-original-partition  not come from Kafka
//	claimq-original-offset
//	claimq-original-timestamp  the record's own time, for example 2026-01-02T03:04:05.678Z
//	claimq-attempts            attempts that ended with a verdict
//	claimq-id                  the message's id, shortened as in the row
//	claimq-tenant, claimq-operation
//	claimq-cause               groups letters that died of one thing
//	claimq-error-class         of the last failure
//	claimq-error-message       of the last failure, at most 1 KiB, its end marked when it is cut
//	claimq-pointer             on a pointer record: what was left out, for example value
//
// A record keeps its value for as long as there is room for the letter's id
// beside it: what does not fit of claimq's headers is left out, from the end of the
// table up, the error message first shortened. When not even that fits, the record
// becomes a pointer: without the value, then without the record's own headers, then
// without the key, as HeaderPointer tells. The row has all of it.
//
// The letter needs ID, Round and Cause, as Put sets them. The only error is
// ErrNoRoom.
func (l *Letter) Feed(topic string, o FeedOptions) (FeedRecord, error) {
	limit := o.MaxBytes
	if limit <= 0 {
		limit = DefaultMaxBytes
	}
	r := FeedRecord{Topic: topic, Key: l.Record.Key, Value: l.Record.Value, EffectID: l.effectID()}
	theirs := foreignHeaders(l.Record.Headers)
	for _, left := range []string{"", "value", "value,headers", "value,headers,key"} {
		if left != "" {
			r.Pointer, r.Value = true, nil
		}
		switch left {
		case "value,headers":
			theirs = nil
		case "value,headers,key":
			r.Key = nil
		}
		if headers, ok := l.headers(r, theirs, left, limit); ok {
			r.Headers = headers
			return r, nil
		}
	}
	return FeedRecord{}, ErrNoRoom
}

// effectID holds the letter and the round, so that a second death is a new record
// and a repeat of the transaction is none.
func (l *Letter) effectID() uuid.UUID {
	name := append([]byte{}, l.ID[:]...)
	return uuid.NewSHA1(effectSpace, binary.BigEndian.AppendUint32(name, uint32(l.Round))) //nolint:gosec // rounds are few
}

// headers puts claimq's headers behind the record's own, as many as the limit has
// room for. It reports false when not even the required ones fit.
func (l *Letter) headers(r FeedRecord, theirs []kgo.RecordHeader, pointer string, limit int) ([]kgo.RecordHeader, bool) {
	headers := append(make([]kgo.RecordHeader, 0, len(theirs)+16), theirs...)
	add := func(name, value string) bool {
		if value == "" {
			return true
		}
		with := append(headers, kgo.RecordHeader{Key: name, Value: []byte(value)}) //nolint:gocritic // it becomes headers, or nobody reads it
		if batchSize(r.Key, r.Value, with) > limit {
			return false
		}
		headers = with
		return true
	}
	if !add(HeaderLetterID, l.ID.String()) || !add(HeaderPointer, pointer) {
		return nil, false
	}
	for _, h := range l.described() {
		if !add(h.name, pgtext.Storable(h.value, maxHeaderText)) {
			return headers, true
		}
	}
	for size := maxHeaderMessage; size >= minHeaderMessage; size /= 2 {
		if add(HeaderErrorMessage, pgtext.Storable(l.ErrorMessage, size)) {
			break
		}
	}
	return headers, true
}

type header struct{ name, value string }

// described is what a reader of the topic is told, the most useful first.
func (l *Letter) described() []header {
	list := []header{
		{HeaderReason, string(l.Reason)},
		{HeaderQueue, l.QueueName},
		{HeaderRound, strconv.Itoa(l.Round)},
	}
	if l.Source != nil {
		list = append(list,
			header{HeaderOriginalTopic, l.Record.Topic},
			header{HeaderOriginalPartition, strconv.Itoa(int(l.Source.Partition))},
			header{HeaderOriginalOffset, strconv.FormatInt(l.Source.Offset, 10)})
	}
	return append(list,
		header{HeaderOriginalTimestamp, l.Record.Timestamp.UTC().Format("2006-01-02T15:04:05.000Z07:00")},
		header{HeaderAttempts, strconv.Itoa(l.Attempts)},
		header{HeaderID, l.Shown},
		header{HeaderTenant, deref(l.Tenant)},
		header{HeaderOperation, deref(l.Operation)},
		header{HeaderCause, l.Cause.String()},
		header{HeaderErrorClass, l.ErrorClass})
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// foreignHeaders are the headers that are not claimq's, in order.
func foreignHeaders(headers []kgo.RecordHeader) []kgo.RecordHeader {
	var list []kgo.RecordHeader
	for _, h := range headers {
		if !strings.HasPrefix(h.Key, HeaderPrefix) {
			list = append(list, h)
		}
	}
	return list
}

// batchOverhead is the fixed part of a record batch of the format v2, up to and
// with the count of records (KIP-98), and the length in front of it that the client
// library counts against its own limit. Brokers count 61.
const batchOverhead = 61 + 4

// batchSize is the size of a batch that has this record alone, as it is compared
// with max.message.bytes and the producer's limit: of the record's variable-length
// numbers, the ones that only the producer knows (the timestamp's difference and
// the offset's, which are 0) have one byte.
func batchSize(key, value []byte, headers []kgo.RecordHeader) int {
	record := 1 + 1 + 1 + bytesSize(len(key)) + bytesSize(len(value)) + varintSize(len(headers))
	for _, h := range headers {
		record += bytesSize(len(h.Key)) + bytesSize(len(h.Value))
	}
	return batchOverhead + varintSize(record) + record
}

func bytesSize(n int) int { return varintSize(n) + n }

// varintSize is the size of a number in Kafka's zigzag encoding.
func varintSize(n int) int {
	return len(binary.AppendVarint(make([]byte, 0, binary.MaxVarintLen64), int64(n)))
}
