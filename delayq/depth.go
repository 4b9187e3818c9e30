package delayq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Depth is how much of a queue waits, in items. Ready, Running, Delayed and
// Scheduled count the heads of order keys, Blocked everything behind them, so the
// five add up to what is stored.
type Depth struct {
	// Ready: due now, and nobody has it; after a lease that ended, too.
	Ready int64
	// Running: handed out under a lease, with what else of its key was handed out
	// counted as Blocked.
	Running int64
	// Delayed: waiting for its next attempt.
	Delayed int64
	// Blocked: behind an unfinished item or a dead letter of the same order key.
	Blocked int64
	// Scheduled: not due before a time that its producer chose.
	Scheduled int64
	// HeldKeys is how many order keys a dead letter holds up. These are keys, not
	// items.
	HeldKeys int64
	// Oldest is when the item that waits longest was stored; zero when nothing waits.
	Oldest time.Time
}

// depthsSQL counts from the key rows and indexes; it reads no item.
const depthsSQL = `
select k.ready, k.running, k.waiting - s.future, t.total - k.ready - k.running - k.waiting, s.future, k.held,
       (select min(d.stored_at) from claimq.delayed d where d.queue = $1)
  from (select count(*) filter (where ready_at <= now()) as ready,
               count(*) filter (where lease_token is not null and ready_at > now()) as running,
               count(*) filter (where lease_token is null and ready_at > now() and ready_at < 'infinity') as waiting,
               count(*) filter (where ready_at = 'infinity') as held
          from claimq.delayed_keys where queue = $1) k,
       (select count(*) as total from claimq.delayed where queue = $1) t,
       (select count(*) as future from claimq.delayed where queue = $1 and kind = 'scheduled' and due_at > now()) s`

// Depths counts what waits in a queue, in one snapshot. It costs in proportion to
// the number of waiting items: for `status` and metrics, not for a poll.
func (s *Store) Depths(ctx context.Context, db Querier, queue int32) (Depth, error) {
	var d Depth
	var oldest pgtype.Timestamptz
	err := db.QueryRow(ctx, s.sql.depths, queue).
		Scan(&d.Ready, &d.Running, &d.Delayed, &d.Blocked, &d.Scheduled, &d.HeldKeys, &oldest)
	if err != nil {
		return Depth{}, fmt.Errorf("count the delayed items of queue %d: %w", queue, err)
	}
	d.Oldest = oldest.Time
	return d, nil
}

// nextDueSQL reads one entry of delayed_keys_ready.
const nextDueSQL = `
select (extract(epoch from k.ready_at - clock_timestamp()) * 1000000)::bigint
  from claimq.delayed_keys k
 where k.queue = $1 and k.ready_at < 'infinity'
 order by k.ready_at
 limit 1`

// NextDue tells in how long something of a queue will be ready: an item due, or a
// lease ended. It is 0 when something is already, and some is false when nothing
// waits but for dead letters. A poller sleeps that long, or until it is told that
// something was stored; and at least some milliseconds, because a key that is ready
// and locked by who is storing behind it is skipped by Lease.
func (s *Store) NextDue(ctx context.Context, db Querier, queue int32) (in time.Duration, some bool, err error) {
	var microseconds int64
	err = db.QueryRow(ctx, s.sql.nextDue, queue).Scan(&microseconds)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("find what is due next in queue %d: %w", queue, err)
	}
	microseconds = min(max(microseconds, 0), LongestDelay.Microseconds())
	return time.Duration(microseconds) * time.Microsecond, true, nil
}
