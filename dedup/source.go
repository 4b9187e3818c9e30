package dedup

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A Source finds one text in a record: an id, a tenant, an operation. Sources are combined by Rules into chains, of which the first that finds something
// wins.
//
// Find is safe for concurrent use, does not keep the record and does not change it. Its three answers are different things: found (the text may be empty:
// what an empty text means is for the rule to say), not found (this record has none here, the next source of the chain is asked), and an error (the record
// has something here that cannot be read, so that asking on would give the message another identity in silence). The sources of this package return errors
// of type *UndecodableError only.
//
// String is the source's canonical text, the same that ParseSource reads. It is part of the digest of a queue's rule, so two sources of one text must find
// the same text in every record. A Source of your own must keep that too; Func is the easier way to one.
type Source interface {
	Find(r *kgo.Record) (value string, found bool, err error)
	String() string
}

// ownSource is what the sources of this package add: they can be checked before the first record, and they tell whether they can tell messages apart.
type ownSource interface {
	Source
	// check returns what is wrong with the source as it was made, or nil.
	check() error
	// constant reports that the source finds the same text in every record of a topic.
	constant() bool
}

// Header finds the value of the record header of that name. The name is compared byte for byte: Kafka knows no case folding, and neither does Header.
//
// Kafka allows a name more than once. The last one decides, as in the lastHeader of Kafka's own client, because what forwards a record appends. It decides
// also when it is null (not found) or empty (found, empty): an earlier one that it was to replace does not come back.
// White space and case of the value are significant; bytes that are not UTF-8 are kept as they are.
func Header(name string) Source { return headerSource{kind: kindHeader, name: name} }

// StandardWebhooks finds the webhook-id header of the Standard Webhooks specification, where a bridge has put the HTTP headers of a webhook into the record.
// The specification makes it the idempotency key: it is unique for a message, and the same when the sender tries again.
func StandardWebhooks() Source {
	return headerSource{kind: kindStandardWebhooks, name: "webhook-id"}
}

type headerSource struct{ kind, name string }

func (s headerSource) Find(r *kgo.Record) (string, bool, error) {
	value, found := lastHeader(r, s.name)
	if !found {
		return "", false, nil
	}
	return string(value), true, nil
}

func (s headerSource) String() string {
	if s.kind == kindStandardWebhooks {
		return s.kind
	}
	return s.kind + ":" + ruleArgument(s.name)
}

func (s headerSource) check() error {
	if s.name == "" {
		return errors.New("header: the header's name is empty")
	}
	return nil
}

func (headerSource) constant() bool { return false }

// lastHeader returns the value of the last header of that name, and whether there is one that is not null.
func lastHeader(r *kgo.Record, name string) ([]byte, bool) {
	for _, header := range slices.Backward(r.Headers) {
		if header.Key == name {
			return header.Value, header.Value != nil
		}
	}
	return nil, false
}

// RecordKey finds the Kafka record key. A null key is not found; an empty one is found, and empty. The key's bytes are the text whether or not they are
// UTF-8, so that two binary keys are two ids.
//
// A record key serves as an id only where it is one per message. Where it names an entity (all events of one order have the order's number) it would make
// every event after the first a repeat or a conflict.
func RecordKey() Source { return keySource{} }

type keySource struct{}

func (keySource) Find(r *kgo.Record) (string, bool, error) { return string(r.Key), r.Key != nil, nil }
func (keySource) String() string                           { return kindKey }
func (keySource) check() error                             { return nil }
func (keySource) constant() bool                           { return false }

// Topic finds the name of the record's topic. It is for operation rules: a queue of several topics that uses it says that one id may appear once in each.
func Topic() Source { return topicSource{} }

type topicSource struct{}

func (topicSource) Find(r *kgo.Record) (string, bool, error) { return r.Topic, true, nil }
func (topicSource) String() string                           { return kindTopic }
func (topicSource) check() error                             { return nil }
func (topicSource) constant() bool                           { return true }

