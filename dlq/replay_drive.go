package dlq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

const (
	// feedChunk is how many letters one transaction puts into the delay queue.
	feedChunk = 500
	// driveTick is how long a driver that has nothing to feed at the moment waits.
	driveTick = 100 * time.Millisecond
)

// paceSQL takes the replay for this transaction, so that two drivers feed in turn,
// and counts the time since the last step: at most a second of it, so that a driver
// which was gone leaves no credit to burst with.
const paceSQL = `
update claimq.replays r
   set elapsed = r.elapsed + greatest(least(clock_timestamp() - r.stepped_at, interval '1 second'), interval '0'), stepped_at = clock_timestamp()
 where r.id = $1 and r.state = 'running'
returning r.rate, extract(epoch from r.elapsed)::float8, extract(epoch from r.ramp)::float8, r.in_flight, r.fed,
          (select count(*) from claimq.replay_items i where i.replay = $1 and i.state = 'queued')`

// nextItemsSQL locks the next letters of the list, in source order. One whose id
// waits in the delay queue under another letter waits on the list for that: two
// items never have one claim.
const nextItemsSQL = `
select l.id, l.queue, l.order_key
  from claimq.dead_letters l
  join (select i.seq, i.letter
          from claimq.replay_items i
          join claimq.dead_letters x on x.id = i.letter
         where i.replay = $1 and i.state = 'listed'
           and not exists (select from claimq.delayed d where d.claim = x.claim)
         order by i.seq
         limit $2) n on n.letter = l.id
 order by n.seq
   for update of l`

// settledItemsSQL gives their outcome to items whose letters are not dead any more:
// a repeat of the id has succeeded, or somebody has decided.
const settledItemsSQL = `
update claimq.replay_items i
   set state = case l.state when 'resolved' then 'done' else 'skipped' end::claimq.replay_item_state, why = l.state::text, at = clock_timestamp()
  from claimq.dead_letters l
 where i.replay = $1 and i.state = 'listed' and i.letter = any ($2) and l.id = i.letter and l.state <> 'dead'`

// feedSQL puts letters into their queue's own delay queue, at their old places and
// with all their attempts before them. What is not returned was folded.
const feedSQL = `
insert into claimq.delayed (
       id, order_pos, queue, kind, order_key, due_at, claim, fingerprint, fingerprint_version, tenant, operation, shown,
       topic, partition, "offset", leader_epoch,
       record_topic, record_key, record_value, header_keys, header_values, record_at, record_attributes,
       first_seen, error_class, error_message, replay, replay_count)
select l.id, l.order_pos, l.queue, 'replay', l.order_key, clock_timestamp(), l.claim, l.fingerprint, l.fingerprint_version, l.tenant, l.operation, l.shown,
       l.topic, l.partition, l."offset", l.leader_epoch,
       l.record_topic, l.record_key, l.record_value, l.header_keys, l.header_values, l.record_at, l.record_attributes,
       l.first_seen, l.error_class, l.error_message, $1, l.replay_count + 1
  from claimq.dead_letters l
 where l.id = any ($2) and l.state = 'dead'
 order by l.order_pos
    on conflict do nothing
returning id`

const replayingSQL = `
update claimq.dead_letters set state = 'replaying', replay = $1, replay_count = replay_count + 1 where id = any ($2) and state = 'dead'`

const queuedItemsSQL = `
update claimq.replay_items set state = 'queued', at = clock_timestamp() where replay = $1 and letter = any ($2) and state = 'listed'`

// fedSQL counts, and ends a replay of which nothing is left to happen.
const fedSQL = `
update claimq.replays r
   set fed = r.fed + $2,
       state = case when open.n = 0 then 'finished' else r.state end,
       ended_at = case when open.n = 0 then clock_timestamp() end
  from (select count(*) as n from (select from claimq.replay_items i where i.replay = $1 and i.state in ('listed', 'queued') limit 1) o) open
 where r.id = $1 and ($2 > 0 or open.n = 0)`

