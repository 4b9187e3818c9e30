package dedup

import (
	"strconv"
	"strings"

	"github.com/claimq/claimq/internal/pgschema"
)

// ringSize is the number of segments in the ring of claims.
const ringSize = 4

// Keeps: an id is claimed by at most one committed transaction. ON CONFLICT waits
// for a transaction that holds the id and has not ended, so no SELECT decides. The
// arrays come sorted by id. Ids that an older segment remembers are left out.
// Only claimers of the phase before this one can still insert there, and only those
// of a roll's middle phase do: they insert into SLOT too, so that the constraint
// decides about what this statement's snapshot does not have yet.
//
// The leaf is named, not the partitioned parent: tuple routing would lock and
// check every leaf for every statement.
const (
	sqlInsert = `
insert into claimq.claims_SLOT ("offset", record_at, queue, topic, partition, segment, fingerprint_version, id, fingerprint, shown)
select nullif(u.at_offset, -1), u.record_at, u.queue, nullif(u.topic, -1), nullif(u.partition, -1), SLOT, u.version, u.id, u.fingerprint, nullif(u.shown, '')
  from unnest($1::uuid[], $2::int4[], $3::uuid[], $4::int2[], $5::int4[], $6::int4[], $7::int8[], $8::timestamptz[], $9::text[])
       as u (id, queue, fingerprint, version, topic, partition, at_offset, record_at, shown)
    on conflict (id) do nothing
returning id`

	sqlInsertOlder1 = `
insert into claimq.claims_SLOT ("offset", record_at, queue, topic, partition, segment, fingerprint_version, id, fingerprint, shown)
select nullif(u.at_offset, -1), u.record_at, u.queue, nullif(u.topic, -1), nullif(u.partition, -1), SLOT, u.version, u.id, u.fingerprint, nullif(u.shown, '')
  from unnest($1::uuid[], $2::int4[], $3::uuid[], $4::int2[], $5::int4[], $6::int4[], $7::int8[], $8::timestamptz[], $9::text[])
       as u (id, queue, fingerprint, version, topic, partition, at_offset, record_at, shown)
 where not exists (select from claimq.claims_OLDER1 o where o.id = u.id)
    on conflict (id) do nothing
returning id`

	sqlInsertOlder2 = `
insert into claimq.claims_SLOT ("offset", record_at, queue, topic, partition, segment, fingerprint_version, id, fingerprint, shown)
select nullif(u.at_offset, -1), u.record_at, u.queue, nullif(u.topic, -1), nullif(u.partition, -1), SLOT, u.version, u.id, u.fingerprint, nullif(u.shown, '')
  from unnest($1::uuid[], $2::int4[], $3::uuid[], $4::int2[], $5::int4[], $6::int4[], $7::int8[], $8::timestamptz[], $9::text[])
       as u (id, queue, fingerprint, version, topic, partition, at_offset, record_at, shown)
 where not exists (select from claimq.claims_OLDER1 o where o.id = u.id)
   and not exists (select from claimq.claims_OLDER2 o where o.id = u.id)
    on conflict (id) do nothing
returning id`
)

// Keeps: while a roll is under way, an id claimed in the segment that is being
// left (SLOT) stands in the next one too, with its first copy's row, before any
// claimer stops looking at SLOT as a place to insert. What it returns is claimed in
// both; an id that the caller has inserted into SLOT and that does not come back
// belongs to a claimer of the next phase, whom this statement has waited for.
const sqlCopy = `
insert into claimq.claims_NEXT ("offset", record_at, claimed_at, queue, topic, partition, segment, fingerprint_version, id, fingerprint, shown)
select c."offset", c.record_at, c.claimed_at, c.queue, c.topic, c.partition, NEXT, c.fingerprint_version, c.id, c.fingerprint, c.shown
  from claimq.claims_SLOT c
 where c.id = any ($1::uuid[])
 order by c.id
    on conflict (id) do nothing
returning id`

// Reads the first copy's row of ids that are known. A statement of its own: its
// snapshot is newer than the INSERT's, so it sees the winner that the INSERT
// waited for.
const sqlLookup = `
select id, fingerprint, fingerprint_version, topic, partition, "offset", record_at, claimed_at
  from claimq.claims_SLOT where id = any ($1::uuid[])`

// Keeps: a claim lives exactly as long as a success. Takes back ids that this same
// transaction has claimed and whose handler then failed.
const sqlUnclaim = `delete from claimq.claims_SLOT where id = any ($1::uuid[])`

