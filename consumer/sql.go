package consumer

import (
	"strings"

	"github.com/claimq/claimq/internal/pgschema"
)

// Set for the transaction and no longer, so that a pooler can hand the session to
// anybody afterwards. Every worker that is lost holds its ids for at most the idle
// timeout. The planner's settings protect the first flight's plans and are put
// back by its last statement, before a handler sees the transaction.
const sqlSettings = `
select set_config('lock_timeout', $1, true),
       set_config('statement_timeout', $2, true),
       set_config('idle_in_transaction_session_timeout', $2, true),
       set_config('synchronous_commit', case when current_setting('synchronous_commit') = 'off' then 'on' else current_setting('synchronous_commit') end, true),
       set_config('enable_seqscan', 'off', true),
       set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true)`

// The same for the short transactions in which a worker takes partitions over, begins
// topics and flushes positions.
const sqlOwnSettings = `
select set_config('lock_timeout', $1, true),
       set_config('statement_timeout', $1, true),
       set_config('idle_in_transaction_session_timeout', $2, true),
       set_config('synchronous_commit', case when current_setting('synchronous_commit') = 'off' then 'on' else current_setting('synchronous_commit') end, true)`

const sqlPlannerBack = `
select set_config('enable_seqscan', $1, true),
       set_config('enable_hashjoin', $2, true),
       set_config('enable_mergejoin', $3, true)`

const sqlPlanner = `
select current_setting('enable_seqscan'), current_setting('enable_hashjoin'), current_setting('enable_mergejoin'),
       current_setting('synchronous_commit')`

// Which history of which server this is. The timeline in it is the one being
// written, which changes at the instant of a promotion; the control file's lags until
// the next checkpoint. A standby refuses the question, as it should.
const sqlIncarnation = `
select claimq.incarnation(), claimq.position_slot(clock_timestamp())`

// Keeps: nothing that a worker remembers is trusted over the database. The newest
// row whose COMMIT was acknowledged must be there.
const sqlPositionExists = `
select exists (select from claimq.positions_SLOT where slot = SLOT and id = $1)`

// Keeps: a COMMIT whose reply was lost is settled by an INSERT and not by a SELECT.
// It waits for whatever the old session still does with its row; if that commits,
// nothing is inserted and the batch is known to be done; if not, the id is taken
// and the old session can never commit it.
const sqlSettle = `
insert into claimq.positions_SLOT (slot, id, queue, topics, partitions, epochs, offsets, leader_epochs)
values (SLOT, $1, $2, '{}', '{}', '{}', '{}', '{}')
    on conflict (slot, id) do nothing
returning id`

const sqlPutPosition = `
insert into claimq.positions_SLOT (slot, id, queue, topics, partitions, epochs, offsets, leader_epochs)
values (SLOT, $1, $2, $3, $4, $5, $6, $7)`

// What is known of a batch's records, in one statement: sources that are delayed
// or dead already (kinds 1 and 2), ids that wait in the delay queue (3) or have an
// open dead letter (4), order keys that something waits for (5). It runs after the
// claims, so that a message which another transaction was just finishing is seen
// as that one left it. The EXISTS make the last three cost nothing while the queue
// has nothing waiting and nothing dead. OFFSET 0 keeps the planner from turning the
// first two round: a plan made while nothing waits would read all of a queue's
// items for every batch, for as long as the connection lives.
const sqlKnown = `
select 1, d.topic, d.partition, d."offset", null::uuid, null::uuid, 0::smallint, null::uuid
  from unnest($2::int4[], $3::int4[], $4::int8[], $5::int8[]) as u (topic, partition, low, high)
 cross join lateral (
       select d.topic, d.partition, d."offset" from claimq.delayed d
        where d.queue = $1 and d.topic = u.topic and d.partition = u.partition and d."offset" between u.low and u.high
       offset 0) d
union all
select 2, l.topic, l.partition, l."offset", null, null, 0::smallint, null
  from unnest($2::int4[], $3::int4[], $4::int8[], $5::int8[]) as u (topic, partition, low, high)
 cross join lateral (
       select l.topic, l.partition, l."offset" from claimq.dead_letters l
        where l.queue = $1 and l.topic = u.topic and l.partition = u.partition and l."offset" between u.low and u.high
       offset 0) l
union all
select 3, null, null, null, d.claim, d.fingerprint, d.fingerprint_version, null
  from claimq.delayed d
 where d.claim = any ($6::uuid[])
   and exists (select from claimq.delayed_keys k where k.queue = $1)
union all
select 4, null, null, null, l.claim, l.fingerprint, l.fingerprint_version, l.id
  from claimq.dead_letters l
 where l.claim = any ($6::uuid[]) and l.state in ('dead', 'replaying')
   and exists (select from claimq.dead_letters o where o.queue = $1 and o.state in ('dead', 'replaying'))
union all
select 5, null, null, null, k.order_key, null, 0::smallint, null
  from claimq.delayed_keys k
 where k.queue = $1 and k.order_key = any ($7::uuid[])
   and exists (select from claimq.delayed_keys e where e.queue = $1)`

// Keeps: whoever takes a partition over waits for batches that stand between their
// fence and their COMMIT, and for nobody else.
const sqlFenceLock = `select pg_advisory_xact_lock_shared(hashtext('claimq'), $1::int4)`

// Must be a statement of its own after sqlFenceLock.
const sqlAssertOwner = `select claimq.assert_owner($1, $2, $3, $4)`

const sqlCheckConstraints = `set constraints all immediate`

