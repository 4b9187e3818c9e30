package dlq

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/sqlstate"
)

// DB begins transactions: a pool or a connection.
type DB interface {
	Querier
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// An Operator is who orders something, and why. Both are required and kept in
// claimq.audit.
type Operator struct{ Who, Why string }

var errNoOperator = errors.New("dlq: an order needs to say who gives it and why: both are kept in claimq.audit")

func (o Operator) check() error {
	if o.Who == "" || o.Why == "" {
		return errNoOperator
	}
	return nil
}

// A Decision is what an operator makes of letters.
type Decision string

const (
	// Discard: dead letters are not needed. Their order keys go on. It can be undone.
	Discard Decision = "discard"
	// Restore makes discarded letters dead again.
	Restore Decision = "restore"
	// Erase removes the bytes, the error's text and the shown id of letters that are
	// dead, resolved or discarded, for good; the account of them stays.
	Erase Decision = "erase"
)

// from are the states that a decision can be made in.
func (d Decision) from() []State {
	switch d {
	case Discard:
		return []State{Dead}
	case Restore:
		return []State{Discarded}
	case Erase:
		return []State{Dead, Resolved, Discarded}
	}
	return nil
}

// decideChunk is how many letters one transaction decides: what it locks, workers
// may be waiting for.
const decideChunk = 500

// lockChosenSQL waits for a worker that is just changing one of the letters, and
// judges it again by the state that it then has.
const lockChosenSQL = `
select l.id, l.queue, l.order_key
  from claimq.dead_letters l
 where l.id in (select c.id from claimq.letters_chosen($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) c order by c.id limit $17)
   and l.state::text = any ($2)
 order by l.id
   for update`

const discardSQL = `
update claimq.dead_letters set state = 'discarded', settled_at = now(), decided_by = $2, decided_why = $3
 where id = any ($1) and state = 'dead'`

const restoreSQL = `
update claimq.dead_letters set state = 'dead', settled_at = null, decided_by = $2, decided_why = $3
 where id = any ($1) and state = 'discarded'`

const eraseSQL = `
update claimq.dead_letters
   set state = 'erased', settled_at = coalesce(settled_at, now()), decided_by = $2, decided_why = $3,
       record_key = null, record_value = null, header_keys = '{}', header_values = '{}',
       error_message = '', stack = null, shown = null, holds_key = false
 where id = any ($1) and state in ('dead', 'resolved', 'discarded')`

const auditSQL = `
insert into claimq.audit (who, why, action, queue, detail)
select $1, $2, $3, nullif($4, 0), $5::jsonb`

const auditLettersSQL = `
insert into claimq.audit (who, why, action, queue, detail)
select $1, $2, $3, l.queue, jsonb_build_object('letters', jsonb_agg(l.id order by l.id))
  from claimq.dead_letters l where l.id = any ($4) group by l.queue`

// Decide makes a decision on the chosen letters that are in a state for it, in
// transactions of some hundreds, each with its audit row. It returns how many were
// decided, also beside an error: what is done stays done, and the same call again
// goes on with the rest. With limit above 0 it decides that many at most.
func (s *Store) Decide(ctx context.Context, db DB, decision Decision, selection Selection, operator Operator, limit int) (done int64, err error) {
	if err := operator.check(); err != nil {
		return 0, err
	}
	statement := map[Decision]string{Discard: s.sql.discard, Restore: s.sql.restore, Erase: s.sql.erase}[decision]
	if statement == "" {
		return 0, fmt.Errorf("dlq: there is no decision %q", decision)
	}
	selection.States = decision.from()
	for {
		size := decideChunk
		if limit > 0 {
			size = min(size, limit-int(done))
		}
		if size == 0 {
			return done, nil
		}
		decided, err := s.decideSome(ctx, db, decision, statement, selection, operator, size)
		if err != nil {
			return done, fmt.Errorf("%s dead letters: %w", decision, err)
		}
		if decided == 0 {
			return done, nil
		}
		done += decided
	}
}

const countChosenSQL = `
select count(*) from claimq.letters_chosen($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) l`

// CountDecidable counts the chosen letters that Decide would decide about.
func (s *Store) CountDecidable(ctx context.Context, db Querier, decision Decision, selection Selection) (n int64, err error) {
	selection.States = decision.from()
	if err := db.QueryRow(ctx, s.sql.countChosen, selection.args()...).Scan(&n); err != nil {
		return 0, fmt.Errorf("count dead letters: %w", err)
	}
	return n, nil
}

func (s *Store) decideSome(ctx context.Context, db DB, decision Decision, statement string, selection Selection, operator Operator, size int) (n int64, err error) {
	err = inTx(ctx, db, func(tx pgx.Tx) error {
		n = 0
		locked, err := lockLetters(ctx, tx, s.sql.lockChosen, append(selection.args(), size)...)
		if err != nil || len(locked.ids) == 0 {
			return err
		}
		var b pgx.Batch
		b.Queue(protectPlans)
		b.Queue(statement, locked.ids, operator.Who, operator.Why)
		locked.queueKeys(&b, s.sql.hold)
		b.Queue(s.sql.auditLetters, operator.Who, operator.Why, "dlq "+string(decision), locked.ids)
		n = int64(len(locked.ids))
		return tx.SendBatch(ctx, &b).Close()
	})
	return n, err
}

// lockedLetters are letters that this transaction has locked, and the order keys to
// settle once their states are changed.
type lockedLetters struct {
	ids  []uuid.UUID
	keys map[int32][]uuid.UUID
}

func lockLetters(ctx context.Context, tx pgx.Tx, statement string, args ...any) (lockedLetters, error) {
	locked := lockedLetters{keys: map[int32][]uuid.UUID{}}
	rows, err := tx.Query(ctx, statement, args...)
	if err != nil {
		return locked, err
	}
	var id, key uuid.UUID
	var queue int32
	_, err = pgx.ForEachRow(rows, []any{&id, &queue, &key}, func() error {
		locked.ids = append(locked.ids, id)
		locked.keys[queue] = append(locked.keys[queue], key)
		return nil
	})
	return locked, err
}

// queueKeys brings the keys' rows in line. keep_keys sorts them and drops repeats.
func (l *lockedLetters) queueKeys(b *pgx.Batch, keep string) {
	for queue, keys := range l.keys {
		b.Queue(keep, queue, keys)
	}
}

// inTx runs f in a READ COMMITTED transaction, and again when it was chosen to end a
// deadlock: workers lock keys before letters when they store behind one and close
// another, and the server then ends either.
func inTx(ctx context.Context, db DB, f func(pgx.Tx) error) error {
	for tries := 1; ; tries++ {
		err := pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, f)
		if sqlstate.Code(err) != "40P01" || tries == 10 {
			return err
		}
	}
}

