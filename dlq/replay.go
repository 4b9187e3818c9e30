package dlq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// ReplayState is where a replay stands.
type ReplayState string

const (
	// ReplayRunning: whoever drives it feeds letters.
	ReplayRunning ReplayState = "running"
	// ReplayPaused: nothing more is fed; what was fed goes on.
	ReplayPaused ReplayState = "paused"
	// ReplayFinished: every letter of the list has an outcome.
	ReplayFinished ReplayState = "finished"
	// ReplayCancelled: what was not yet handed to a handler is dead again.
	ReplayCancelled ReplayState = "cancelled"
)

// Defaults of a ReplayOrder.
const (
	DefaultInFlight   = 5000
	DefaultMaxReplays = 10
)

// A ReplayOrder says what is to be tried again, and how fast.
type ReplayOrder struct {
	Selection Selection
	Operator  Operator
	// Rate is how many letters a second are put into the delay queue. 0: as many as
	// InFlight has room for.
	Rate float64
	// Ramp is how long the rate takes to grow from nothing to Rate. Needs a Rate.
	// Without one a replay begins with a single letter and doubles.
	Ramp time.Duration
	// InFlight is how many letters of the replay are in the delay queue at most.
	// 0 means DefaultInFlight. A cancel takes back that many at most.
	InFlight int
	// Limit is how many letters are put on the list at most, those with the lowest
	// order positions; 0: all.
	Limit int
	// MaxReplays is how often a letter may be replayed; one that has been is
	// quarantined: listed, told, and not sent. 0 means DefaultMaxReplays.
	MaxReplays int
	// Stale takes letters too that newer messages of their order key have gone past.
	Stale bool
	// OutsideWindow takes letters too whose message was first seen longer ago than
	// its queue remembers ids: whether it has been done otherwise since is not known.
	OutsideWindow bool
}

func (o *ReplayOrder) check() error {
	switch {
	case o.Rate < 0 || o.Ramp < 0 || o.InFlight < 0 || o.Limit < 0 || o.MaxReplays < 0:
		return errors.New("dlq: a replay's Rate, Ramp, InFlight, Limit and MaxReplays cannot be negative")
	case o.Ramp > 0 && o.Rate == 0:
		return errors.New("dlq: a replay's Ramp needs a Rate to grow to")
	}
	if o.InFlight == 0 {
		o.InFlight = DefaultInFlight
	}
	if o.MaxReplays == 0 {
		o.MaxReplays = DefaultMaxReplays
	}
	return o.Operator.check()
}

// A ReplayPlan is what a replay does, or would do, with the letters that were chosen.
// The counts add up to Chosen.
type ReplayPlan struct {
	// Replay is the replay's id; nil in a preview.
	Replay uuid.UUID
	Chosen int64
	// Listed are those that will be tried.
	Listed int64
	// AlreadyDone have a claim: the message's effect has been made. They are not sent.
	AlreadyDone int64
	// Stale and OutsideWindow are left out unless the order asks for them; then they
	// are among Listed.
	Stale, OutsideWindow int64
	// Quarantined have been replayed too often already.
	Quarantined int64
	// AlreadyReplaying are in another open replay, one of Others.
	AlreadyReplaying int64
	Others           []uuid.UUID
	// OverLimit are what Limit left out.
	OverLimit int64
	Causes    []PlannedCause
	// Sample are letters at the head of the list.
	Sample []uuid.UUID
}

// A PlannedCause is how many letters of a plan's list have one cause.
type PlannedCause struct {
	Cause         uuid.UUID
	Queue, Topic  string
	Reason, Class string
	Letters       int64
}

// An AlreadyReplayingError says that a replay was refused because all that it could
// try is in open replays.
type AlreadyReplayingError struct {
	Letters int64
	// Replays are the open ones.
	Replays []uuid.UUID
}

