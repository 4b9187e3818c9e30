package dedup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A ClaimRecord is what the database knows of an id whose effect has been made.
type ClaimRecord struct {
	// Digest is what stands for scope and id.
	Digest uuid.UUID
	// Shown is the id, shortened, for people; empty in a queue that hides ids.
	Shown string
	// Segments are the segments of the ring that hold the claim: one, and two while
	// the ring moves on.
	Segments []int16
	// Fingerprint and FingerprintVersion are the first copy's; version 0: none.
	Fingerprint        uuid.UUID
	FingerprintVersion int16
	// First is where the id was first seen, and Topic the name of the topic there. Nil
	// and "" when it was claimed outside Kafka.
	First *Sighting
	Topic string
	// RecordAt is the time of the first record, by its producer's or broker's clock.
	// ClaimedAt is when its transaction began, by the database's.
	RecordAt, ClaimedAt time.Time
	// Result tells of the result that the handler left, nil when there is none, or
	// none any more.
	Result *ResultRecord
}

// A ResultRecord tells of a result without its bytes.
type ResultRecord struct {
	CreatedAt, ExpiresAt time.Time
}

// Through the parent: all leaves are looked at, whatever phase the ring is in. In
// the order of the rows' age, so that the first is the first copy's.
const sqlFindClaim = `
select c.id, coalesce(c.shown, ''), c.segment, c.fingerprint, c.fingerprint_version,
       c.topic, c.partition, c."offset", coalesce(t.name, ''), c.record_at, c.claimed_at
  from claimq.claims c
  left join claimq.topics t on t.id = c.topic
 where c.id = $1
 order by c.claimed_at, c.segment`

const sqlFindResult = `
select created_at, expires_at from claimq.results where claim = $1 and expires_at > now() order by expires_at desc limit 1`

// Find returns what is known of an id, nil when its effect has not been made or
// has been forgotten. Identity's fingerprint does not matter. A message that is
// being handled at this moment is not known yet. It writes nothing.
func (s *Store) Find(ctx context.Context, db Querier, identity Identity) (*ClaimRecord, error) {
	digest := identity.Digest()
	rows, err := db.Query(ctx, s.schema.SQL(sqlFindClaim), digest)
	if err != nil {
		return nil, fmt.Errorf("dedup: find claim %s: %w", digest, err)
	}
	found, err := scanClaimed(rows)
	if err != nil {
		return nil, fmt.Errorf("dedup: find claim %s: %w", digest, err)
	}
	if found == nil {
		return nil, nil
	}
	var result ResultRecord
	err = db.QueryRow(ctx, s.schema.SQL(sqlFindResult), digest).Scan(&result.CreatedAt, &result.ExpiresAt)
	switch {
	case err == nil:
		found.Result = &result
	case !errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("dedup: find the result of claim %s: %w", digest, err)
	}
	return found, nil
}

func scanClaimed(rows pgx.Rows) (*ClaimRecord, error) {
	var found *ClaimRecord
	var row ClaimRecord
	var segment int16
	var topic, partition *int32
	var offset *int64
	_, err := pgx.ForEachRow(rows, []any{
		&row.Digest, &row.Shown, &segment, &row.Fingerprint, &row.FingerprintVersion,
		&topic, &partition, &offset, &row.Topic, &row.RecordAt, &row.ClaimedAt,
	}, func() error {
		if found == nil {
			first := row
			found = &first
			if topic != nil && partition != nil && offset != nil {
				found.First = &Sighting{Topic: *topic, Partition: *partition, Offset: *offset}
			}
		}
		found.Segments = append(found.Segments, segment)
		return nil
	})
	return found, err
}

// A Beginner begins transactions: a pool or a connection of pgx.
type Beginner interface {
	Querier
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// An Order is an operator's: who gives it, and why. Both are stored and needed.
type Order struct {
	Who, Why string
}

// ErrNoReason says that an operator's order does not tell who gives it, or why.
var ErrNoReason = errors.New("dedup: an order needs to say who gives it and why: both are kept in claimq.audit")

// ErrUnknownQueue says that the database has no queue of the identity's name.
var ErrUnknownQueue = errors.New("dedup: the database has no such queue")

const (
	// What was claimed after the order was given stays: $2 is the claim that it saw.
	sqlForgetClaim  = `delete from claimq.claims where id = $1 and claimed_at <= $2`
	sqlForgetResult = `delete from claimq.results where claim = $1`
	sqlAuditForget  = `
insert into claimq.audit (who, why, action, queue, detail)
values ($1, $2, 'claims forget', $3,
        jsonb_strip_nulls(jsonb_build_object(
            'claim', $4::uuid, 'id', nullif($5::text, ''), 'tenant', $6::text, 'operation', $7::text,
            'topic', nullif($8::text, ''), 'partition', $9::int, 'offset', $10::bigint,
            'record_at', $11::timestamptz, 'claimed_at', $12::timestamptz, 'result', $13::bool)))`
)

// Forget deletes the claim of an id and its result, so that the next message with
// that id is new: its handler runs again, and its effects go out again under the
// ids and target keys that they had before. It returns what was known, nil when
// nothing was. The order is kept in claimq.audit in the same transaction, without
// the id when the queue hides ids.
//
// db must not be in a transaction: while the ring of segments moves on, another
// transaction can copy the claim into the next segment under Forget's eyes, so it
// looks again after each commit.
func (s *Store) Forget(ctx context.Context, db Beginner, identity Identity, order Order) (*ClaimRecord, error) {
	if order.Who == "" || order.Why == "" {
		return nil, ErrNoReason
	}
	var queue int32
	err := db.QueryRow(ctx, s.sql.findQueue, identity.Queue).Scan(&queue)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("%w: %q", ErrUnknownQueue, identity.Queue)
	}
	if err != nil {
		return nil, fmt.Errorf("dedup: find queue %q: %w", identity.Queue, err)
	}
	known, err := s.Find(ctx, db, identity)
	if err != nil || known == nil {
		return nil, err
	}
	for left := known; left != nil && !left.ClaimedAt.After(known.ClaimedAt); {
		if err := s.forget(ctx, db, identity, queue, left, order); err != nil {
			return nil, fmt.Errorf("dedup: forget claim %s: %w", known.Digest, err)
		}
		if left, err = s.Find(ctx, db, identity); err != nil {
			return nil, err
		}
	}
	return known, nil
}

func (s *Store) forget(ctx context.Context, db Beginner, identity Identity, queue int32, known *ClaimRecord, order Order) error {
	var partition *int32
	var offset *int64
	if known.First != nil {
		partition, offset = &known.First.Partition, &known.First.Offset
	}
	b := &pgx.Batch{}
	b.Queue(s.schema.SQL(sqlForgetClaim), known.Digest, known.ClaimedAt)
	b.Queue(s.schema.SQL(sqlForgetResult), known.Digest)
	b.Queue(s.schema.SQL(sqlAuditForget), order.Who, order.Why, queue, known.Digest, known.Shown, identity.Tenant, identity.Operation,
		known.Topic, partition, offset, known.RecordAt, known.ClaimedAt, known.Result != nil)
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		return tx.SendBatch(ctx, b).Close()
	})
}
