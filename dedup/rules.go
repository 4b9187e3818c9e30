package dedup

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/internal/nearest"
)

// A MissingPolicy says what a record without an id is. The zero value is MissingReject.
type MissingPolicy int8

const (
	// MissingReject makes a record without an id an error of type *MissingIDError, which sends it to the dead letters.
	MissingReject MissingPolicy = iota
	// MissingOffset identifies a record without an id by where it is: topic id, partition and offset. What the producer sends twice is then two
	// messages; what Kafka delivers twice is still one.
	MissingOffset
)

// String returns "reject" or "offset", as configuration has it.
func (p MissingPolicy) String() string {
	switch p {
	case MissingReject:
		return "reject"
	case MissingOffset:
		return "offset"
	default:
		return "MissingPolicy(" + strconv.Itoa(int(p)) + ")"
	}
}

// ParseMissingPolicy reads "reject" or "offset".
func ParseMissingPolicy(text string) (MissingPolicy, error) {
	switch text {
	case "reject":
		return MissingReject, nil
	case "offset":
		return MissingOffset, nil
	default:
		return 0, fmt.Errorf("missing policy %q: did you mean %q? the policies are reject, offset", text, nearest.Of(text, []string{"reject", "offset"}))
	}
}

// Rules say what a queue takes for the identity of a message. They are read only while a queue runs, and safe for concurrent use.
// The package documentation tells how to choose them.
type Rules struct {
	// ID is the chain of sources for the id. The first that finds a text which is not empty wins: an empty text counts as not found. White space and case
	// are significant: " a", "a" and "A" are three ids, and " " is one. Needed, unless OnMissing is MissingOffset.
	ID []Source

	// OnMissing says what a record is in which no source finds an id. Default: MissingReject.
	OnMissing MissingPolicy

	// Tenant is the chain for the tenant, within which the id is unique. The first source that finds a text wins, also an empty one: the tenant "" is a tenant
	// like any other, and differs from none (null), which is what a record has when no source finds any. Default: no tenant.
	Tenant []Source

	// Operation is the chain for the operation, within which the id is unique; it works as Tenant does. A queue of several topics declares it: Topic()
	// when one id may appear once in each, a header when the messages name their operation, nothing when an id is one for all topics. Default: no operation.
	Operation []Source

	// Fingerprint tells a repeat from a conflict. Default: Raw.
	Fingerprint Fingerprint
}

// Validate returns what is wrong with the rules, each error naming its field, or nil. It is to be called before the first record.
func (r Rules) Validate() error {
	var errs []error
	chain := func(field string, sources []Source) {
		for i, source := range sources {
			if err := checkSource(source); err != nil {
				errs = append(errs, fmt.Errorf("Rules.%s[%d]: %w", field, i, err))
			}
		}
	}
	chain("ID", r.ID)
	chain("Tenant", r.Tenant)
	chain("Operation", r.Operation)
	if r.OnMissing != MissingReject && r.OnMissing != MissingOffset {
		errs = append(errs, fmt.Errorf("Rules.OnMissing: %s is unknown; use MissingReject or MissingOffset", r.OnMissing))
	}
	if len(r.ID) == 0 && r.OnMissing == MissingReject {
		errs = append(errs, errors.New("Rules.ID: no source is given, so every record would be rejected; name one, or use MissingOffset"))
	}
	for i, source := range r.ID {
		if source != nil && isConstant(source) {
			errs = append(errs, fmt.Errorf("Rules.ID[%d]: %s is the same for every message of a topic, so all but the first would be repeats", i, source))
		}
	}
	if err := r.Fingerprint.check(); err != nil {
		errs = append(errs, fmt.Errorf("Rules.Fingerprint: %w", err))
	}
	return errors.Join(errs...)
}

