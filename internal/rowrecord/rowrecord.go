// Package rowrecord keeps a Kafka record in the columns of a row, byte for byte:
// the one encoding that the delay queue and the dead letters share.
//
//	record_topic       text      the topic's name
//	record_key         bytea     null: the record has no key; empty is another thing
//	record_value       bytea     null: the record has no value (a tombstone)
//	header_keys        bytea[]   in the record's order, repeats kept; Kafka's header
//	                             keys are strings, but nobody checks their UTF-8
//	header_values      bytea[]   beside them; null elements are null values
//	record_at          timestamptz
//	record_attributes  smallint  timestamp type, compression, transactional, control
//
// Partition, offset and leader epoch are the row's own columns, because they say
// where the record came from and are null for one that did not come from Kafka.
// What is not kept is the producer's id and epoch, which mean nothing outside of
// the log they were written to, and the record's Context.
//
// Kafka's timestamps are milliseconds; the client library holds them in 64-bit
// nanoseconds, so every timestamp that can come from it fits a timestamptz.
package rowrecord

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Columns is one record as a row holds it.
type Columns struct {
	Topic        string
	Key, Value   []byte
	HeaderKeys   [][]byte
	HeaderValues [][]byte
	At           time.Time
	Attributes   int16
}

// Split returns a record's columns. They share the record's bytes.
func Split(record *kgo.Record) Columns {
	c := Columns{
		Topic: record.Topic, Key: record.Key, Value: record.Value,
		HeaderKeys:   make([][]byte, len(record.Headers)),
		HeaderValues: make([][]byte, len(record.Headers)),
		At:           record.Timestamp.Round(0), // no monotonic clock reading
		Attributes:   attributes(record.Attrs),
	}
	for i, h := range record.Headers {
		c.HeaderKeys[i], c.HeaderValues[i] = []byte(h.Key), h.Value
	}
	return c
}

// Position is where a record was read. The zero Position is that of a record
// which has not been in Kafka.
type Position struct {
	Partition   int32
	Offset      int64
	LeaderEpoch int32
}

// Record returns the record that the columns were split from, at its position. A
// record without headers has a nil Headers.
func (c *Columns) Record(at Position) *kgo.Record {
	record := &kgo.Record{
		Topic: c.Topic, Key: c.Key, Value: c.Value,
		Timestamp: c.At, Attrs: recordAttrs(c.Attributes),
		Partition: at.Partition, Offset: at.Offset, LeaderEpoch: at.LeaderEpoch,
	}
	if len(c.HeaderKeys) > 0 {
		record.Headers = make([]kgo.RecordHeader, len(c.HeaderKeys))
		for i, key := range c.HeaderKeys {
			record.Headers[i] = kgo.RecordHeader{Key: string(key), Value: c.HeaderValues[i]}
		}
	}
	return record
}

// Targets returns where to scan the columns record_topic, record_key,
// record_value, header_keys, header_values, record_at and record_attributes, in
// this order.
func (c *Columns) Targets() []any {
	return []any{&c.Topic, &c.Key, &c.Value, &c.HeaderKeys, &c.HeaderValues, &c.At, &c.Attributes}
}

// Kafka's own bits of a record batch's attributes, and above them the client
// library's for records of the oldest format, which had no timestamp.
const (
	codecBits         = 0b0000_0111
	logAppendTime     = 0b0000_1000
	transactional     = 0b0001_0000
	control           = 0b0010_0000
	withoutTimestamps = 0b1000_0000
)

func attributes(attrs kgo.RecordAttrs) int16 {
	bits := int16(attrs.CompressionType())
	switch attrs.TimestampType() {
	case 1:
		bits |= logAppendTime
	case -1:
		bits |= withoutTimestamps
	}
	if attrs.IsTransactional() {
		bits |= transactional
	}
	if attrs.IsControl() {
		bits |= control
	}
	return bits
}

func recordAttrs(bits int16) kgo.RecordAttrs {
	opts := kgo.RecordAttrsOpts{
		Codec:         kgo.CompressionCodecType(bits & codecBits),
		Transactional: bits&transactional != 0,
		Control:       bits&control != 0,
	}
	switch {
	case bits&withoutTimestamps != 0:
		opts.TimestampType = -1
	case bits&logAppendTime != 0:
		opts.TimestampType = 1
	}
	return kgo.NewRecordAttrs(opts)
}
