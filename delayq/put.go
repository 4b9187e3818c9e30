package delayq

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/claimq/claimq/internal/pgtext"
	"github.com/claimq/claimq/internal/rowrecord"
)

// putSQL stores items, in the order given: positions follow it, because they are
// drawn over a sorted subselect.
//
// Invariant: a message is in the delay queue once. An item whose id, claim or
// source is there already changes nothing and is not returned; ON CONFLICT waits
// for a transaction that is storing or removing the other copy.
const putSQL = `
insert into claimq.delayed (
       id, order_pos, queue, kind, order_key, joins, due_at,
       starts, attempts, crashes, interrupted, interrupted_why,
       claim, fingerprint, fingerprint_version, tenant, operation, shown,
       topic, partition, "offset", leader_epoch,
       record_topic, record_key, record_value, header_keys, header_values, record_at, record_attributes,
       first_seen, failed_at, error_class, error_message, replay, replay_count)
select s.id, coalesce(s.order_pos, nextval('claimq.order_positions')), s.queue, s.kind::claimq.delay_kind, s.order_key, s.joins,
       coalesce(s.due_at, clock_timestamp() + s.due_in),
       s.starts, s.attempts, s.crashes, s.interrupted, s.interrupted_why,
       s.claim, s.fingerprint, s.fingerprint_version, s.tenant, s.operation, s.shown,
       s.topic, s.partition, s."offset", s.leader_epoch,
       s.record_topic, s.record_key, s.record_value, coalesce(s.keys, '{}'), coalesce(s.vals, '{}'), s.record_at, s.record_attributes,
       coalesce(s.first_seen, clock_timestamp()), case when s.attempts > 0 then clock_timestamp() end,
       s.error_class, s.error_message, s.replay, s.replay_count
  from (select u.*, h.keys, h.vals
          from unnest($1::uuid[], $2::bigint[], $3::int[], $4::text[], $5::uuid[], $6::uuid[], $7::timestamptz[], $8::interval[],
                      $9::int[], $10::int[], $11::int[], $12::int[], $13::text[],
                      $14::uuid[], $15::uuid[], $16::smallint[], $17::text[], $18::text[], $19::text[],
                      $20::int[], $21::int[], $22::bigint[], $23::int[],
                      $24::text[], $25::bytea[], $26::bytea[], $27::timestamptz[], $28::smallint[],
                      $29::timestamptz[], $30::text[], $31::text[], $32::uuid[], $33::int[]) with ordinality
               as u (id, order_pos, queue, kind, order_key, joins, due_at, due_in,
                     starts, attempts, crashes, interrupted, interrupted_why,
                     claim, fingerprint, fingerprint_version, tenant, operation, shown,
                     topic, partition, "offset", leader_epoch,
                     record_topic, record_key, record_value, record_at, record_attributes,
                     first_seen, error_class, error_message, replay, replay_count, n)
          left join (select h.n, array_agg(h.k order by h.i) as keys, array_agg(h.v order by h.i) as vals
                       from unnest($34::int[], $35::bytea[], $36::bytea[]) with ordinality as h (n, k, v, i)
                      group by h.n) h on h.n = u.n
         order by u.n) s
    on conflict do nothing
returning id, order_pos, due_at`

// keepKeysSQL gives each key its row, holds it until COMMIT and brings it in line.
// It is a statement of its own behind putSQL, and inside it the lock and the
// reading of the items are two: see claimq.keep_keys in the migrations.
const keepKeysSQL = `select claimq.keep_keys($1, $2)`

