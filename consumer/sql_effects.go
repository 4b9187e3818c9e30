package consumer

import (
	"fmt"
	"slices"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/outbox"
)

// A SQLEffect is a record that is published for each message whose statement has
// run: through the outbox, so that it is out exactly when the write is there, under
// an id that is the same whenever the handler runs again.
type SQLEffect struct {
	// Name names the effect among those of the statement. Required and unique there. It
	// is a part of the effect's id: do not change it while messages are on their way.
	Name string
	// Topic is where the record goes. Required.
	Topic string
	// Key finds the record's key; where it finds none the key is null. Nil: the
	// message's own key.
	Key dedup.Source
	// Value finds the record's value; where it finds none the value is null, a
	// tombstone. Nil: the message's own value, byte for byte.
	Value dedup.Source
	// CopyHeaders gives the record the message's headers, in front of claimq's own. A
	// header named id, correlation-id or causation-id then stands in the place of
	// claimq's, so copy them only when there is none, or its value is meant.
	CopyHeaders bool
}

func checkSQLEffects(effects []SQLEffect) error {
	for i := range effects {
		e := &effects[i]
		sameName := func(other SQLEffect) bool { return other.Name == e.Name }
		switch {
		case e.Name == "":
			return &SQLError{Problem: fmt.Sprintf("effect %d has no name: its id is derived from it", i)}
		case e.Topic == "":
			return &SQLError{Problem: fmt.Sprintf("effect %q names no topic", e.Name)}
		case slices.ContainsFunc(effects[:i], sameName):
			return &SQLError{Problem: fmt.Sprintf("two effects are named %q: their ids would be the same", e.Name)}
		}
	}
	return nil
}

// emit adds the statement's effects to a message. What a source cannot read makes
// the message fail for good: another attempt reads the same bytes.
func (p *sqlPlan) emit(m *Message) error {
	for i := range p.effects {
		e := &p.effects[i]
		effect := outbox.Effect{Name: e.Name, Topic: e.Topic, Key: m.Record.Key, Value: m.Record.Value}
		var err error
		if e.Key != nil {
			if effect.Key, err = findBytes(e.Key, m); err != nil {
				return Permanent(fmt.Errorf("the key of effect %q: %w", e.Name, err))
			}
		}
		if e.Value != nil {
			if effect.Value, err = findBytes(e.Value, m); err != nil {
				return Permanent(fmt.Errorf("the value of effect %q: %w", e.Name, err))
			}
		}
		if e.CopyHeaders {
			effect.Headers = m.Record.Headers
		}
		if err := m.Emit(effect); err != nil {
			return Permanent(err)
		}
	}
	return nil
}

// findBytes returns nil where a source finds nothing.
func findBytes(source dedup.Source, m *Message) ([]byte, error) {
	text, found, err := source.Find(m.Record)
	if err != nil || !found {
		return nil, err
	}
	return []byte(text), nil
}
