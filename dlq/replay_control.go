package dlq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// A Replay is an order with its progress.
type Replay struct {
	ID    uuid.UUID
	State ReplayState
	// Chosen is the selection as JSON, for people.
	Chosen    string
	Who, Why  string
	CreatedAt time.Time
	EndedAt   time.Time // zero while it is open
	// Rate is in letters a second; 0: as fast as they are taken.
	Rate     float64
	Ramp     time.Duration
	InFlight int
	Progress
}

// Progress counts the letters of a replay's list by how they stand. Each is counted
// once.
type Progress struct {
	// Listed wait to be put into the delay queue, Queued are there.
	Listed, Queued int64
	// Resolved were processed, Dead have died again.
	Resolved, Dead int64
	// Done needed nothing any more, Skipped were left out or decided otherwise,
	// Quarantined had been replayed too often, Cancelled were taken back.
	Done, Skipped, Quarantined, Cancelled int64
}

// Open are the letters that still get an outcome.
func (p *Progress) Open() int64 { return p.Listed + p.Queued }

// Tried are the letters that were put on the list to be tried.
func (p *Progress) Tried() int64 { return p.Open() + p.Resolved + p.Dead + p.Cancelled }

const replaysSQL = `
select r.id, r.state::text, r.chosen::text, r.who, r.why, r.created_at, r.ended_at, coalesce(r.rate, 0), r.ramp, r.in_flight,
       c.listed, c.queued, c.resolved, c.dead, c.done, c.skipped, c.quarantined, c.cancelled
  from claimq.replays r
 cross join lateral (
       select count(*) filter (where i.state = 'listed') as listed, count(*) filter (where i.state = 'queued') as queued,
              count(*) filter (where i.state = 'resolved') as resolved, count(*) filter (where i.state = 'dead') as dead,
              count(*) filter (where i.state = 'done') as done, count(*) filter (where i.state = 'skipped') as skipped,
              count(*) filter (where i.state = 'quarantined') as quarantined, count(*) filter (where i.state = 'cancelled') as cancelled
         from claimq.replay_items i where i.replay = r.id) c
 where ($1::uuid is null or r.id = $1)
   and (not $2 or r.state in ('running', 'paused'))
 order by r.created_at desc, r.id
 limit $3`

