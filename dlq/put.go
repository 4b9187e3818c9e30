package dlq

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

// againSQL is a letter's next death: it goes from replaying back to dead, with a
// higher round. The letter is found by its source, or by its id when it has none.
//
// Invariant: no round is skipped over or written twice. A batch that is run again after an unknown
// COMMIT finds the state dead and changes nothing.
const againSQL = `
update claimq.dead_letters l
   set state = 'dead', round = greatest(u.round, l.round + 1), reason = u.reason, error_class = u.class, error_message = u.message, stack = u.stack,
       cause = u.cause, cause_version = u.cause_version,
       starts = u.starts, attempts = u.attempts, crashes = u.crashes, interrupted = u.interrupted, interrupted_why = u.why,
       holds_key = u.holds_key, died_at = clock_timestamp(), replay_count = greatest(l.replay_count, u.replay_count)
  from unnest($1::uuid[], $2::int[], $3::int[], $4::int[], $5::bigint[], $6::int[], $7::text[], $8::text[], $9::text[], $10::text[],
              $11::uuid[], $12::smallint[], $13::int[], $14::int[], $15::int[], $16::int[], $17::text[], $18::boolean[], $19::int[])
       as u (id, queue, topic, partition, "offset", round, reason, class, message, stack,
             cause, cause_version, starts, attempts, crashes, interrupted, why, holds_key, replay_count)
 where l.id = coalesce((select s.id from claimq.dead_letters s
                         where s.queue = u.queue and s.topic = u.topic and s.partition = u.partition and s."offset" = u."offset"
                           and s.topic is not null), u.id)
   and l.state = 'replaying'
returning u.id, l.order_pos, l.died_at, l.round`

// putSQL is a letter's first death, in the order given.
//
// Invariant: one letter a source, whatever became of it. ON CONFLICT waits for a
// transaction that is writing the other copy and then changes nothing.
const putSQL = `
insert into claimq.dead_letters (
       id, queue, topic, partition, "offset", round, reason, error_class, error_message, stack,
       cause, cause_version, starts, attempts, crashes, interrupted, interrupted_why, holds_key, replay_count,
       order_key, order_pos, claim, fingerprint, fingerprint_version, tenant, operation, shown, leader_epoch,
       record_topic, record_key, record_value, header_keys, header_values, record_at, record_attributes,
       first_seen, died_at)
select s.id, s.queue, s.topic, s.partition, s."offset", s.round, s.reason, s.class, s.message, s.stack,
       s.cause, s.cause_version, s.starts, s.attempts, s.crashes, s.interrupted, s.why, s.holds_key, s.replay_count,
       s.order_key, coalesce(s.order_pos, nextval('claimq.order_positions')),
       s.claim, s.fingerprint, s.fingerprint_version, s.tenant, s.operation, s.shown, s.leader_epoch,
       s.record_topic, s.record_key, s.record_value, coalesce(s.keys, '{}'), coalesce(s.vals, '{}'), s.record_at, s.record_attributes,
       coalesce(s.first_seen, clock_timestamp()), clock_timestamp()
  from (select u.*, h.keys, h.vals
          from unnest($1::uuid[], $2::int[], $3::int[], $4::int[], $5::bigint[], $6::int[], $7::text[], $8::text[], $9::text[], $10::text[],
                      $11::uuid[], $12::smallint[], $13::int[], $14::int[], $15::int[], $16::int[], $17::text[], $18::boolean[], $19::int[],
                      $20::uuid[], $21::bigint[], $22::uuid[], $23::uuid[], $24::smallint[], $25::text[], $26::text[], $27::text[], $28::int[],
                      $29::text[], $30::bytea[], $31::bytea[], $32::timestamptz[], $33::smallint[], $34::timestamptz[]) with ordinality
               as u (id, queue, topic, partition, "offset", round, reason, class, message, stack,
                     cause, cause_version, starts, attempts, crashes, interrupted, why, holds_key, replay_count,
                     order_key, order_pos, claim, fingerprint, fingerprint_version, tenant, operation, shown, leader_epoch,
                     record_topic, record_key, record_value, record_at, record_attributes, first_seen, n)
          left join (select h.n, array_agg(h.k order by h.i) as keys, array_agg(h.v order by h.i) as vals
                       from unnest($35::int[], $36::bytea[], $37::bytea[]) with ordinality as h (n, k, v, i)
                      group by h.n) h on h.n = u.n
         order by u.n) s
    on conflict do nothing
returning id, order_pos, died_at, round`