// Keeps the roll apart from claimers: whoever holds the shared lock of a phase is
// waited for before the next but one phase begins.
const sqlLockPhase = `select pg_advisory_xact_lock_shared(hashtext('claimq.claims'), $1::int4)`

// Must be a statement of its own after sqlLockPhase: with lock and read in one,
// the snapshot would be older than the lock.
const sqlAssertPhase = `select claimq.assert_phase($1)`

const sqlReadPhase = `
select phase, inserts, lookups, current_setting('transaction_isolation')
  from claimq.claim_phases order by phase desc limit 1`

// The plans of a flight are protected: one made while a segment is empty would
// otherwise stay a sequential scan when it is full, since nothing tells the
// session before autovacuum has been there. The session's own settings are put
// back by the last statement of the flight.
const (
	sqlProtect = `
select set_config('claimq.planner', current_setting('enable_seqscan') || ',' || current_setting('enable_hashjoin') || ',' || current_setting('enable_mergejoin'), true),
       set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)`
	sqlUnprotect = `
select set_config('enable_seqscan', split_part(p, ',', 1), true),
       set_config('enable_hashjoin', split_part(p, ',', 2), true),
       set_config('enable_mergejoin', split_part(p, ',', 3), true)
  from current_setting('claimq.planner') as p`
)

// Keeps: a result goes to the slot of the newest phase, whose lock, or that of the
// phase before, the transaction has from its claims: what the roll waits for before
// it closes a slot. A claim that was forgotten and made again can have an older
// result in another slot: the newest is read last and counts.
const (
	sqlPutResults = `
insert into claimq.results (slot, claim, value, expires_at)
select (select p.result_slot from claimq.claim_phases p order by p.phase desc limit 1), u.claim, u.value, now() + u.lifetime
  from unnest($1::uuid[], $2::bytea[], $3::interval[]) as u (claim, value, lifetime)
    on conflict (slot, claim) do update set value = excluded.value, created_at = now(), expires_at = excluded.expires_at`
	sqlGetResults = `
select claim, value from claimq.results where claim = any ($1::uuid[]) and expires_at > now() order by created_at`
)

const (
	sqlFindQueue = `select id from claimq.queues where name = $1`
	sqlAddQueue  = `
insert into claimq.queues (name, group_name, rule) values ($1, $1, '') on conflict (name) do nothing`
)

// statements are the texts above for one schema and every slot of the ring, made
// once at construction.
type statements struct {
	insert       [ringSize]string
	insertOlder1 [ringSize][ringSize]string
	insertOlder2 [ringSize][ringSize][ringSize]string
	copyNext     [ringSize][ringSize]string
	lookup       [ringSize]string
	unclaim      [ringSize]string

	lockPhase, assertPhase, readPhase string
	putResults, getResults            string
	findQueue, addQueue               string
}

func newStatements(schema pgschema.Schema) *statements {
	s := &statements{
		// The lock's class is a string literal and not a table: it names the schema too.
		lockPhase:   strings.Replace(sqlLockPhase, "'claimq.claims'", "'"+schema.Name()+".claims'", 1),
		assertPhase: schema.SQL(sqlAssertPhase),
		readPhase:   schema.SQL(sqlReadPhase),
		putResults:  schema.SQL(sqlPutResults),
		getResults:  schema.SQL(sqlGetResults),
		findQueue:   schema.SQL(sqlFindQueue),
		addQueue:    schema.SQL(sqlAddQueue),
	}
	for a := range ringSize {
		s.insert[a] = slotted(schema, sqlInsert, "SLOT", a)
		s.lookup[a] = slotted(schema, sqlLookup, "SLOT", a)
		s.unclaim[a] = slotted(schema, sqlUnclaim, "SLOT", a)
		for b := range ringSize {
			s.copyNext[a][b] = slotted(schema, sqlCopy, "SLOT", a, "NEXT", b)
			s.insertOlder1[a][b] = slotted(schema, sqlInsertOlder1, "SLOT", a, "OLDER1", b)
			for c := range ringSize {
				s.insertOlder2[a][b][c] = slotted(schema, sqlInsertOlder2, "SLOT", a, "OLDER1", b, "OLDER2", c)
			}
		}
	}
	return s
}

// slotted fills in slot numbers: pairs of a mark and its number.
func slotted(schema pgschema.Schema, text string, marks ...any) string {
	for i := 0; i < len(marks); i += 2 {
		text = strings.ReplaceAll(text, marks[i].(string), strconv.Itoa(marks[i+1].(int))) //nolint:gosec,forcetypeassert // pairs of a string and an int
	}
	return schema.SQL(text)
}