// Put queues the statements that store items. When they have run, each item has
// its ID, OrderPos and DueAt, or Folded when its message was there already.
//
// A worker that stores m2 behind a key k and one that finishes m1, the last item
// of k, meet in k's row:
//
//	finisher locks k, sees m1 only, deletes m1 and k     storer inserts m2
//	COMMIT                                               waits for k's row
//	                                                     finds it gone, inserts it, due as m2 is
//
//	storer inserts m2, locks k without a new version     finisher waits for k's row
//	COMMIT                                               locks k; its next statement sees m2,
//	                                                     so k stays and becomes due as m2 is
//
// Neither can k vanish with m2 stored nor stay without items. An item that is
// stored behind others does not write k: a key with thousands behind it is quiet.
func (s *Store) Put(b *pgx.Batch, items []*Item) {
	if len(items) == 0 {
		return
	}
	var a putArrays
	keys := map[int32][]uuid.UUID{}
	for _, item := range items {
		keys[item.Queue] = append(keys[item.Queue], a.append(item))
	}
	b.Queue(s.sql.put, a.args()...).Query(func(rows pgx.Rows) error {
		stored := make(map[uuid.UUID]placed, len(items))
		var id uuid.UUID
		var at placed
		_, err := pgx.ForEachRow(rows, []any{&id, &at.pos, &at.due}, func() error {
			stored[id] = at
			return nil
		})
		if err != nil {
			return fmt.Errorf("store %d delayed items: %w", len(items), err)
		}
		for _, item := range items {
			at, ok := stored[item.ID]
			delete(stored, item.ID) // a second item with this id was folded into the first
			if item.Folded = !ok; ok {
				item.OrderPos, item.DueAt = at.pos, at.due
			}
		}
		return nil
	})
	for queue, of := range keys {
		s.keepKeys(b, queue, of)
	}
}

// Settle queues the statement that brings key rows in line with what is stored,
// makes them where something waits or holds, and deletes them where nothing does.
// It belongs behind every change that a dead letter's hold on its key may have
// come or gone by, in the same transaction and after it. Keys that are leased are
// left to their holder, who settles them too.
func (s *Store) Settle(b *pgx.Batch, queue int32, keys []uuid.UUID) {
	if len(keys) > 0 {
		s.keepKeys(b, queue, keys)
	}
}

func (s *Store) keepKeys(b *pgx.Batch, queue int32, keys []uuid.UUID) {
	b.Queue(s.sql.keepKeys, queue, distinct(keys))
}

// placed is what the database chose for a stored item.
type placed struct {
	pos int64
	due time.Time
}

// distinct returns keys sorted and without repeats: key rows are locked in this
// order everywhere, so that two who need the same ones do not deadlock.
func distinct(keys []uuid.UUID) []uuid.UUID {
	sorted := slices.Clone(keys)
	slices.SortFunc(sorted, compareKeys)
	return slices.Compact(sorted)
}

// putArrays is the items' columns side by side.
type putArrays struct {
	ids                                    []uuid.UUID
	positions                              []pgtype.Int8
	queues                                 []int32
	kinds                                  []string
	orderKeys                              []uuid.UUID
	joins                                  []pgtype.UUID
	dueAts                                 []pgtype.Timestamptz
	dueIns                                 []pgtype.Interval
	starts, attempts, crashes, interrupted []int32
	interruptedWhy                         []pgtype.Text
	claims, fingerprints                   []pgtype.UUID
	fingerprintVersions                    []int16
	tenants, operations, showns            []pgtype.Text
	topics, partitions                     []pgtype.Int4
	offsets                                []pgtype.Int8
	leaderEpochs                           []int32
	records                                rowrecord.Arrays
	firstSeens                             []pgtype.Timestamptz
	classes, messages                      []pgtype.Text
	replays                                []pgtype.UUID
	replayCounts                           []int32
}

