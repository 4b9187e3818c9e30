package dedup

import (
	"strings"

	"github.com/claimq/claimq/internal/pgschema"
)

// Keeps: one roller at a time, for one step. The lock is the transaction's, so it
// works through a pooler and goes with a roller that dies. What the step waits for
// is bounded here too.
const sqlRollBegin = `
select set_config('lock_timeout', '50ms', true),
       set_config('idle_in_transaction_session_timeout', '60s', true),
       pg_try_advisory_xact_lock(hashtext('claimq.claims'), -1)`

// Reads all that a step decides by: the phase in force, whether claimers of another
// one are still there, which segments and result slots are closed, which leaves hold
// anything, and what is due by age.
//
// The phase comes from the statement's snapshot and the locks from after it: a
// claimer whose check saw an older phase as the newest took its lock before that,
// and it is in pg_locks until its rows are visible. One that takes the lock of an
// older phase later is told to begin again. (-1 is the rollers' own lock.)
const sqlRollState = `
select p.phase, p.inserts, p.lookups, p.result_slot,
       exists (
           select from pg_locks l
            where l.locktype = 'advisory' and l.objsubid = 2
              and l.database = (select d.oid from pg_database d where d.datname = current_database())
              and l.classid = (hashtext('claimq.claims')::bigint & 4294967295)::oid
              and l.objid not in ((p.phase & 2147483647)::oid, 4294967295::oid)) as held,
       array_remove(array[
           case when pg_relation_size('claimq.claims_0'::regclass) > 0 then 0::int2 end,
           case when pg_relation_size('claimq.claims_1'::regclass) > 0 then 1::int2 end,
           case when pg_relation_size('claimq.claims_2'::regclass) > 0 then 2::int2 end,
           case when pg_relation_size('claimq.claims_3'::regclass) > 0 then 3::int2 end], null) as filled,
       (select coalesce(array_agg(c.segment), '{}') from claimq.claim_segments c where c.closed is not null) as closed,
       coalesce(now() >= s.current_since + age.retention / 2, true) as due,
       array_remove(array[
           case when pg_relation_size('claimq.results_0'::regclass) > 0 then 0::int2 end,
           case when pg_relation_size('claimq.results_1'::regclass) > 0 then 1::int2 end,
           case when pg_relation_size('claimq.results_2'::regclass) > 0 then 2::int2 end], null) as results_filled,
       (select coalesce(array_agg(r.slot), '{}') from claimq.result_slots r where r.closed is not null) as results_closed,
       (select coalesce(array_agg(r.slot), '{}') from claimq.result_slots r
         where r.closed is not null and coalesce(r.newest_expiry <= now(), true)) as results_expired,
       coalesce(now() >= w.opened + coalesce(
           (select max(r.longest) from claimq.result_slots r where r.closed is not null), age.retention) / 2, true) as results_due
  from (select phase, inserts, lookups, result_slot from claimq.claim_phases order by phase desc limit 1) p
  join claimq.claim_segments s on s.segment = p.inserts[1]
  join claimq.result_slots w on w.slot = p.result_slot
 cross join (select coalesce(max(q.retention) filter (where q.config->>'claims' is distinct from 'none'), interval '8 days') as retention
               from claimq.queues q) age`

// The same test of claimers that are still there, for waiting from outside: no
// transaction of the roller's own is open meanwhile.
const sqlRollHeld = `
select exists (
    select from pg_locks l
     where l.locktype = 'advisory' and l.objsubid = 2
       and l.database = (select d.oid from pg_database d where d.datname = current_database())
       and l.classid = (hashtext('claimq.claims')::bigint & 4294967295)::oid
       and l.objid not in (($1::bigint & 2147483647)::oid, 4294967295::oid))`

// Keeps: a phase follows the one before it. The number is the key: of two rollers
// that could ever both be here, one fails.
const sqlRollPhase = `
insert into claimq.claim_phases (phase, inserts, lookups, result_slot) values ($1, $2, $3, $4)`

// Keeps "complete since" of the segment that is now the only one inserted into: the
// last claimer that did not write it has gone.
const sqlRollOpened = `
update claimq.claim_segments set opened = clock_timestamp(), current_since = clock_timestamp(), closed = null where segment = $1`

// Keeps the clocks of a segment that nobody inserts into any more, for as long as it
// stands: what decides when it may be forgotten.
const sqlRollClocks = `
insert into claimq.claim_segment_clocks (segment, queue, claims, newest_record, newest_claim)
select SLOT, c.queue, count(*), max(c.record_at), max(c.claimed_at)
  from claimq.claims_SLOT c
 group by c.queue
    on conflict (segment, queue) do update
   set claims = excluded.claims, newest_record = excluded.newest_record, newest_claim = excluded.newest_claim`

const sqlRollClosed = `update claimq.claim_segments set closed = clock_timestamp() where segment = $1`