// FindReplay returns a replay, nil when there is none of that id.
func (s *Store) FindReplay(ctx context.Context, db Querier, id uuid.UUID) (*Replay, error) {
	found, err := s.replays(ctx, db, pgtype.UUID{Bytes: id, Valid: true}, false, 1)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// Replays returns the newest replays, the newest first; open: only those that are
// running or paused. limit 0 means 20.
func (s *Store) Replays(ctx context.Context, db Querier, open bool, limit int) ([]*Replay, error) {
	if limit <= 0 {
		limit = 20
	}
	return s.replays(ctx, db, pgtype.UUID{}, open, limit)
}

func (s *Store) replays(ctx context.Context, db Querier, id pgtype.UUID, open bool, limit int) ([]*Replay, error) {
	rows, err := db.Query(ctx, s.sql.replays, id, open, limit)
	if err != nil {
		return nil, fmt.Errorf("read replays: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanReplay)
	if err != nil {
		return nil, fmt.Errorf("read replays: %w", err)
	}
	return found, nil
}

func scanReplay(row pgx.CollectableRow) (*Replay, error) {
	r := &Replay{}
	var ended pgtype.Timestamptz
	var ramp pgtype.Interval
	err := row.Scan(&r.ID, &r.State, &r.Chosen, &r.Who, &r.Why, &r.CreatedAt, &ended, &r.Rate, &ramp, &r.InFlight,
		&r.Listed, &r.Queued, &r.Resolved, &r.Dead, &r.Done, &r.Skipped, &r.Quarantined, &r.Cancelled)
	r.EndedAt, r.Ramp = ended.Time, time.Duration(ramp.Microseconds)*time.Microsecond
	return r, err
}

// A ReplayItem is one letter on a replay's list.
type ReplayItem struct {
	Seq    int
	Letter uuid.UUID
	State  string
	Why    string
	At     time.Time
}

const replayItemsSQL = `
select i.seq, i.letter, i.state::text, coalesce(i.why, ''), i.at
  from claimq.replay_items i
 where i.replay = $1 and i.seq > $2 and ($3::text[] is null or i.state::text = any ($3))
 order by i.seq
 limit $4`

// ReplayItems returns what is on a replay's list behind a place, in its order; nil
// states are all.
func (s *Store) ReplayItems(ctx context.Context, db Querier, replay uuid.UUID, behind int, states []string, limit int) ([]ReplayItem, error) {
	rows, err := db.Query(ctx, s.sql.replayItems, replay, behind, states, limit)
	if err != nil {
		return nil, fmt.Errorf("read the list of replay %s: %w", replay, err)
	}
	items, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ReplayItem])
	if err != nil {
		return nil, fmt.Errorf("read the list of replay %s: %w", replay, err)
	}
	return items, nil
}

// A ReplayStateError says that a replay is not in a state for what was ordered.
type ReplayStateError struct {
	Replay uuid.UUID
	State  ReplayState // empty: there is no such replay
	Order  string
}

func (e *ReplayStateError) Error() string {
	if e.State == "" {
		return fmt.Sprintf("there is no replay %s", e.Replay)
	}
	return fmt.Sprintf("replay %s is %s: it cannot be %s", e.Replay, e.State, e.Order)
}

const turnSQL = `
update claimq.replays r
   set state = $2::claimq.replay_state, ended_at = case when $2 in ('finished', 'cancelled') then clock_timestamp() end
 where r.id = $1 and r.state::text = any ($3)`

// PauseReplay stops the feeding; what is in the delay queue goes on.
func (s *Store) PauseReplay(ctx context.Context, db DB, replay uuid.UUID, operator Operator) error {
	return s.turn(ctx, db, replay, operator, "paused", ReplayPaused, ReplayRunning)
}

// ResumeReplay lets a paused replay go on. Somebody has to drive it.
func (s *Store) ResumeReplay(ctx context.Context, db DB, replay uuid.UUID, operator Operator) error {
	return s.turn(ctx, db, replay, operator, "resumed", ReplayRunning, ReplayPaused)
}

func (s *Store) turn(ctx context.Context, db DB, replay uuid.UUID, operator Operator, word string, to ReplayState, from ...ReplayState) error {
	if err := operator.check(); err != nil {
		return err
	}
	err := inTx(ctx, db, func(tx pgx.Tx) error {
		states := make([]string, len(from))
		for i, state := range from {
			states[i] = string(state)
		}
		tag, err := tx.Exec(ctx, s.sql.turn, replay, string(to), states)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return &ReplayStateError{Replay: replay, Order: word}
		}
		if to == ReplayCancelled {
			if _, err := tx.Exec(ctx, s.sql.cancelListed, replay); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, s.sql.audit, operator.Who, operator.Why, "replay "+word, 0, fmt.Sprintf(`{"replay": %q}`, replay))
		return err
	})
	if wrong, ok := errors.AsType[*ReplayStateError](err); ok {
		if r, findErr := s.FindReplay(ctx, db, replay); findErr == nil && r != nil {
			wrong.State = r.State
		}
		return wrong
	}
	if err != nil {
		return fmt.Errorf("replay %s: %w", replay, err)
	}
	return nil
}

const cancelListedSQL = `
update claimq.replay_items set state = 'cancelled', at = clock_timestamp() where replay = $1 and state = 'listed'`

// reachableKeysSQL locks the keys under which items of the replay wait that no
// worker has: such a key's items may be taken by an operator. One whose lease has
// ended counts: who had it is refused by its token.
const reachableKeysSQL = `
select k.queue, k.order_key, k.lease_token
  from claimq.delayed_keys k
 where (k.queue, k.order_key) in (select d.queue, d.order_key from claimq.delayed d where d.replay = $1)
   and (k.lease_token is null or k.ready_at <= now())
 order by k.queue, k.order_key
 limit $2
   for update of k skip locked`

