package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// ErrDelay says that an effect's time cannot be told.
var ErrDelay = errors.New("the effect's time is not clear: set At, a time before the year 10000, or After, which is not negative, and not both")

// releaseRows bounds what one transaction moves from outbox_due to the outbox.
const releaseRows = 1000

// sqlInsertDue is sqlInsert for effects with a time of their own.
const sqlInsertDue = `
insert into claimq.outbox_due (due_at, bucket, ordered, id, topic, key, value, correlation_id, causation_id, header_keys, header_values)
select coalesce(t.due_at, clock_timestamp()) + t.after,
       t.bucket, t.ordered, t.id, t.topic, t.key, t.value, t.correlation_id, t.causation_id,
       t.header_keys::bytea[], t.header_values::bytea[]
  from unnest($1::int2[], $2::bool[], $3::uuid[], $4::text[], $5::bytea[], $6::bytea[], $7::bytea[], $8::bytea[], $9::text[], $10::text[],
              $11::timestamptz[], $12::interval[])
       as t (bucket, ordered, id, topic, key, value, correlation_id, causation_id, header_keys, header_values, due_at, after)`

const sqlReleaseDue = `select claimq.outbox_release($1)`

// delayed reports whether the effect waits for a time.
func (e *Effect) delayed() bool { return !e.At.IsZero() || e.After != 0 }

func (e *Effect) delayIsClear() bool {
	return e.After >= 0 && (e.At.IsZero() || e.After == 0) && e.At.Year() < 10_000
}

// An insertion is one statement with its arguments.
type insertion struct {
	sql  string
	args []any
}

// insertions checks n effects and returns what stores them: one statement, and
// another where some wait for a time.
func (o *Outbox) insertions(n int, at func(int) (Cause, *Effect)) ([]insertion, error) {
	all, err := o.rows(n, at) // also what tells effects of one id, due or not
	if err != nil {
		return nil, err
	}
	var now, later []int
	for i := range n {
		if _, effect := at(i); effect.delayed() {
			later = append(later, i)
		} else {
			now = append(now, i)
		}
	}
	var list []insertion
	if len(later) == 0 {
		sql, args := o.statement(all)
		return append(list, insertion{sql, args}), nil
	}
	if len(now) > 0 {
		some, err := o.rows(len(now), func(i int) (Cause, *Effect) { return at(now[i]) })
		if err != nil {
			return nil, err
		}
		sql, args := o.statement(some)
		list = append(list, insertion{sql, args})
	}
	some, err := o.rows(len(later), func(i int) (Cause, *Effect) { return at(later[i]) })
	if err != nil {
		return nil, err
	}
	return append(list, o.dueStatement(some, later, at)), nil
}

func (o *Outbox) dueStatement(r *rows, which []int, at func(int) (Cause, *Effect)) insertion {
	times, delays := make([]pgtype.Timestamptz, len(which)), make([]time.Duration, len(which))
	for i, j := range which {
		_, effect := at(j)
		times[i] = pgtype.Timestamptz{Time: effect.At, Valid: !effect.At.IsZero()}
		delays[i] = effect.After
	}
	r.needHeaders()
	return insertion{o.insertDue, []any{
		r.buckets, r.ordered, r.ids, r.topics, r.keys, r.values, r.correlations, r.causations, r.headerKeys, r.headerValues, times, delays,
	}}
}

// release moves effects that have become due into the outbox, until the relay ends.
// It looks as often as an idle relay does: an effect is late by as much.
func (r *Relay) release(ctx context.Context, stopping <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-stopping:
			return
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		moved := r.releaseOnce(ctx)
		if moved > 0 {
			r.Wake()
		}
		if moved == releaseRows {
			timer.Reset(0)
		} else {
			timer.Reset(r.config.IdlePoll)
		}
	}
}

// releaseOnce moves up to releaseRows effects and returns how many it did.
func (r *Relay) releaseOnce(ctx context.Context) (moved int) {
	query, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if err := r.pool.QueryRow(query, r.sql.releaseDue, releaseRows).Scan(&moved); err != nil {
		if ctx.Err() == nil {
			r.config.Logger.Debug("effects that are due have not been moved; it is tried again", "error", err)
		}
		return 0
	}
	return moved
}
