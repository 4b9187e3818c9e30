package consumer

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// A Handler makes a message's effect in the transaction that it is given. Make
// one with One, Pipelined, Batch or SQL. A Handler is immutable and may serve
// several queues.
//
// What every kind has in common: the transaction also holds the message's claim,
// and either both commit or neither does. It belongs to the consumer: Commit and
// Rollback are refused, and so are transaction control statements sent as text. A
// handler may be called again for a message whose batch was rolled back for
// another message's sake, so what it does outside the transaction must bear
// repetition, or travel as an effect (Message.Emit). It must return when its
// context ends. A panic is an error with its stack.
//
// Errors: nil is success; a plain error is retried after a delay; Permanent,
// RetryAfter and Skip say otherwise. What the database or the network does
// (sqlstate class 08, deadlocks, serialization failures, shutdown, …) is not the
// message's fault, whatever the handler returns: the batch is tried again and no
// attempt is used.
type Handler struct {
	kind      handlerKind
	one       func(ctx context.Context, tx pgx.Tx, m *Message) error
	pipelined func(ctx context.Context, b *pgx.Batch, m *Message) error
	batch     func(ctx context.Context, tx pgx.Tx, ms []*Message) error
	validate  func(m *Message) error // nil: nothing to check before the handler
}

type handlerKind uint8

const (
	kindNone handlerKind = iota
	kindOne
	kindPipelined
	kindBatch
)

// One handles one message at a time: reads and writes, the kind to start with.
// Each statement is a round trip, so it is the slowest kind.
func One(f func(ctx context.Context, tx pgx.Tx, m *Message) error) Handler {
	return Handler{kind: kindOne, one: f}
}

// Pipelined handles one message at a time by adding statements to b, which go to
// the server for the whole batch in one flight. A statement that fails names its
// message. It cannot read before it writes; a statement's own result can be looked
// at with QueuedQuery.Exec, Query and QueryRow, whose functions run before the
// commit and fail the message when they return an error.
func Pipelined(f func(ctx context.Context, b *pgx.Batch, m *Message) error) Handler {
	return Handler{kind: kindPipelined, pipelined: f}
}

// Batch handles many messages with set-based SQL: the fastest kind. ms holds new
// messages only, in their order, no id twice. Return FailedAt(i, err) to name the
// message that is at fault; any other error makes the consumer look for it by
// calling the handler again with parts of ms. ms must not be kept.
func Batch(f func(ctx context.Context, tx pgx.Tx, ms []*Message) error) Handler {
	return Handler{kind: kindBatch, batch: f}
}

// A Middleware wraps handlers: logging, decoding, setting up a context. ms holds
// one message for One and Pipelined and all messages of the call for Batch. It
// calls next at most once and returns its error, or one of its own; FailedAt names
// a message. The first middleware in Config.Middleware is the outermost.
type Middleware func(ctx context.Context, ms []*Message, next func(ctx context.Context) error) error

// A Route sends some of a queue's messages to a handler of their own. The first
// route that takes a message wins.
type Route struct {
	// Name tells routes apart in logs and metrics; required and unique in its queue.
	Name string
	// Topic, when set, takes messages of that topic only.
	Topic string
	// Header and Value, when Header is set, take messages whose last header of that
	// name has that value.
	Header, Value string
	// Match, when set, decides further. It must be cheap, and the same for the same
	// record always.
	Match func(m *Message) bool
	// Handler handles what the route takes.
	Handler Handler
}

func (r *Route) takes(m *Message) bool {
	if r.Topic != "" && r.Topic != m.Record.Topic {
		return false
	}
	if r.Header != "" {
		value, ok := m.Header(r.Header)
		if !ok || string(value) != r.Value {
			return false
		}
	}
	return r.Match == nil || r.Match(m)
}