const (
	sqlTakeOwnership = `select topic, partition, epoch, next_offset, leader_epoch from claimq.take_ownership($1, $2, $3, $4, $5)`
	sqlPositionsOf   = `select topic, partition, epoch, next_offset from claimq.positions_of($1)`
	sqlTopicNumber   = `
with added as (
    insert into claimq.topics (topic_id, name) values ($1, $2) on conflict (topic_id) do nothing returning id)
select id from added union all select id from claimq.topics where topic_id = $1 limit 1`
	sqlOwnersOf        = `select topic, partition, token from claimq.owners where queue = $1`
	sqlTopicID         = `select topic_id from claimq.topics where id = $1`
	sqlRotatePositions = `select claimq.rotate_positions()`
)

// Keeps: a topic of a queue is started once, for all its partitions at the same
// time, by whoever comes first; so `latest` means one moment for all of them, and
// a partition that appears later is told from one that never had a position.
const (
	sqlStartLock   = `select pg_advisory_xact_lock(hashtext('claimq'), $1::int4)`
	sqlStartTopic  = `insert into claimq.queue_topics (queue, topic) values ($1, $2) on conflict (queue, topic) do nothing returning topic`
	sqlTopicsBegun = `
select t.id, t.name, t.topic_id,
       exists (select from claimq.positions_of($1) p where p.topic = t.id)
  from claimq.queue_topics q join claimq.topics t on t.id = q.topic where q.queue = $1`
)

const (
	sqlRegister = `
insert into claimq.queues (name, group_name, rule, config, owner_team, owner_contact, retention)
values ($1, $2, $3, $4, $5, $6, $7) on conflict (name) do nothing`
	sqlRegistered = `select id, group_name, rule from claimq.queues where name = $1`
	sqlReregister = `
update claimq.queues set rule = $2, config = $3, owner_team = $4, owner_contact = $5, retention = $6, group_name = $7, changed_at = now()
 where id = $1 and (rule, config, owner_team, owner_contact, retention, group_name) is distinct from ($2, $3, $4, $5, $6, $7)`
	sqlHeartbeat = `
insert into claimq.workers (instance, queues, host, version, stats) values ($1, $2, $3, $4, $5)
    on conflict (instance) do update set seen_at = clock_timestamp(), stats = excluded.stats`
	sqlForgetWorkers = `delete from claimq.workers where seen_at < now() - interval '1 day'`
	sqlWorkerGone    = `delete from claimq.workers where instance = $1`
)

// How far each queue's stream has been handled, for queues that are behind. Keeps:
// nothing is forgotten that a backlog can still repeat, whoever's backlog it is. A
// worker tells in its heartbeat where its partitions stand; a queue that nobody runs
// stands where its newest batch was. Bounded, so that a queue which was given up does
// not hold the others' claims for ever.
const sqlStreamTimes = `
select q.id, greatest(t.stands_at, now() - interval '60 days')
  from claimq.queues q
 cross join lateral (
       select count(*) as running, min((w.stats -> q.name ->> 'stands_at')::timestamptz) as stands_at
         from claimq.workers w
        where q.name = any (w.queues) and w.seen_at > now() - interval '1 minute') w
 cross join lateral (
       select case when w.running > 0 then w.stands_at
                   else (select max(p.written_at) from claimq.positions_of(q.id) p) end as stands_at) t
 where t.stands_at is not null`

// statements are the texts above for one schema.
type statements struct {
	incarnation, known, fenceLock, assertOwner          string
	takeOwnership, positionsOf, topicNumber, topicID    string
	ownersOf                                            string
	rotatePositions, startLock, startTopic, topicsBegun string
	register, registered, reregister                    string
	heartbeat, forgetWorkers, workerGone, streamTimes   string
	positionExists, settle, putPosition                 [positionSlots]string
}

// positionSlots is the number of leaves of claimq.positions. Statements name the
// leaf, so that a batch takes no lock on the one that is being emptied.
const positionSlots = 3

func newStatements(schema pgschema.Schema) *statements {
	lock := func(text string) string {
		return strings.Replace(text, "'claimq'", "'"+schema.Name()+"'", 1)
	}
	s := &statements{
		incarnation: schema.SQL(sqlIncarnation), known: schema.SQL(sqlKnown),
		fenceLock: lock(sqlFenceLock), assertOwner: schema.SQL(sqlAssertOwner),
		takeOwnership: schema.SQL(sqlTakeOwnership), positionsOf: schema.SQL(sqlPositionsOf),
		ownersOf: schema.SQL(sqlOwnersOf), topicNumber: schema.SQL(sqlTopicNumber), topicID: schema.SQL(sqlTopicID), rotatePositions: schema.SQL(sqlRotatePositions),
		startLock: lock(sqlStartLock), startTopic: schema.SQL(sqlStartTopic), topicsBegun: schema.SQL(sqlTopicsBegun),
		register: schema.SQL(sqlRegister), registered: schema.SQL(sqlRegistered), reregister: schema.SQL(sqlReregister),
		heartbeat: schema.SQL(sqlHeartbeat), forgetWorkers: schema.SQL(sqlForgetWorkers), workerGone: schema.SQL(sqlWorkerGone), streamTimes: schema.SQL(sqlStreamTimes),
	}
	for slot, digit := range [positionSlots]string{"0", "1", "2"} {
		s.positionExists[slot] = schema.SQL(strings.ReplaceAll(sqlPositionExists, "SLOT", digit))
		s.settle[slot] = schema.SQL(strings.ReplaceAll(sqlSettle, "SLOT", digit))
		s.putPosition[slot] = schema.SQL(strings.ReplaceAll(sqlPutPosition, "SLOT", digit))
	}
	return s
}