func (e *AlreadyReplayingError) Error() string {
	ids := make([]string, len(e.Replays))
	for i, id := range e.Replays {
		ids[i] = id.String()
	}
	return fmt.Sprintf("already_replaying: %d of the chosen dead letters are in replay %s", e.Letters, strings.Join(ids, ", "))
}

// An EmptyReplayError says that of what was chosen nothing would be tried. Nothing
// was ordered; Plan tells why.
type EmptyReplayError struct{ Plan *ReplayPlan }

func (e *EmptyReplayError) Error() string {
	p := e.Plan
	if p.Chosen == 0 {
		return "no dead letter is chosen"
	}
	return fmt.Sprintf("none of the %d chosen dead letters would be tried: %d done already, %d stale, %d outside the dedup window, %d quarantined, %d in other replays",
		p.Chosen, p.AlreadyDone, p.Stale, p.OutsideWindow, p.Quarantined, p.AlreadyReplaying)
}

const newReplaySQL = `
insert into claimq.replays (id, chosen, who, why, rate, ramp, in_flight) values ($1, $2::jsonb, $3, $4, $5, $6, $7)`

// freezeSQL writes the list. What is first in the CASE is told: a letter that was
// done is not stale besides. Letters of other open replays are not on it, and where
// two order the same one at the same moment the index over open items lets the
// second find nothing to insert.
const freezeSQL = `
with chosen as (
     select l.id, l.order_pos,
            case when exists (select from claimq.claims c where c.id = l.claim) then 'done'
                 when l.replay_count >= $18 then 'quarantined'
                 when l.overtaken_at is not null and not $19 then 'stale'
                 when l.claim is not null and l.first_seen < now() - q.retention and not $20 then 'outside_window'
                 else 'listed' end as class
       from claimq.letters_chosen($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) l
       join claimq.queues q on q.id = l.queue
      where l.state = 'dead'
        and not exists (select from claimq.replay_items o where o.letter = l.id and o.state in ('listed', 'queued'))),
numbered as (
     select c.*, row_number() over (partition by class order by order_pos, id) as nth,
            row_number() over (order by order_pos, id) as seq
       from chosen c)
insert into claimq.replay_items (replay, seq, letter, state, why)
select $17, n.seq, n.id,
       case n.class when 'done' then 'done' when 'quarantined' then 'quarantined' when 'listed' then
            case when n.nth <= $21 then 'listed' else 'skipped' end else 'skipped' end::claimq.replay_item_state,
       case when n.class in ('stale', 'outside_window') then n.class when n.class = 'listed' and n.nth > $21 then 'over_limit' end
  from numbered n
 order by n.id
    on conflict do nothing`

const planSQL = `
select count(*), count(*) filter (where state = 'listed'), count(*) filter (where state = 'done'),
       count(*) filter (where why = 'stale'), count(*) filter (where why = 'outside_window'),
       count(*) filter (where state = 'quarantined'), count(*) filter (where why = 'over_limit'),
       coalesce((select array_agg(s.letter) from (select i.letter from claimq.replay_items i
                  where i.replay = $1 and i.state = 'listed' order by i.seq limit 10) s), '{}')
  from claimq.replay_items where replay = $1`

const planCausesSQL = `
select l.cause, q.name, l.record_topic, l.reason, l.error_class, count(*)
  from claimq.replay_items i
  join claimq.dead_letters l on l.id = i.letter
  join claimq.queues q on q.id = l.queue
 where i.replay = $1 and i.state = 'listed'
 group by 1, 2, 3, 4, 5
 order by 6 desc, 1
 limit 50`

const othersSQL = `
select i.replay, count(*)
  from claimq.letters_chosen($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) l
  join claimq.replay_items i on i.letter = l.id and i.state in ('listed', 'queued') and i.replay <> $17
 group by i.replay
 order by i.replay`

// errPreview takes a preview's transaction back.
var errPreview = errors.New("a preview")

