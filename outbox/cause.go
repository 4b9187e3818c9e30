package outbox

import (
	"context"
	"encoding/binary"

	"github.com/google/uuid"
)

// The headers that claimq adds to a record, unless the effect sets them itself.
const (
	// HeaderID holds the effect's id, the same on every copy of the record.
	HeaderID = "id"
	// HeaderCorrelation holds what the whole conversation is known by.
	HeaderCorrelation = "correlation-id"
	// HeaderCausation holds the id of the message that the effect follows from.
	HeaderCausation = "causation-id"
)

// A Cause ties effects to what made them. The context of a claimq handler carries
// one; an application that calls Add by itself may make its own.
type Cause struct {
	// Claim is the claim in whose transaction the effects are made; zero when there
	// is none, and then every effect needs an id of its own.
	Claim uuid.UUID
	// CorrelationID and CausationID become headers; empty ones are left out.
	CorrelationID string
	CausationID   string
}

type causeKey struct{}

// WithCause returns a context whose effects follow from cause.
func WithCause(ctx context.Context, cause Cause) context.Context {
	return context.WithValue(ctx, causeKey{}, cause)
}

// CauseOf returns the cause that ctx carries, and whether it carries one.
func CauseOf(ctx context.Context) (Cause, bool) {
	cause, ok := ctx.Value(causeKey{}).(Cause)
	return cause, ok
}

// effectSpace is the namespace of all effect ids. It is part of the promise that
// an effect's id never changes.
var effectSpace = uuid.MustParse("5f0b7c1e-6d55-5c39-9a0e-2f6b6e3c8a11")

// EffectID returns the id of the effect of that name and step: the UUIDv5 over
// the claim's sixteen bytes, the name's length (four bytes, big endian) and bytes,
// and the step (eight bytes, big endian). It depends on nothing else, so every
// execution of a message gives its effects the same ids.
func (c Cause) EffectID(name string, step int) uuid.UUID {
	text := make([]byte, 0, 64)
	text = append(text, c.Claim[:]...)
	text = binary.BigEndian.AppendUint32(text, uint32(len(name))) //nolint:gosec // a name does not reach 4 GiB
	text = append(text, name...)
	text = binary.BigEndian.AppendUint64(text, uint64(step)) //nolint:gosec // steps are not negative: Effect.check
	return uuid.NewSHA1(effectSpace, text)
}
