package outbox

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/pgschema"
)

// DefaultMaxBytes is the size that a record may have unless told otherwise. It
// leaves room for headers and framing below the 1,048,588 bytes that a topic
// accepts by default.
const DefaultMaxBytes = 960 << 10

// Config says how effects are stored. The zero value is ready to use.
type Config struct {
	// Schema is the schema of claimq's tables, unquoted. Default: claimq.
	Schema string
	// MaxBytes is what key, value and headers of one record may have together; a
	// larger one is refused when it is added, where its maker can still do
	// something about it. A value above a topic's max.message.bytes moves that
	// refusal to the relay, which sets the row aside. Default: DefaultMaxBytes.
	MaxBytes int
}

// An Outbox adds effects to transactions. It holds no connection and no state and
// may be used by any number of goroutines.
type Outbox struct {
	schema     pgschema.Schema
	insert     string
	insertBare string
	insertDue  string
	maxBytes   int
}

// New returns an Outbox. An error names the field and what it may be.
func New(config Config) (*Outbox, error) {
	if config.MaxBytes == 0 {
		config.MaxBytes = DefaultMaxBytes
	}
	if config.MaxBytes < 0 || config.MaxBytes > 1<<30 {
		return nil, fmt.Errorf("outbox: MaxBytes is %d: it must be between 1 and %d, or 0 for %d", config.MaxBytes, 1<<30, DefaultMaxBytes)
	}
	schema := pgschema.Schema(config.Schema)
	return &Outbox{
		schema:     schema,
		insert:     schema.SQL(sqlInsert),
		insertBare: schema.SQL(sqlInsertBare),
		insertDue:  schema.SQL(sqlInsertDue),
		maxBytes:   config.MaxBytes,
	}, nil
}

// standard is what the package's Add uses.
var standard = &Outbox{insert: sqlInsert, insertBare: sqlInsertBare, insertDue: sqlInsertDue, maxBytes: DefaultMaxBytes}

// Add stores effects in tx, in the default schema and with default limits: see
// [Outbox.Add].
func Add(ctx context.Context, tx pgx.Tx, effects ...Effect) error {
	return standard.Add(ctx, tx, effects...)
}

// Add stores effects in tx, in one statement, and another where some have a time. They are published, in their order,
// some time after tx has committed, and not at all if it rolls back. The cause is
// taken from ctx: a handler's context carries one.
//
// Records of one key and topic are published in the order in which their
// transactions added them, when those were one after the other: a transaction
// that locks its aggregate before it adds has that order. Of two transactions
// that were open at the same time, either may come first.
//
// An *EffectError says which effect was refused and why; nothing was sent to the
// database then, and tx can go on. Any other error is the database's, and tx has
// failed with it.
func (o *Outbox) Add(ctx context.Context, tx pgx.Tx, effects ...Effect) error {
	if len(effects) == 0 {
		return nil
	}
	cause, _ := CauseOf(ctx)
	list, err := o.insertions(len(effects), func(i int) (Cause, *Effect) { return cause, &effects[i] })
	if err != nil {
		return err
	}
	for _, insert := range list {
		if _, err := tx.Exec(ctx, insert.sql, insert.args...); err != nil {
			return fmt.Errorf("outbox: add %d effects: %w", len(effects), err)
		}
	}
	return nil
}

// Queue adds one statement to b that stores effects of one cause, however many
// they are (a second one where some have a time), and none when there are none. The effects are in the database once b
// has been sent in a transaction; everything else is as with [Outbox.Add]. On
// error b is unchanged.
func (o *Outbox) Queue(b *pgx.Batch, cause Cause, effects []Effect) error {
	return o.queue(b, len(effects), func(i int) (Cause, *Effect) { return cause, &effects[i] })
}

// Check returns the *EffectError that Queue would return for effects of one cause,
// or nil. It touches no database.
func (o *Outbox) Check(cause Cause, effects []Effect) error {
	seen := make(map[uuid.UUID]struct{}, len(effects))
	for i := range effects {
		id, err := effects[i].check(cause, o.maxBytes)
		if err != nil {
			return err
		}
		if _, twice := seen[id]; twice {
			return effects[i].refuse(ErrSameID, 0)
		}
		seen[id] = struct{}{}
	}
	return nil
}

// A Caused is an effect with its cause.
type Caused struct {
	Cause  Cause
	Effect Effect
}

// QueueAll adds one statement to b that stores effects of any number of causes,
// in their order, and none when there are none. On error b is unchanged and the
// *EffectError names the effect.
func (o *Outbox) QueueAll(b *pgx.Batch, rows []Caused) error {
	return o.queue(b, len(rows), func(i int) (Cause, *Effect) { return rows[i].Cause, &rows[i].Effect })
}

func (o *Outbox) queue(b *pgx.Batch, n int, at func(int) (Cause, *Effect)) error {
	if n == 0 {
		return nil
	}
	list, err := o.insertions(n, at)
	if err != nil {
		return err
	}
	for _, insert := range list {
		b.Queue(insert.sql, insert.args...)
	}
	return nil
}