// PreviewReplay tells what StartReplay would do. It does the same in a transaction
// that is rolled back, so that the two cannot disagree.
func (s *Store) PreviewReplay(ctx context.Context, db DB, order ReplayOrder) (*ReplayPlan, error) {
	if order.Operator == (Operator{}) {
		order.Operator = Operator{Who: "nobody", Why: "a preview"}
	}
	plan, err := s.freeze(ctx, db, order, true)
	if plan != nil {
		plan.Replay = uuid.Nil
	}
	return plan, err
}

// StartReplay freezes the list of what is to be tried, and keeps the order. Nothing
// is sent before DriveReplay; the order outlives whoever gave it. A letter is in one
// open replay: when all that is chosen are in others already the error is an
// *AlreadyReplayingError, and when nothing would be tried for other reasons an
// *EmptyReplayError. Of many who order one letter at once, one is accepted.
func (s *Store) StartReplay(ctx context.Context, db DB, order ReplayOrder) (*ReplayPlan, error) {
	plan, err := s.freeze(ctx, db, order, false)
	if err != nil {
		return plan, err
	}
	return plan, nil
}

func (s *Store) freeze(ctx context.Context, db DB, order ReplayOrder, preview bool) (plan *ReplayPlan, err error) {
	if err := order.check(); err != nil {
		return nil, err
	}
	selection := order.Selection.in(Dead, Replaying)
	err = inTx(ctx, db, func(tx pgx.Tx) error {
		plan = &ReplayPlan{Replay: uuid.New()}
		if err := s.freezeIn(ctx, tx, &order, selection, plan); err != nil {
			return err
		}
		switch {
		case preview:
			return errPreview
		case plan.Listed > 0:
			return nil
		case plan.AlreadyReplaying > 0:
			return &AlreadyReplayingError{Letters: plan.AlreadyReplaying, Replays: plan.Others}
		}
		return &EmptyReplayError{Plan: plan}
	})
	if err == nil || errors.Is(err, errPreview) {
		return plan, nil
	}
	if _, empty := errors.AsType[*EmptyReplayError](err); empty {
		return plan, err
	}
	return nil, fmt.Errorf("order a replay: %w", err)
}

func (s *Store) freezeIn(ctx context.Context, tx pgx.Tx, order *ReplayOrder, selection Selection, plan *ReplayPlan) error {
	limit := int64(order.Limit)
	if limit == 0 {
		limit = 1 << 40
	}
	var b pgx.Batch
	b.Queue(s.sql.newReplay, plan.Replay, selection.words(), order.Operator.Who, order.Operator.Why,
		pgtype.Float8{Float64: order.Rate, Valid: order.Rate > 0}, pgtype.Interval{Microseconds: order.Ramp.Microseconds(), Valid: true}, order.InFlight)
	b.Queue(s.sql.freeze, append(selection.args(), plan.Replay, order.MaxReplays, order.Stale, order.OutsideWindow, limit)...)
	b.Queue(s.sql.plan, plan.Replay).QueryRow(func(row pgx.Row) error {
		return row.Scan(&plan.Chosen, &plan.Listed, &plan.AlreadyDone, &plan.Stale, &plan.OutsideWindow, &plan.Quarantined, &plan.OverLimit, &plan.Sample)
	})
	b.Queue(s.sql.planCauses, plan.Replay).Query(func(rows pgx.Rows) (err error) {
		plan.Causes, err = pgx.CollectRows(rows, pgx.RowToStructByPos[PlannedCause])
		return err
	})
	b.Queue(s.sql.others, append(selection.args(), plan.Replay)...).Query(func(rows pgx.Rows) error {
		var other uuid.UUID
		var letters int64
		_, err := pgx.ForEachRow(rows, []any{&other, &letters}, func() error {
			plan.Others = append(plan.Others, other)
			plan.AlreadyReplaying += letters
			return nil
		})
		return err
	})
	b.Queue(s.sql.audit, order.Operator.Who, order.Operator.Why, "replay start", selection.Queue,
		fmt.Sprintf(`{"replay": %q, "chosen": %s}`, plan.Replay, selection.words()))
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	plan.Chosen += plan.AlreadyReplaying
	return nil
}