// holdSQL gives the order keys of letters that hold them a row that is never
// ready, behind the letters' own statements.
const holdSQL = `select claimq.keep_keys($1, $2)`

// Put queues the statements that store letters: a first death as a row, the death
// of a letter that is replayed as that row's next round. When they have run, each
// letter has its OrderPos and DiedAt, or Known when this death was written
// already. They have statements planned as they are run
// for the rest of the transaction.
//
// ID, Round, Cause and CauseVersion are set at once, so Feed can be called before
// the batch is sent. A letter with HoldsKey blocks its order key in the same
// statements; delayq.Finish may come before or after them.
func (s *Store) Put(b *pgx.Batch, letters []*Letter) {
	if len(letters) == 0 {
		return
	}
	var a putArrays
	held := map[int32][]uuid.UUID{}
	for _, letter := range letters {
		letter.prepare()
		a.append(letter)
		if letter.HoldsKey {
			held[letter.Queue] = append(held[letter.Queue], letter.orderKey())
		}
	}
	written := make(map[uuid.UUID]placed, len(letters))
	collect := func(rows pgx.Rows) error {
		var id uuid.UUID
		var at placed
		_, err := pgx.ForEachRow(rows, []any{&id, &at.pos, &at.died, &at.round}, func() error {
			written[id] = at
			return nil
		})
		if err != nil {
			return fmt.Errorf("store %d dead letters: %w", len(letters), err)
		}
		return nil
	}
	b.Queue(protectPlans)
	b.Queue(s.sql.again, a.deathArgs()...).Query(collect)
	b.Queue(s.sql.put, a.letterArgs()...).Query(func(rows pgx.Rows) error {
		if err := collect(rows); err != nil {
			return err
		}
		for _, letter := range letters {
			at, ok := written[letter.ID]
			delete(written, letter.ID) // a second letter with this id is the first one's repeat
			if letter.Known = !ok; ok {
				letter.OrderPos, letter.DiedAt, letter.Round = at.pos, at.died, at.round
			}
		}
		return nil
	})
	for queue, keys := range held {
		slices.SortFunc(keys, compareKeys)
		b.Queue(s.sql.hold, queue, slices.Compact(keys))
	}
}

// prepare sets what Put decides by itself.
func (l *Letter) prepare() {
	if l.ID == uuid.Nil {
		if l.ID = uuid.New(); l.Source != nil {
			l.ID = SourceID(l.Queue, *l.Source)
		}
	}
	if l.Round == 0 {
		l.Round = l.ReplayCount + 1
	}
	l.State = Dead
	l.Cause, _, l.CauseVersion = Cause(l.QueueName, string(l.Reason), l.ErrorClass, l.ErrorMessage)
}

// orderKey is the key that the letter is stored under: its own id when nothing is
// ordered.
func (l *Letter) orderKey() uuid.UUID {
	if l.OrderKey == uuid.Nil {
		return l.ID
	}
	return l.OrderKey
}

// placed is what the database chose for a letter.
type placed struct {
	pos   int64
	died  time.Time
	round int
}

// putArrays is the letters' columns side by side.
type putArrays struct {
	ids                                    []uuid.UUID
	queues                                 []int32
	topics, partitions                     []pgtype.Int4
	offsets                                []pgtype.Int8
	rounds                                 []int32
	reasons, classes, messages             []string
	stacks                                 []pgtype.Text
	causes                                 []uuid.UUID
	causeVersions                          []int16
	starts, attempts, crashes, interrupted []int32
	interruptedWhy                         []pgtype.Text
	holds                                  []bool
	replayCounts                           []int32
	orderKeys                              []uuid.UUID
	positions                              []pgtype.Int8
	claims, fingerprints                   []pgtype.UUID
	fingerprintVersions                    []int16
	tenants, operations, showns            []pgtype.Text
	leaderEpochs                           []int32
	records                                rowrecord.Arrays
	firstSeens                             []pgtype.Timestamptz
}