// pace is what a replay may do at the moment.
type pace struct {
	rate          pgtype.Float8
	elapsed, ramp float64
	inFlight      int
	fed, queued   int64
}

// allowed is how many letters may be fed now.
func (p *pace) allowed() int {
	n := min(int64(p.inFlight)-p.queued, feedChunk)
	if p.rate.Valid {
		n = min(n, int64(p.total())-p.fed)
	} else {
		n = min(n, max(p.fed, 1)) // one, and then twice as many: a cause that is still there is met by few
	}
	return int(max(n, 0))
}

// total is how many letters may have been fed by now: the rate, summed up over the
// time; while it grows evenly from nothing, the triangle under it.
func (p *pace) total() float64 {
	if p.elapsed < p.ramp {
		return p.rate.Float64 * p.elapsed * p.elapsed / (2 * p.ramp)
	}
	return p.rate.Float64 * (p.elapsed - p.ramp/2)
}

// StepReplay feeds what may be fed at this moment: letters become replaying and
// items of the delay queue, and the list knows, in one transaction. It reports
// whether there may be more to feed at once. A replay that is not running is left
// alone; one of which everything is settled is finished.
func (s *Store) StepReplay(ctx context.Context, db DB, replay uuid.UUID) (fed int, more bool, err error) {
	err = inTx(ctx, db, func(tx pgx.Tx) error {
		fed, more = 0, false
		var p pace
		err := tx.QueryRow(ctx, s.sql.pace, replay).Scan(&p.rate, &p.elapsed, &p.ramp, &p.inFlight, &p.fed, &p.queued)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		allowed := p.allowed()
		if allowed > 0 {
			if fed, err = s.feed(ctx, tx, replay, allowed); err != nil {
				return err
			}
		}
		more = fed > 0 && !p.rate.Valid
		_, err = tx.Exec(ctx, s.sql.fed, replay, fed)
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("replay %s: %w", replay, err)
	}
	return fed, more, nil
}

func (s *Store) feed(ctx context.Context, tx pgx.Tx, replay uuid.UUID, n int) (int, error) {
	if _, err := tx.Exec(ctx, protectPlans); err != nil {
		return 0, err
	}
	locked, err := lockLetters(ctx, tx, s.sql.nextItems, replay, n)
	if err != nil || len(locked.ids) == 0 {
		return 0, err
	}
	if _, err := tx.Exec(ctx, s.sql.settledItems, replay, locked.ids); err != nil {
		return 0, err
	}
	rows, err := tx.Query(ctx, s.sql.feed, replay, locked.ids)
	if err != nil {
		return 0, err
	}
	fed, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(fed) == 0 {
		return 0, err
	}
	var b pgx.Batch
	b.Queue(s.sql.replaying, replay, fed)
	b.Queue(s.sql.queuedItems, replay, fed)
	locked.queueKeys(&b, s.sql.hold)
	return len(fed), tx.SendBatch(ctx, &b).Close()
}

// DriveReplay feeds a replay until it has ended or is paused, and returns how it
// stands then. It keeps nothing in memory: when it is killed, or ctx ends, the next
// DriveReplay goes on where the database says, and any number may drive one replay.
// progress, unless nil, is called about ten times a second and may not block.
//
// A replay ends when every letter has an outcome, so it waits for the workers; when
// none runs it waits for as long as ctx lasts.
func (s *Store) DriveReplay(ctx context.Context, db DB, replay uuid.UUID, progress func(*Replay)) (*Replay, error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var told time.Time
	for {
		_, more, err := s.StepReplay(ctx, db, replay)
		if err != nil {
			return nil, err
		}
		if !more || time.Since(told) > driveTick {
			r, err := s.FindReplay(ctx, db, replay)
			if err != nil || r == nil {
				return nil, err
			}
			if progress != nil {
				progress(r)
			}
			if r.State != ReplayRunning {
				return r, nil
			}
			told = time.Now()
		}
		if more {
			continue
		}
		timer.Reset(driveTick)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// NewestPosition is the place of a message that is newer than all letters.
const NewestPosition = math.MaxInt64
