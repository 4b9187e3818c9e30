package dedup

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A phase says which segments claimers insert into and which older ones they look
// ids up in. It is in force from the moment its row commits.
type phase struct {
	number  int64
	inserts []int16 // one, or two while a roll is under way
	lookups []int16 // at most two
}

// lockKey is the phase's half of the advisory lock's key.
func (p *phase) lockKey() int32 { return int32(p.number & 0x7fffffff) }

// insertSQL is the claim statement of this phase.
func (s *statements) insertSQL(p *phase) string {
	at := p.inserts[0]
	switch len(p.lookups) {
	case 0:
		return s.insert[at]
	case 1:
		return s.insertOlder1[at][p.lookups[0]]
	default:
		return s.insertOlder2[at][p.lookups[0]][p.lookups[1]]
	}
}

// An IsolationError says that a claim was asked for in a transaction that is not
// READ COMMITTED. Under a frozen snapshot the lookup cannot see the winner that
// the INSERT waited for, and a segment roll would let an id be claimed twice.
type IsolationError struct {
	// Isolation is what the transaction runs under, in Postgres' words.
	Isolation string
}

func (e *IsolationError) Error() string {
	return fmt.Sprintf("dedup: the transaction is %q and a claim needs READ COMMITTED: begin it with pgx.TxOptions{IsoLevel: pgx.ReadCommitted}", e.Isolation)
}

// enter locks the phase in force for the transaction and returns it. The phase
// is read again after each lock, in a statement of its own: the roll may have
// committed another one between the two, and then this transaction would insert
// where nobody looks.
func (s *Store) enter(ctx context.Context, tx pgx.Tx) (*phase, error) {
	planned := s.phase.Load()
	if planned == nil {
		p, err := s.readPhase(ctx, tx)
		if err != nil {
			return nil, err
		}
		planned = p
	}
	for {
		if _, err := tx.Exec(ctx, s.sql.lockPhase, planned.lockKey()); err != nil {
			return nil, fmt.Errorf("dedup: lock the phase of the claim segments: %w", err)
		}
		current, err := s.readPhase(ctx, tx)
		if err != nil {
			return nil, err
		}
		if current.number == planned.number {
			return current, nil
		}
		planned = current
	}
}

func (s *Store) readPhase(ctx context.Context, db Querier) (*phase, error) {
	var p phase
	var isolation string
	err := db.QueryRow(ctx, s.sql.readPhase).Scan(&p.number, &p.inserts, &p.lookups, &isolation)
	if err != nil {
		return nil, fmt.Errorf("dedup: read the phase of the claim segments: %w", err)
	}
	if isolation != "read committed" {
		return nil, &IsolationError{Isolation: isolation}
	}
	s.phase.Store(&p)
	return &p, nil
}
