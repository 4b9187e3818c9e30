package dedup

import (
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A MissingIDError is returned by Rules.Identify for a record in which no source finds an id, under MissingReject: the producer left it out, or names it
// otherwise than the rule does. `claimq keys try` shows how many records of a topic a rule fits.
type MissingIDError struct {
	Queue     string
	Topic     string
	Partition int32
	Offset    int64
	Tried     []string // the texts of the sources that were asked
	// NoTopicID reports that the policy was MissingOffset and the topic's id was not known, without which an offset is no identity.
	NoTopicID bool
}

func (e *MissingIDError) Error() string {
	if e.NoTopicID {
		return fmt.Sprintf("queue %s: record %s has no id, and cannot be identified by its offset because the id of its topic is not known (brokers before Kafka 2.8 have none)",
			e.Queue, recordName(e.Topic, e.Partition, e.Offset))
	}
	return fmt.Sprintf("queue %s: record %s has no id: none, or an empty one, in %s", e.Queue, recordName(e.Topic, e.Partition, e.Offset), strings.Join(e.Tried, ", "))
}

// An UndecodableError is returned for a record that a source cannot read: a value that is not the JSON or XML that it is declared to be, a path that leads to an
// object, a decoder that fails. It does not quote the payload, unless the error of a Go function does.
type UndecodableError struct {
	Rule      string // id, tenant or operation; empty when Source.Find was called by itself
	Source    string // the source's text
	Topic     string
	Partition int32
	Offset    int64
	Err       error // why
}

func (e *UndecodableError) Error() string {
	rule := e.Rule
	if rule == "" {
		rule = "source"
	}
	return fmt.Sprintf("%s %s cannot read record %s: %v", rule, e.Source, recordName(e.Topic, e.Partition, e.Offset), e.Err)
}

// Unwrap returns why the record cannot be read.
func (e *UndecodableError) Unwrap() error { return e.Err }

func recordName(topic string, partition int32, offset int64) string {
	return fmt.Sprintf("%s[%d]@%d", topic, partition, offset)
}

func undecodable(s Source, r *kgo.Record, err error) *UndecodableError {
	return &UndecodableError{Source: s.String(), Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Err: err}
}

// asUndecodable makes an error of a source that of a rule. Sources of other packages may return any error.
func asUndecodable(rule string, s Source, r *kgo.Record, err error) *UndecodableError {
	var known *UndecodableError
	if !errors.As(err, &known) {
		known = undecodable(s, r, err)
	}
	named := *known // a Func may return one value of its own each time
	named.Rule = rule
	return &named
}