const noteSQL = `
insert into claimq.cause_notes (cause, who, note) select $1, $2, $3
 where exists (select from claimq.dead_letters l where l.cause = $1)
returning id`

// Note keeps what somebody found out about a cause, beside it in every list. It
// reports false when no letter has that cause.
func (s *Store) Note(ctx context.Context, db Querier, cause uuid.UUID, who, note string) (found bool, err error) {
	if who == "" || note == "" {
		return false, errors.New("dlq: a note needs its text and who wrote it")
	}
	var id int64
	err = db.QueryRow(ctx, s.sql.note, cause, who, note).Scan(&id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("note on cause %s: %w", cause, err)
	}
	return true, nil
}

// overtakenSQL marks dead letters that newer messages of their order key have gone
// past: a replay of one is stale, and left out unless it is asked for. The EXISTS
// makes it cost nothing while the queue has no dead letter; OFFSET 0 keeps the
// look-ups by key.
const overtakenSQL = `
update claimq.dead_letters l
   set overtaken_at = clock_timestamp()
  from unnest($2::uuid[], $3::bigint[]) as u (order_key, order_pos),
       lateral (select x.id from claimq.dead_letters x
                 where x.queue = $1 and x.order_key = u.order_key and x.state = 'dead' and x.overtaken_at is null and x.order_pos < u.order_pos
                offset 0) x
 where l.id = x.id and l.state = 'dead'
   and exists (select from claimq.dead_letters o where o.queue = $1 and o.state in ('dead', 'replaying'))`

// Overtaken queues the statement that marks letters behind which messages of their
// order key have succeeded, in the transaction of that success. positions are the
// messages' places, aligned with keys; newer than all letters: math.MaxInt64.
func (s *Store) Overtaken(b *pgx.Batch, queue int32, keys []uuid.UUID, positions []int64) {
	if len(keys) > 0 {
		b.Queue(s.sql.overtaken, queue, keys, positions)
	}
}

const overtakenLettersSQL = `
update claimq.dead_letters set overtaken_at = clock_timestamp() where id = any ($1) and state = 'dead' and overtaken_at is null`

// OvertakenLetters queues the same for letters by their ids.
func (s *Store) OvertakenLetters(b *pgx.Batch, ids []uuid.UUID) {
	if len(ids) > 0 {
		b.Queue(s.sql.overtakenLetters, ids)
	}
}
