package dlq

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/claimq/claimq/internal/rowrecord"
)

// Filter chooses letters. Zero fields choose all.
type Filter struct {
	Queue  int32
	States []State
	Reason Reason
	Cause  uuid.UUID
	// DiedFrom and DiedBefore are a half-open interval.
	DiedFrom, DiedBefore time.Time
	// After continues a list behind its last letter.
	After *Letter
	// Limit is how many letters List returns at most. 0 means 100.
	Limit int
}

// filterSQL would be shared text; it is written out in each statement instead, so
// that each can be read and run as it is. $1 queue, $2 states, $3 reason, $4 cause,
// $5 and $6 the interval; null chooses all.

const countSQL = `
select count(*)
  from claimq.dead_letters l
 where ($1::int is null or l.queue = $1) and ($2::text[] is null or l.state::text = any ($2))
   and ($3::text is null or l.reason = $3) and ($4::uuid is null or l.cause = $4)
   and ($5::timestamptz is null or l.died_at >= $5) and ($6::timestamptz is null or l.died_at < $6)`

const byReasonSQL = `
select l.reason, count(*), min(l.died_at), max(l.died_at)
  from claimq.dead_letters l
 where ($1::int is null or l.queue = $1) and ($2::text[] is null or l.state::text = any ($2))
   and ($3::text is null or l.reason = $3) and ($4::uuid is null or l.cause = $4)
   and ($5::timestamptz is null or l.died_at >= $5) and ($6::timestamptz is null or l.died_at < $6)
 group by l.reason
 order by count(*) desc, l.reason`

const listSQL = `
select l.id, l.queue, q.name, l.state, l.round, l.reason, l.error_class, l.error_message, coalesce(l.stack, ''),
       l.cause, l.cause_version, l.starts, l.attempts, l.crashes, l.interrupted, coalesce(l.interrupted_why, ''),
       l.order_key, l.order_pos, l.holds_key, l.claim, l.fingerprint, l.fingerprint_version,
       l.tenant, l.operation, coalesce(l.shown, ''), l.topic, l.partition, l."offset", l.leader_epoch,
       l.record_topic, l.record_key, l.record_value, l.header_keys, l.header_values, l.record_at, l.record_attributes,
       l.first_seen, l.died_at, l.settled_at, l.replay_count
  from claimq.dead_letters l
  join claimq.queues q on q.id = l.queue
 where ($1::int is null or l.queue = $1) and ($2::text[] is null or l.state::text = any ($2))
   and ($3::text is null or l.reason = $3) and ($4::uuid is null or l.cause = $4)
   and ($5::timestamptz is null or l.died_at >= $5) and ($6::timestamptz is null or l.died_at < $6)
   and ($7::timestamptz is null or (l.died_at, l.id) > ($7, $8::uuid))
 order by l.died_at, l.id
 limit $9`

// Count counts letters.
func (s *Store) Count(ctx context.Context, db Querier, f Filter) (int64, error) {
	var n int64
	if err := db.QueryRow(ctx, s.sql.count, f.args()...).Scan(&n); err != nil {
		return 0, fmt.Errorf("count dead letters: %w", err)
	}
	return n, nil
}

// ReasonCount is how many letters have one reason, and when the first and the
// last of them died.
type ReasonCount struct {
	Reason      Reason
	Letters     int64
	First, Last time.Time
}

// ByReason counts letters by their reasons, most letters first.
func (s *Store) ByReason(ctx context.Context, db Querier, f Filter) ([]ReasonCount, error) {
	rows, err := db.Query(ctx, s.sql.byReason, f.args()...)
	if err != nil {
		return nil, fmt.Errorf("count dead letters by reason: %w", err)
	}
	counts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ReasonCount])
	if err != nil {
		return nil, fmt.Errorf("count dead letters by reason: %w", err)
	}
	return counts, nil
}

// List returns letters with their records, those that died first first.
func (s *Store) List(ctx context.Context, db Querier, f Filter) ([]*Letter, error) {
	after, afterID := pgtype.Timestamptz{}, pgtype.UUID{}
	if f.After != nil {
		after = pgtype.Timestamptz{Time: f.After.DiedAt, Valid: true}
		afterID = pgtype.UUID{Bytes: f.After.ID, Valid: true}
	}
	limit := f.Limit
	if limit <= 0 {
		limit = 100
	}
	rows, err := db.Query(ctx, s.sql.list, append(f.args(), after, afterID, limit)...)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	letters, err := pgx.CollectRows(rows, scanLetter)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return letters, nil
}

// args are the six that all statements begin with.
func (f Filter) args() []any {
	var states []string
	for _, state := range f.States {
		states = append(states, string(state))
	}
	return []any{
		pgtype.Int4{Int32: f.Queue, Valid: f.Queue != 0},
		states,
		pgtype.Text{String: string(f.Reason), Valid: f.Reason != ""},
		pgtype.UUID{Bytes: f.Cause, Valid: f.Cause != uuid.Nil},
		pgtype.Timestamptz{Time: f.DiedFrom, Valid: !f.DiedFrom.IsZero()},
		pgtype.Timestamptz{Time: f.DiedBefore, Valid: !f.DiedBefore.IsZero()},
	}
}

// scanLetter reads one row of listSQL.
func scanLetter(row pgx.CollectableRow) (*Letter, error) {
	l := &Letter{}
	var (
		claim, fingerprint pgtype.UUID
		tenant, operation  pgtype.Text
		topic, partition   pgtype.Int4
		offset             pgtype.Int8
		leaderEpoch        int32
		columns            rowrecord.Columns
		settled            pgtype.Timestamptz
	)
	targets := []any{
		&l.ID, &l.Queue, &l.QueueName, &l.State, &l.Round, &l.Reason, &l.ErrorClass, &l.ErrorMessage, &l.Stack,
		&l.Cause, &l.CauseVersion, &l.Starts, &l.Attempts, &l.Crashes, &l.Interrupted, &l.InterruptedWhy,
		&l.OrderKey, &l.OrderPos, &l.HoldsKey, &claim, &fingerprint, &l.FingerprintVersion,
		&tenant, &operation, &l.Shown, &topic, &partition, &offset, &leaderEpoch,
	}
	targets = append(targets, columns.Targets()...)
	targets = append(targets, &l.FirstSeen, &l.DiedAt, &settled, &l.ReplayCount)
	if err := row.Scan(targets...); err != nil {
		return nil, err
	}
	l.Claim = uuid.NullUUID{UUID: claim.Bytes, Valid: claim.Valid}
	l.Fingerprint = fingerprint.Bytes
	l.Tenant, l.Operation = pointer(tenant), pointer(operation)
	l.SettledAt = settled.Time
	if l.OrderKey == l.ID {
		l.OrderKey = uuid.Nil // nothing is ordered
	}
	at := rowrecord.Position{LeaderEpoch: leaderEpoch}
	if topic.Valid {
		l.Source = &Source{Topic: topic.Int32, Partition: partition.Int32, Offset: offset.Int64, LeaderEpoch: leaderEpoch}
		at.Partition, at.Offset = partition.Int32, offset.Int64
	}
	if l.State != Erased {
		l.Record = columns.Record(at)
	}
	return l, nil
}

func pointer(t pgtype.Text) *string {
	if !t.Valid {
		return nil
	}
	return &t.String
}
