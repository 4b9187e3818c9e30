package demo

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/claimq/claimq/dedup"
	"github.com/claimq/claimq/outbox"
)

// headerID is the record header with an order's idempotency key.
const headerID = "idempotency-key"

// effectName names the one effect of an order; with the order's claim it makes
// the effect's id.
const effectName = "order-confirmed"

// An order is what the value of a record holds.
type order struct {
	ID       string `json:"order_id"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
	// FailFirst is how many attempts the warehouse turns down before it takes the
	// order.
	FailFirst int `json:"fail_first,omitempty"`
	// Closed says that the customer's account is closed: no attempt will ever work.
	Closed bool `json:"closed,omitempty"`
}

// encode returns the order as JSON. An order has no field that cannot be encoded.
func (o *order) encode() []byte {
	value, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return value
}

// decode reads an order. The error's class, with consumer.Permanent, makes the
// message a dead letter with the reason undecodable.
func decode(value []byte) (*order, error) {
	o := &order{}
	if err := json.Unmarshal(value, o); err != nil {
		return nil, &undecodableError{err}
	}
	return o, nil
}

type undecodableError struct{ err error }

func (e *undecodableError) Error() string      { return fmt.Sprintf("this is no order: %v", e.err) }
func (e *undecodableError) Unwrap() error      { return e.err }
func (e *undecodableError) ErrorClass() string { return "undecodable" }

// effect is what an order publishes once it is applied.
func (o *order) effect(topic string) outbox.Effect {
	value, err := json.Marshal(map[string]any{"confirmed": o.ID, "cents": o.Cents})
	if err != nil {
		panic(err)
	}
	return outbox.Effect{
		Name: effectName, Topic: topic, Key: []byte(o.Customer), Value: value,
		Headers: []kgo.RecordHeader{{Key: "type", Value: []byte(effectName)}},
	}
}

// effectID is the id that the effect of an order has on every attempt, computed
// here from the promise alone.
func effectID(queue, orderID string) uuid.UUID {
	claim := dedup.Identity{Queue: queue, ID: orderID}.Digest()
	return outbox.Cause{Claim: claim}.EffectID(effectName, 0)
}
