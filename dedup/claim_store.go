package dedup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/pgschema"
)

// Config says where claims are kept and how. The zero value is ready to use.
type Config struct {
	// Schema is the schema of claimq's tables. Empty means "claimq".
	Schema string
	// HideIDs leaves the id itself out of the claim's row: only its digest is kept.
	// Rows get smaller and ids that are personal data stay out of the database; in
	// exchange `claimq claims show` can no longer tell which id a digest was.
	HideIDs bool
}

// A Store makes claims. It is safe for concurrent use; every claim is made in the
// transaction that the caller gives.
type Store struct {
	schema    pgschema.Schema
	keepShown bool
	sql       *statements

	phase  atomic.Pointer[phase] // the newest phase seen; a guess, always checked under its lock
	queues sync.Map              // name → int32, only numbers read from committed rows
}

// A Querier is what reads need: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// A BatchSender sends several statements in one round trip: a transaction.
type BatchSender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// New returns a Store.
func New(c Config) *Store {
	schema := pgschema.Schema(c.Schema)
	return &Store{schema: schema, keepShown: !c.HideIDs, sql: newStatements(schema)}
}

var defaultStore = sync.OnceValue(func() *Store { return New(Config{}) })

// Claim claims ids in tx, in the default schema. See Store.Claim.
func Claim(ctx context.Context, tx pgx.Tx, requests ...Request) ([]Outcome, error) {
	return defaultStore().Claim(ctx, tx, requests...)
}

// Claim claims any number of ids in tx with one statement and returns an outcome
// for each, in the order asked. For Claimed the caller makes the effect in the same
// transaction; if tx rolls back, the claim is gone with the effect.
//
// An id that another open transaction has claimed is waited for: it is a
// Duplicate when that one commits and Claimed when it rolls back. Set a lock_timeout
// in tx to bound the wait. A copy of an id that stands earlier in the same call is
// judged against that one. Ids are locked in one order whatever order they are
// asked in, so two calls with overlapping ids do not deadlock; two calls in each of
// two transactions can.
//
// tx must be READ COMMITTED, else the error is an *IsolationError and nothing has
// been written. Any error of the database leaves tx aborted, as always.
func (s *Store) Claim(ctx context.Context, tx pgx.Tx, requests ...Request) ([]Outcome, error) {
	if len(requests) == 0 {
		return nil, nil
	}
	requests, err := s.withQueues(ctx, tx, requests)
	if err != nil {
		return nil, err
	}
	p, err := s.enter(ctx, tx)
	if err != nil {
		return nil, err
	}
	// A claim that is forgotten by an operator between the INSERT that met it and the
	// lookup that does not find it leaves its id undecided: then it is asked again,
	// and what this call has claimed by then stays claimed.
	var earlier *Flight
	for range 3 {
		flight := s.plan(p, requests)
		flight.resume(earlier)
		earlier = flight
		batch := &pgx.Batch{}
		batch.Queue(sqlProtect)
		flight.queueInsert(batch)
		batch.Queue(sqlUnprotect)
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return nil, fmt.Errorf("dedup: claim %d ids: %w", len(flight.columns.ids), err)
		}
		outcomes, err := flight.Resolve(ctx, tx)
		if errors.Is(err, ErrUndecided) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return outcomes, s.fillResults(ctx, tx, flight, outcomes)
	}
	return nil, ErrUndecided
}

// ErrUndecided says that an id was met by the INSERT and not found afterwards: its
// claim was forgotten in between. Asking again decides it.
var ErrUndecided = errors.New("dedup: a claim was forgotten while it was being looked at; claim again")

func (s *Store) withQueues(ctx context.Context, tx pgx.Tx, requests []Request) ([]Request, error) {
	filled := make([]Request, len(requests))
	copy(filled, requests)
	for i := range filled {
		if filled[i].Queue != 0 {
			continue
		}
		number, err := s.queueNumber(ctx, tx, filled[i].Identity.Queue)
		if err != nil {
			return nil, err
		}
		filled[i].Queue = number
	}
	return filled, nil
}

// queueNumber finds a queue's number by name and registers the queue when nobody
// has. A number that this transaction made is not kept: it may roll back.
func (s *Store) queueNumber(ctx context.Context, tx pgx.Tx, name string) (int32, error) {
	if number, ok := s.queues.Load(name); ok {
		return number.(int32), nil //nolint:forcetypeassert // only int32 is ever stored
	}
	var number int32
	err := tx.QueryRow(ctx, s.sql.findQueue, name).Scan(&number)
	if err == nil {
		s.queues.Store(name, number)
		return number, nil
	}
	if !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("dedup: find queue %q: %w", name, err)
	}
	if _, err := tx.Exec(ctx, s.sql.addQueue, name); err != nil {
		return 0, fmt.Errorf("dedup: register queue %q: %w", name, err)
	}
	if err := tx.QueryRow(ctx, s.sql.findQueue, name).Scan(&number); err != nil {
		return 0, fmt.Errorf("dedup: find queue %q: %w", name, err)
	}
	return number, nil
}

func (s *Store) fillResults(ctx context.Context, tx pgx.Tx, f *Flight, outcomes []Outcome) error {
	var known []uuid.UUID
	for i := range outcomes {
		if outcomes[i].Kind == Duplicate {
			known = append(known, f.digests[i])
		}
	}
	if len(known) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, s.sql.getResults, known)
	if err != nil {
		return fmt.Errorf("dedup: read results: %w", err)
	}
	results := make(map[uuid.UUID][]byte)
	var claim uuid.UUID
	var value []byte
	_, err = pgx.ForEachRow(rows, []any{&claim, &value}, func() error {
		results[claim] = value
		value = nil
		return nil
	})
	if err != nil {
		return fmt.Errorf("dedup: read results: %w", err)
	}
	for i := range outcomes {
		if outcomes[i].Kind == Duplicate {
			outcomes[i].Result = results[f.digests[i]]
		}
	}
	return nil
}

// MaxResult is the largest result that a handler may leave, in bytes.
const MaxResult = 64 << 10

// A Result is what a handler leaves for repeats of its message to see.
type Result struct {
	Claim uuid.UUID
	Value []byte
	// Lifetime is how long the result is kept; it has a clock of its own.
	Lifetime time.Duration
}

// QueueResults adds a statement to b that stores results; they commit with their
// claims, which the same transaction has made before.
func (s *Store) QueueResults(b *pgx.Batch, results []Result) {
	if len(results) == 0 {
		return
	}
	claims := make([]uuid.UUID, len(results))
	values := make([][]byte, len(results))
	lifetimes := make([]time.Duration, len(results))
	for i, r := range results {
		claims[i], values[i], lifetimes[i] = r.Claim, r.Value, r.Lifetime
		if values[i] == nil {
			values[i] = []byte{} // an empty result is a result
		}
	}
	b.Queue(s.sql.putResults, claims, values, lifetimes)
}
