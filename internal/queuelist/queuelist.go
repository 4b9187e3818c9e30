// Package queuelist reads which queues a database knows, for commands that are
// given a queue's name by a person.
package queuelist

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/nearest"
	"github.com/claimq/claimq/internal/pgschema"
)

// A Queue is a registered queue.
type Queue struct {
	// Number stands for the queue in other tables.
	Number int32
	Name   string
	// Group is the consumer group.
	Group string
	// Registered: a worker has started it. Before that, a queue is known only because
	// ids were claimed under its name.
	Registered bool
	// ClaimsNothing: the queue was last started with `claims: none`.
	ClaimsNothing bool
	// Retention is how long ids are remembered.
	Retention time.Duration
	// RememberedSince is from when on the claims of the queue are all there: a repeat
	// of a message that was handled after it is found. A message handled before it may
	// have been forgotten.
	RememberedSince time.Time
}

// A Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// An UnknownError says that a database has no queue of a name.
type UnknownError struct {
	Name string
	// Known are the names of those that it has.
	Known []string
}

func (e *UnknownError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("there is no queue %q, nor any other: a queue is made known by the first worker that starts it", e.Name)
	}
	return fmt.Sprintf("there is no queue %q; did you mean %q? there is: %s", e.Name, nearest.Of(e.Name, e.Known), strings.Join(e.Known, ", "))
}

// Everything that is claimed stands in the segments of the newest phase, and the
// oldest of these was opened when the one before it was forgotten. What is older
// than the retention is forgotten with the next segment, so it is not counted on.
const sqlAll = `
select q.id, q.name, q.group_name, q.rule <> '' or q.config <> '{}', coalesce(q.config->>'claims' = 'none', false), q.retention,
       greatest(q.created_at, now() - q.retention,
                (select min(s.opened)
                   from claimq.claim_segments s,
                        (select p.inserts || p.lookups as segments from claimq.claim_phases p order by p.phase desc limit 1) p
                  where s.segment = any (p.segments)))
  from claimq.queues q
 order by q.name`

// All returns the queues in the order of their names.
func All(ctx context.Context, db Querier, schema pgschema.Schema) ([]Queue, error) {
	rows, err := db.Query(ctx, schema.SQL(sqlAll))
	if err != nil {
		return nil, fmt.Errorf("list the queues: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Queue])
	if err != nil {
		return nil, fmt.Errorf("list the queues: %w", err)
	}
	return all, nil
}

// Find returns the queue of a name, or an *UnknownError.
func Find(ctx context.Context, db Querier, schema pgschema.Schema, name string) (Queue, error) {
	all, err := All(ctx, db, schema)
	if err != nil {
		return Queue{}, err
	}
	unknown := &UnknownError{Name: name}
	for _, queue := range all {
		if queue.Name == name {
			return queue, nil
		}
		unknown.Known = append(unknown.Known, queue.Name)
	}
	return Queue{}, unknown
}