// Keeps: a claim has expired only when both clocks say so, against its queue's
// retention of today, and its queue's stream has gone by too: the time where a
// partition with lag stands ($2, $3) takes the place of now, but lies at most $4
// back. A record's clock that is ahead of the database's counts up to one retention.
// A queue that nobody has registered keeps its claims as long as any other.
const sqlRollExpired = `
select not exists (
    select from claimq.claim_segment_clocks k
     cross join (select coalesce(max(q.retention), interval '8 days') as longest from claimq.queues q) d
      left join claimq.queues q on q.id = k.queue
      left join unnest($2::int4[], $3::timestamptz[]) as s (queue, stands_at) on s.queue = k.queue
     cross join lateral (select coalesce(q.retention, d.longest) as retention) r
     where k.segment = $1
       and (k.newest_claim + r.retention > now()
            or least(k.newest_record, k.newest_claim + r.retention) + r.retention
               > greatest(least(now(), s.stands_at), now() - $4::interval)))`

// Keeps the claims that an open delayed item or dead letter refers to, when the
// segment that they lie in is forgotten: they get into the current one, with both
// their clocks. An id that is there already is a newer claim of the same id.
const sqlRollCarry = `
insert into claimq.claims_NEXT ("offset", record_at, claimed_at, queue, topic, partition, segment, fingerprint_version, id, fingerprint, shown)
select c."offset", c.record_at, c.claimed_at, c.queue, c.topic, c.partition, NEXT, c.fingerprint_version, c.id, c.fingerprint, c.shown
  from claimq.claims_SLOT c
 where c.id in (select d.claim from claimq.delayed d where d.claim is not null
                union
                select l.claim from claimq.dead_letters l where l.claim is not null and l.state in ('dead', 'replaying'))
 order by c.id
    on conflict (id) do nothing`

// Keeps "complete since" when the oldest segment ($1) leaves the phase: the next one
// ($2) is complete since the newest claim that goes, or since the oldest was opened
// when that was empty. Run in the transaction of the phase that drops it.
const sqlRollForgotten = `
update claimq.claim_segments n
   set opened = least(n.opened, coalesce(
           (select max(k.newest_claim) from claimq.claim_segment_clocks k where k.segment = $1),
           (select o.opened from claimq.claim_segments o where o.segment = $1)))
 where n.segment = $2`

// Keeps: only a leaf that nobody can insert into or look into is emptied. The lock
// comes first and waits at most 50 ms; what it protects against is whoever does not
// go by phases: a dump, a person, a foreign writer.
const sqlRollLock = `lock table only claimq.claims_SLOT in access exclusive mode`

// The check under that lock, in a statement and so a snapshot of its own.
const sqlRollUnused = `
select $1::int2 <> all (inserts || lookups) from claimq.claim_phases order by phase desc limit 1`

const sqlRollTruncate = `truncate only claimq.claims_SLOT`

const (
	sqlRollReset       = `update claimq.claim_segments set opened = null, current_since = null, closed = null where segment = $1`
	sqlRollResetClocks = `delete from claimq.claim_segment_clocks where segment = $1`
)

// rollStatements are the texts above for one schema and every slot of the ring.
type rollStatements struct {
	begin, state, held, phase, opened, closed, expired string
	forgotten, unused, reset, resetClocks              string
	resultsReset, resultsOpened, resultsUnused         string
	clocks, lock, truncate                             [ringSize]string
	carry                                              [ringSize][ringSize]string
	resultsClocks, resultsLock, resultsTruncate        [resultSlots]string
}

func newRollStatements(schema pgschema.Schema) *rollStatements {
	// The locks' class is a string literal and not a table: it names the schema too.
	locks := func(text string) string {
		return schema.SQL(strings.ReplaceAll(text, "'claimq.claims'", "'"+schema.Name()+".claims'"))
	}
	s := &rollStatements{
		begin: locks(sqlRollBegin), state: locks(sqlRollState), held: locks(sqlRollHeld),
		phase: schema.SQL(sqlRollPhase), opened: schema.SQL(sqlRollOpened), closed: schema.SQL(sqlRollClosed),
		expired: schema.SQL(sqlRollExpired), forgotten: schema.SQL(sqlRollForgotten),
		unused: schema.SQL(sqlRollUnused), reset: schema.SQL(sqlRollReset), resetClocks: schema.SQL(sqlRollResetClocks),
		resultsReset: schema.SQL(sqlRollResultsReset), resultsOpened: schema.SQL(sqlRollResultsOpened),
		resultsUnused: schema.SQL(sqlRollResultsUnused),
	}
	for a := range ringSize {
		s.clocks[a] = slotted(schema, sqlRollClocks, "SLOT", a)
		s.lock[a] = slotted(schema, sqlRollLock, "SLOT", a)
		s.truncate[a] = slotted(schema, sqlRollTruncate, "SLOT", a)
		for b := range ringSize {
			s.carry[a][b] = slotted(schema, sqlRollCarry, "SLOT", a, "NEXT", b)
		}
	}
	for a := range resultSlots {
		s.resultsClocks[a] = slotted(schema, sqlRollResultsClocks, "SLOT", a)
		s.resultsLock[a] = slotted(schema, sqlRollResultsLock, "SLOT", a)
		s.resultsTruncate[a] = slotted(schema, sqlRollResultsTruncate, "SLOT", a)
	}
	return s
}
