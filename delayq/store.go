package delayq

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/claimq/claimq/internal/pgschema"
)

// Bounds of the diagnostics that are kept with an item, in bytes.
const (
	maxClass   = 200
	maxMessage = 8 << 10
)

// Config says where the delay queue lives. The zero Config is ready to use.
type Config struct {
	// Schema is the name of claimq's schema, unquoted. Empty means "claimq".
	Schema string
}

// Store keeps delayed items in Postgres. It has no state but its statements'
// texts, and may be used by many goroutines.
//
// Methods that take a *pgx.Batch only queue statements: they run when the batch
// is sent, in the caller's READ COMMITTED transaction, and what they report is
// set or called then. Methods that take a DB or a Querier run at once. No method sets a
// deadline of its own: pass a context that has one.
type Store struct {
	sql statements
}

// New returns a store. It does not talk to the database.
func New(config Config) (*Store, error) {
	return &Store{sql: render(pgschema.Schema(config.Schema))}, nil
}

// DB is what a lease is taken with: a *pgxpool.Pool or a *pgx.Conn, but no
// transaction, because a lease has to be committed before its items are handled.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// Querier is what reads are done with: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// readCommitted is said explicitly everywhere: the orders of statements in this
// package rely on each statement's own snapshot, and a database's default may be
// another level.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
