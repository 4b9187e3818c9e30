// Package statusview reads how each queue stands, in the columns that people of
// Pega's queue processors know: state, scheduled, ready, blocked, processed in the
// last hour, average time, broken; and what Kafka adds to them.
//
// It has a statement of its own over everything, and not a call for each part and
// queue, so that one view is one moment.
package statusview

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/claimq/claimq/internal/pgschema"
)

// A State is whether a queue is being worked on.
type State string

const (
	// Running: at least one worker has been heard of in the last 15 seconds.
	Running State = "running"
	// Paused: an operator or a breaker has stopped it, and said why.
	Paused State = "paused"
	// Stopped: no worker runs it; the last one has said good-bye.
	Stopped State = "stopped"
	// NoWorker: workers are on the list and none of them is heard of: they have
	// crashed, are frozen, or cannot reach the database.
	NoWorker State = "no worker"
)

// A Queue is how one queue stands. Counts are of items, or messages.
type Queue struct {
	Name  string `json:"queue"`
	State State  `json:"state"`
	// PausedBy, PausedWhy and PausedAt are set while it is paused.
	PausedBy  string     `json:"paused_by,omitempty"`
	PausedWhy string     `json:"paused_why,omitempty"`
	PausedAt  *time.Time `json:"paused_at,omitempty"`
	// Team and Contact are who is responsible.
	Team    string `json:"owner,omitempty"`
	Contact string `json:"contact,omitempty"`
	// Workers are those heard of lately, Silent those that are not and have not said
	// good-bye.
	Workers int64 `json:"workers"`
	Silent  int64 `json:"workers_silent"`
	// Scheduled waits for a time: of the next attempt, or one that a producer chose.
	Scheduled int64 `json:"scheduled"`
	// Ready is due and not yet taken, InProgress is being handled from the delay queue.
	Ready      int64 `json:"ready"`
	InProgress int64 `json:"in_progress"`
	// Blocked waits behind an item or a dead letter of its order key.
	Blocked int64 `json:"blocked"`
	// Broken are dead letters that wait for a decision, Replaying those on their way
	// back.
	Broken    int64 `json:"broken"`
	Replaying int64 `json:"replaying"`
	// What the workers that are heard of tell: messages handled within the last hour,
	// the mean time of a handler for one message in milliseconds, messages in Kafka not
	// yet handled, and how often one was fenced. Nil when no worker tells.
	ProcessedHour *int64   `json:"processed_last_hour"`
	AverageMS     *float64 `json:"average_ms"`
	Lag           *int64   `json:"lag"`
	Fenced        *int64   `json:"fenced"`
	// Partitions have a position, the newest of which was written at PositionAt.
	Partitions int64      `json:"partitions"`
	PositionAt *time.Time `json:"position_written_at"`
	// RememberedSince is from when on repeats are found; nil when it claims nothing.
	RememberedSince *time.Time `json:"remembers_since"`
}

// A View is how all queues stand at one moment.
type View struct {
	// At is the database's time.
	At     time.Time `json:"at"`
	Queues []Queue   `json:"queues"`
}

// A Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Items are counted from the key rows and from indexes. Of a worker's stats only
// the object under the queue's name is read: processed_hour, handler_ms_avg, lag
// and fenced, numbers all; a worker that has not measured something leaves it out.
const sqlView = `
select now(), q.name, coalesce(q.paused_by, ''), coalesce(q.paused_why, ''), q.paused_at, q.owner_team, q.owner_contact,
       w.heard, w.silent, k.waiting, k.ready, k.leased, greatest(t.total - k.waiting - k.ready - k.leased, 0), l.dead, l.replaying,
       w.processed, w.average, w.lag, w.fenced, p.partitions, p.written_at,
       case when q.config->>'claims' is distinct from 'none' then greatest(q.created_at, now() - q.retention, s.opened) end
  from claimq.queues q
 cross join (
       select min(s.opened) as opened
         from claimq.claim_segments s,
              (select c.inserts || c.lookups as segments from claimq.claim_phases c order by c.phase desc limit 1) c
        where s.segment = any (c.segments)) s
 cross join lateral (
       select count(*) filter (where ready_at <= now()) as ready,
              count(*) filter (where ready_at > now() and lease_token is not null) as leased,
              count(*) filter (where ready_at > now() and ready_at < 'infinity' and lease_token is null) as waiting
         from claimq.delayed_keys where queue = q.id) k
 cross join lateral (select count(*) as total from claimq.delayed where queue = q.id) t
 cross join lateral (
       select count(*) filter (where state = 'dead') as dead, count(*) filter (where state = 'replaying') as replaying
         from claimq.dead_letters where queue = q.id and state in ('dead', 'replaying')) l
 cross join lateral (select count(*) as partitions, max(written_at) as written_at from claimq.positions_of(q.id)) p
 cross join lateral (
       select count(*) filter (where alive) as heard, count(*) filter (where not alive) as silent,
              (sum((stats->>'processed_hour')::numeric) filter (where alive))::bigint as processed,
              (sum((stats->>'handler_ms_avg')::numeric * greatest((stats->>'processed_hour')::numeric, 1)) filter (where alive)
               / sum(greatest((stats->>'processed_hour')::numeric, 1)) filter (where alive and stats->>'handler_ms_avg' is not null))::float8 as average,
              (sum((stats->>'lag')::numeric) filter (where alive))::bigint as lag,
              (sum((stats->>'fenced')::numeric) filter (where alive))::bigint as fenced
         from (select seen_at > clock_timestamp() - interval '15 seconds' as alive, stats->q.name as stats
                 from claimq.workers where q.name = any (queues)) w) w
 where $1::text is null or q.name = $1
 order by q.name`

// Read returns how the queues stand, in the order of their names: one of them, or
// all when name is empty. A name that there is not gives an empty view. It costs in
// proportion to what waits, so it is for people and not for a loop without a pause.
func Read(ctx context.Context, db Querier, schema pgschema.Schema, name string) (View, error) {
	var only *string
	if name != "" {
		only = &name
	}
	rows, err := db.Query(ctx, schema.SQL(sqlView), only)
	if err != nil {
		return View{}, fmt.Errorf("read the status: %w", err)
	}
	view := View{Queues: []Queue{}}
	var q Queue
	_, err = pgx.ForEachRow(rows, []any{
		&view.At, &q.Name, &q.PausedBy, &q.PausedWhy, &q.PausedAt, &q.Team, &q.Contact,
		&q.Workers, &q.Silent, &q.Scheduled, &q.Ready, &q.InProgress, &q.Blocked, &q.Broken, &q.Replaying,
		&q.ProcessedHour, &q.AverageMS, &q.Lag, &q.Fenced, &q.Partitions, &q.PositionAt, &q.RememberedSince,
	}, func() error {
		q.State = q.state()
		view.Queues = append(view.Queues, q)
		return nil
	})
	if err != nil {
		return View{}, fmt.Errorf("read the status: %w", err)
	}
	return view, nil
}

func (q *Queue) state() State {
	switch {
	case q.PausedAt != nil:
		return Paused
	case q.Workers > 0:
		return Running
	case q.Silent > 0:
		return NoWorker
	default:
		return Stopped
	}
}