func (a *putArrays) append(l *Letter) {
	a.ids = append(a.ids, l.ID)
	a.queues = append(a.queues, l.Queue)
	a.appendSource(l)
	a.rounds = append(a.rounds, count(l.Round))
	a.reasons = append(a.reasons, pgtext.Storable(string(l.Reason), maxClass))
	a.classes = append(a.classes, pgtext.Storable(l.ErrorClass, maxClass))
	a.messages = append(a.messages, pgtext.Storable(l.ErrorMessage, maxMessage))
	a.stacks = append(a.stacks, text(l.Stack, maxStack))
	a.causes = append(a.causes, l.Cause)
	a.causeVersions = append(a.causeVersions, l.CauseVersion)
	a.starts = append(a.starts, count(l.Starts))
	a.attempts = append(a.attempts, count(l.Attempts))
	a.crashes = append(a.crashes, count(l.Crashes))
	a.interrupted = append(a.interrupted, count(l.Interrupted))
	a.interruptedWhy = append(a.interruptedWhy, text(l.InterruptedWhy, maxClass))
	a.holds = append(a.holds, l.HoldsKey)
	a.replayCounts = append(a.replayCounts, count(l.ReplayCount))
	a.orderKeys = append(a.orderKeys, l.orderKey())
	a.positions = append(a.positions, pgtype.Int8{Int64: l.OrderPos, Valid: l.OrderPos != 0})
	a.claims = append(a.claims, pgtype.UUID{Bytes: l.Claim.UUID, Valid: l.Claim.Valid})
	a.fingerprints = append(a.fingerprints, pgtype.UUID{Bytes: l.Fingerprint, Valid: l.FingerprintVersion != 0})
	a.fingerprintVersions = append(a.fingerprintVersions, l.FingerprintVersion)
	a.tenants = append(a.tenants, optional(l.Tenant))
	a.operations = append(a.operations, optional(l.Operation))
	a.showns = append(a.showns, text(l.Shown, maxMessage))
	a.records.Append(l.Record)
	a.firstSeens = append(a.firstSeens, pgtype.Timestamptz{Time: l.FirstSeen, Valid: !l.FirstSeen.IsZero()})
}

func (a *putArrays) appendSource(l *Letter) {
	source, from := Source{LeaderEpoch: l.Record.LeaderEpoch}, l.Source != nil
	if from {
		source = *l.Source
	}
	a.topics = append(a.topics, pgtype.Int4{Int32: source.Topic, Valid: from})
	a.partitions = append(a.partitions, pgtype.Int4{Int32: source.Partition, Valid: from})
	a.offsets = append(a.offsets, pgtype.Int8{Int64: source.Offset, Valid: from})
	a.leaderEpochs = append(a.leaderEpochs, source.LeaderEpoch)
}

// deathArgs are againSQL's, in its order, and the first of putSQL's.
func (a *putArrays) deathArgs() []any {
	return []any{
		a.ids, a.queues, a.topics, a.partitions, a.offsets, a.rounds, a.reasons, a.classes, a.messages, a.stacks,
		a.causes, a.causeVersions, a.starts, a.attempts, a.crashes, a.interrupted, a.interruptedWhy, a.holds, a.replayCounts,
	}
}

// letterArgs are putSQL's, in its order.
func (a *putArrays) letterArgs() []any {
	r := &a.records
	return append(a.deathArgs(),
		a.orderKeys, a.positions, a.claims, a.fingerprints, a.fingerprintVersions, a.tenants, a.operations, a.showns, a.leaderEpochs,
		r.Topics, r.Keys, r.Values, r.Ats, r.Attributes, a.firstSeens,
		r.HeaderOf, r.HeaderKeys, r.HeaderValues)
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