// Const finds the same value in every record: the end of a chain that gives a tenant or an operation to the records that name none, or a part of a Join.
// The value must not be empty.
func Const(value string) Source { return constSource{value: value} }

type constSource struct{ value string }

func (s constSource) Find(*kgo.Record) (string, bool, error) { return s.value, true, nil }
func (s constSource) String() string                         { return kindConst + ":" + ruleArgument(s.value) }
func (constSource) constant() bool                           { return true }

func (s constSource) check() error {
	if s.value == "" {
		return errors.New("const: the value is empty; leave the rule out where there is none")
	}
	return nil
}

// Func finds what a Go function finds: the way to ids in Avro, Protobuf or anything else that needs a decoder. The function must be safe for concurrent
// use. Its error, or its panic, makes the record undecodable.
//
// The name stands for the function in the rule's text, where changes of the rule are seen: give the function a new name when it begins to find something
// else, and keep the name when it does not.
func Func(name string, find func(*kgo.Record) (string, bool, error)) Source {
	return funcSource{name: name, find: find}
}

type funcSource struct {
	name string
	find func(*kgo.Record) (string, bool, error)
}

func (s funcSource) Find(r *kgo.Record) (value string, found bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			value, found, err = "", false, undecodable(s, r, fmt.Errorf("panic: %v", p))
		}
	}()
	value, found, err = s.find(r)
	if err != nil {
		return "", false, undecodable(s, r, err)
	}
	return value, found, nil
}

func (s funcSource) String() string { return kindFunc + ":" + ruleArgument(s.name) }
func (funcSource) constant() bool   { return false }

func (s funcSource) check() error {
	if s.name == "" {
		return errors.New("func: the name is empty; it stands for the function in the rule's text")
	}
	if s.find == nil {
		return fmt.Errorf("func %q: the function is nil", s.name)
	}
	return nil
}

// Join finds a text of several parts: each must be found and not be empty, else nothing is found, because half an id would be shared by messages that have
// nothing else in common. Each part is preceded by its length in bytes and a colon, so that ("a", "bc") is "1:a2:bc" and differs from ("ab", "c").
// Join needs two parts or more.
func Join(parts ...Source) Source { return joinSource{parts: append([]Source(nil), parts...)} }

type joinSource struct{ parts []Source }

func (s joinSource) Find(r *kgo.Record) (string, bool, error) {
	var joined []byte
	for _, part := range s.parts {
		value, found, err := part.Find(r)
		if err != nil {
			return "", false, err
		}
		if !found || value == "" {
			return "", false, nil
		}
		joined = appendPart(joined, value)
	}
	return string(joined), true, nil
}

func (s joinSource) String() string {
	texts := make([]string, len(s.parts))
	for i, part := range s.parts {
		texts[i] = sourceText(part)
	}
	return kindJoin + "(" + strings.Join(texts, ",") + ")"
}

func (s joinSource) check() error {
	if len(s.parts) < 2 {
		return fmt.Errorf("join: has %d parts, needs two or more; write a single source by itself", len(s.parts))
	}
	for i, part := range s.parts {
		if err := checkSource(part); err != nil {
			return fmt.Errorf("join: part %d: %w", i+1, err)
		}
	}
	return nil
}

func (s joinSource) constant() bool {
	for _, part := range s.parts {
		if !isConstant(part) {
			return false
		}
	}
	return true
}

// checkSource returns what is wrong with a source before the first record. Sources of other packages are asked for no more than a text.
func checkSource(s Source) error {
	if s == nil {
		return errors.New("the source is nil")
	}
	if own, ok := s.(ownSource); ok {
		return own.check()
	}
	if s.String() == "" {
		return fmt.Errorf("source %T: String returns an empty text; it stands for the source in the rule's text", s)
	}
	return nil
}

func isConstant(s Source) bool {
	own, ok := s.(ownSource)
	return ok && own.constant()
}