// String returns the rules' canonical text. It changes when, and only when, records can get another id (OnMissing is part of that), scope or fingerprint;
// two rules of one text identify every record alike. A live queue whose text changes would take its whole topic for new, so it is what is compared before that.
func (r Rules) String() string {
	return fmt.Sprintf("id(%s) missing(%s) tenant(%s) operation(%s) fingerprint(%s)",
		chainText(r.ID), r.OnMissing, chainText(r.Tenant), chainText(r.Operation), r.Fingerprint)
}

func chainText(sources []Source) string {
	texts := make([]string, len(sources))
	for i, source := range sources {
		texts[i] = sourceText(source)
	}
	return strings.Join(texts, ",")
}

// Identify returns the identity of a record in a queue. topicID is Kafka's id of the record's topic, as the consumer was assigned it; it is used by MissingOffset
// only, where it keeps a topic that was deleted and made again from repeating the ids of the first.
//
// Errors are *MissingIDError and *UndecodableError: both are the record's fault and stay the same however often it is tried.
// Identify is safe for concurrent use and keeps nothing of the record; the rules must be valid.
func (r Rules) Identify(queue string, rec *kgo.Record, topicID [16]byte) (Identity, error) {
	identity := Identity{Queue: queue}
	var check jsonCheck
	var err error
	if identity.Tenant, err = findScope("tenant", r.Tenant, rec, &check); err != nil {
		return Identity{}, err
	}
	if identity.Operation, err = findScope("operation", r.Operation, rec, &check); err != nil {
		return Identity{}, err
	}
	if identity.ID, err = r.findID(rec, &check); err != nil {
		return Identity{}, err
	}
	if identity.ID == "" {
		if r.OnMissing != MissingOffset || topicID == [16]byte{} {
			return Identity{}, r.missing(queue, rec)
		}
		identity.FromOffset = true
		identity.ID = offsetID(rec, topicID)
	}
	identity.Fingerprint, identity.FingerprintVersion = r.Fingerprint.Sum(rec.Value)
	return identity, nil
}

// findID returns the first text of the chain that is not empty, or an empty one.
func (r Rules) findID(rec *kgo.Record, check *jsonCheck) (string, error) {
	for _, source := range r.ID {
		value, found, err := findIn(source, rec, check)
		if err != nil {
			return "", asUndecodable("id", source, rec, err)
		}
		if found && value != "" {
			return value, nil
		}
	}
	return "", nil
}

// findScope returns the first text of a chain, or nil. A text that a Postgres text column cannot hold is undecodable: it could not be stored with the claim,
// and two that were made storable could become one.
func findScope(rule string, sources []Source, rec *kgo.Record, check *jsonCheck) (*string, error) {
	for _, source := range sources {
		value, found, err := findIn(source, rec, check)
		if err == nil && found && (!utf8.ValidString(value) || strings.IndexByte(value, 0) >= 0) {
			err = undecodable(source, rec, fmt.Errorf("the %s is not UTF-8, or holds a NUL", rule))
		}
		if err != nil {
			return nil, asUndecodable(rule, source, rec, err)
		}
		if found {
			return &value, nil
		}
	}
	return nil, nil
}

func (r Rules) missing(queue string, rec *kgo.Record) error {
	missing := &MissingIDError{Queue: queue, Topic: rec.Topic, Partition: rec.Partition, Offset: rec.Offset, NoTopicID: r.OnMissing == MissingOffset}
	for _, source := range r.ID {
		missing.Tried = append(missing.Tried, source.String())
	}
	return missing
}

// offsetID is the id of a record that has none: offset:<topic id>/<partition>/<offset>. A producer that writes such a text as an id of its own names the same
// message by it.
func offsetID(rec *kgo.Record, topicID [16]byte) string {
	id := make([]byte, 0, 80)
	id = append(id, "offset:"...)
	id = append(id, uuid.UUID(topicID).String()...)
	id = strconv.AppendInt(append(id, '/'), int64(rec.Partition), 10)
	id = strconv.AppendInt(append(id, '/'), rec.Offset, 10)
	return string(id)
}