// append adds an item, gives it an id when it has none, and returns the order key
// that it is stored under.
func (a *putArrays) append(item *Item) uuid.UUID {
	if item.ID == uuid.Nil {
		item.ID = newID(item)
	}
	// An item that is not due yet is under a key of its own: it holds up nothing.
	orderKey, joins := item.OrderKey, pgtype.UUID{}
	if item.Kind == Scheduled && orderKey != item.ID {
		orderKey, joins = uuid.Nil, nullUUID(item.OrderKey, item.OrderKey != uuid.Nil)
	}
	if orderKey == uuid.Nil {
		orderKey = item.ID
	}
	a.ids = append(a.ids, item.ID)
	a.positions = append(a.positions, pgtype.Int8{Int64: item.OrderPos, Valid: item.OrderPos != 0})
	a.queues = append(a.queues, item.Queue)
	a.kinds = append(a.kinds, string(item.Kind))
	a.orderKeys = append(a.orderKeys, orderKey)
	a.joins = append(a.joins, joins)
	a.dueAts = append(a.dueAts, timestamp(item.DueAt))
	a.dueIns = append(a.dueIns, interval(item.DueIn))
	a.starts = append(a.starts, count(item.Starts))
	a.attempts = append(a.attempts, count(item.Attempts))
	a.crashes = append(a.crashes, count(item.Crashes))
	a.interrupted = append(a.interrupted, count(item.Interrupted))
	a.interruptedWhy = append(a.interruptedWhy, text(item.InterruptedWhy, maxClass))
	a.claims = append(a.claims, nullUUID(item.Claim.UUID, item.Claim.Valid))
	a.fingerprints = append(a.fingerprints, nullUUID(item.Fingerprint, item.FingerprintVersion != 0))
	a.fingerprintVersions = append(a.fingerprintVersions, item.FingerprintVersion)
	a.tenants = append(a.tenants, optional(item.Tenant))
	a.operations = append(a.operations, optional(item.Operation))
	a.showns = append(a.showns, text(item.Shown, maxMessage))
	a.appendSource(item)
	a.records.Append(item.Record)
	a.firstSeens = append(a.firstSeens, timestamp(item.FirstSeen))
	a.classes = append(a.classes, text(item.ErrorClass, maxClass))
	a.messages = append(a.messages, text(item.ErrorMessage, maxMessage))
	a.replays = append(a.replays, nullUUID(item.ReplayID.UUID, item.ReplayID.Valid))
	a.replayCounts = append(a.replayCounts, count(item.ReplayCount))
	return orderKey
}

func (a *putArrays) appendSource(item *Item) {
	source, from := Source{LeaderEpoch: item.Record.LeaderEpoch}, item.Source != nil
	if from {
		source = *item.Source
	}
	a.topics = append(a.topics, pgtype.Int4{Int32: source.Topic, Valid: from})
	a.partitions = append(a.partitions, pgtype.Int4{Int32: source.Partition, Valid: from})
	a.offsets = append(a.offsets, pgtype.Int8{Int64: source.Offset, Valid: from})
	a.leaderEpochs = append(a.leaderEpochs, source.LeaderEpoch)
}

// args are putSQL's, in its order.
func (a *putArrays) args() []any {
	r := &a.records
	return []any{
		a.ids, a.positions, a.queues, a.kinds, a.orderKeys, a.joins, a.dueAts, a.dueIns,
		a.starts, a.attempts, a.crashes, a.interrupted, a.interruptedWhy,
		a.claims, a.fingerprints, a.fingerprintVersions, a.tenants, a.operations, a.showns,
		a.topics, a.partitions, a.offsets, a.leaderEpochs,
		r.Topics, r.Keys, r.Values, r.Ats, r.Attributes,
		a.firstSeens, a.classes, a.messages, a.replays, a.replayCounts,
		r.HeaderOf, r.HeaderKeys, r.HeaderValues,
	}
}

func newID(item *Item) uuid.UUID {
	if item.Source != nil {
		return SourceID(item.Queue, *item.Source)
	}
	return uuid.New()
}

func nullUUID(id uuid.UUID, valid bool) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: valid} }

func timestamp(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()}
}

func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: min(d, LongestDelay).Microseconds(), Valid: true}
}

// text is a diagnostic made storable; empty is null.
func text(s string, maxBytes int) pgtype.Text {
	return pgtype.Text{String: pgtext.Storable(s, maxBytes), Valid: s != ""}
}

func optional(s *string) pgtype.Text {
	if s == nil {
		return pgtype.Text{}
	}
	return pgtype.Text{String: *s, Valid: true}
}

// count is a column of how many times something was done.
func count(n int) int32 { return int32(n) } //nolint:gosec // nothing is done two thousand million times