const withdrawSQL = `
delete from claimq.delayed d
 using unnest($2::int[], $3::uuid[]) as u (queue, order_key)
 where d.replay = $1 and d.queue = u.queue and d.order_key = u.order_key
returning d.id`

const cancelQueuedSQL = `
update claimq.replay_items set state = 'cancelled', at = clock_timestamp() where replay = $1 and letter = any ($2) and state = 'queued'`

// deadAgainSQL takes back that a letter was sent. Its round stays: it has not died
// again.
const deadAgainSQL = `
update claimq.dead_letters set state = 'dead', replay_count = greatest(replay_count - 1, 0)
 where id = any ($2) and state = 'replaying' and replay = $1`

const settleKeysSQL = `select claimq.settle_keys($1, $2, $3)`

// CancelReplay ends a replay: nothing more is fed from its COMMIT on, and what waits
// in the delay queue is taken out again and dead, as it was. What a worker has in
// hand at that moment is let finish, and gets its outcome. It returns how many were
// taken back. Run again it takes back what an interrupted one had left.
func (s *Store) CancelReplay(ctx context.Context, db DB, replay uuid.UUID, operator Operator) (withdrawn int64, err error) {
	err = s.turn(ctx, db, replay, operator, "cancelled", ReplayCancelled, ReplayRunning, ReplayPaused)
	if wrong, ok := errors.AsType[*ReplayStateError](err); err != nil && (!ok || wrong.State != ReplayCancelled) {
		return 0, err
	}
	for {
		n, err := s.withdraw(ctx, db, replay)
		withdrawn += n
		if err != nil || n == 0 {
			return withdrawn, err
		}
	}
}

func (s *Store) withdraw(ctx context.Context, db DB, replay uuid.UUID) (n int64, err error) {
	err = inTx(ctx, db, func(tx pgx.Tx) error {
		n = 0
		if _, err := tx.Exec(ctx, protectPlans); err != nil {
			return err
		}
		var k lockedKeys
		if err := k.lock(ctx, tx, s.sql.reachableKeys, replay, feedChunk); err != nil || len(k.queues) == 0 {
			return err
		}
		rows, err := tx.Query(ctx, s.sql.withdraw, replay, k.queues, k.keys)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil {
			return err
		}
		n = int64(len(ids))
		var b pgx.Batch
		b.Queue(s.sql.cancelQueued, replay, ids) // before the letters, whose trigger gives other outcomes
		b.Queue(s.sql.deadAgain, replay, ids)
		k.settle(&b, s.sql.settleKeys)
		return tx.SendBatch(ctx, &b).Close()
	})
	if err != nil {
		return 0, fmt.Errorf("take replay %s back: %w", replay, err)
	}
	return n, nil
}

// lockedKeys are rows of the delay queue's keys that this transaction holds, aligned.
type lockedKeys struct {
	queues []int32
	keys   []uuid.UUID
	tokens []pgtype.UUID
}

func (k *lockedKeys) lock(ctx context.Context, tx pgx.Tx, statement string, args ...any) error {
	rows, err := tx.Query(ctx, statement, args...)
	if err != nil {
		return err
	}
	var queue int32
	var key uuid.UUID
	var token pgtype.UUID
	_, err = pgx.ForEachRow(rows, []any{&queue, &key, &token}, func() error {
		k.queues, k.keys, k.tokens = append(k.queues, queue), append(k.keys, key), append(k.tokens, token)
		return nil
	})
	return err
}

// settle queues one statement a queue; the rows come sorted by it.
func (k *lockedKeys) settle(b *pgx.Batch, statement string) {
	for from := 0; from < len(k.queues); {
		to := from
		for to < len(k.queues) && k.queues[to] == k.queues[from] {
			to++
		}
		b.Queue(statement, k.queues[from], k.keys[from:to], k.tokens[from:to])
		from = to
	}
}
