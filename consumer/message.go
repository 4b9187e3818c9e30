package consumer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/outbox"
)

// A Message is one record on its way through a queue. A handler may read all of it
// and must not keep it, nor its bytes, after returning.
type Message struct {
	// Record is the Kafka record, byte for byte. For a message from the delay queue
	// it is rebuilt from the row: topic, partition, offset, time, key, value, headers.
	Record *kgo.Record
	// Identity is the message's scope and id.
	Identity dedup.Identity
	// Attempt is the number of this attempt, from 1, and MaxAttempts how many there
	// are before the message is dead.
	Attempt, MaxAttempts int
	// FirstSeen is when claimq first saw the message: zero on the direct path.
	FirstSeen time.Time
	// Replayed: an operator ordered this attempt. Scheduled: the message waited for a
	// due time of its own.
	Replayed, Scheduled bool
	// Decoded is for middleware that decodes a record for the handlers behind it.
	Decoded any

	claim   uuid.UUID
	effects []outbox.Effect
	result  []byte
	left    bool // a result was set
}

// Claim returns the digest that stands for the message in claimq.claims.
func (m *Message) Claim() uuid.UUID { return m.claim }

// Header returns the value of the last header with that name.
func (m *Message) Header(name string) (value []byte, ok bool) {
	for _, v := range slices.Backward(m.Record.Headers) {
		if v.Key == name {
			return v.Value, true
		}
	}
	return nil, false
}

// Emit adds an effect to be published through the outbox: its row commits with the
// claim and the business write, and its id is the same however often the handler
// runs. Name is required and unique within the message, together with Step. The
// bytes must not be changed afterwards.
func (m *Message) Emit(e outbox.Effect) error {
	if e.Name == "" && e.ID == uuid.Nil {
		return errors.New("consumer: Emit: the effect has no Name: its id is derived from the claim and the name")
	}
	if reservedEffect(e.Name) {
		return fmt.Errorf("consumer: Emit: the effect's name %q is claimq's own: choose one that does not begin with claimq", e.Name)
	}
	for i := range m.effects {
		if m.effects[i].Name == e.Name && m.effects[i].Step == e.Step && m.effects[i].ID == e.ID {
			return fmt.Errorf("consumer: Emit: effect %q step %d is emitted twice by one message: give each a Step of its own", e.Name, e.Step)
		}
	}
	m.effects = append(m.effects, e)
	return nil
}

// SetResult leaves a result for repeats of the message to see. It commits with the
// claim. At most dedup.MaxResult bytes; setting it again replaces it.
func (m *Message) SetResult(value []byte) error {
	if len(value) > dedup.MaxResult {
		return fmt.Errorf("consumer: SetResult: the result has %d bytes and %d are allowed", len(value), dedup.MaxResult)
	}
	m.result, m.left = value, true
	return nil
}

// reset forgets what an execution that was rolled back had left on the message.
func (m *Message) reset() {
	m.effects, m.result, m.left = nil, nil, false
}
