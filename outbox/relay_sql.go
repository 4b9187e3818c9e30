package outbox

import "github.com/claimq/claimq/internal/pgschema"

// statements are the relay's, for one schema.
type statements struct {
	schema string // as the locks' class names it

	take, open, list, fetch, fetchHeld, advance, setAside string
	heads, topicHeads, followers, sent, refused, release  string
	rotateOutbox, rotateWindows, releaseDue               string
}

func newStatements(schema string) *statements {
	sql := pgschema.Schema(schema).SQL
	return &statements{
		schema: pgschema.Schema(schema).Name(),
		take:   sql(sqlTake), open: sql(sqlOpen), list: sql(sqlList), fetch: sql(sqlFetch), fetchHeld: sql(sqlFetchHeld),
		advance: sql(sqlAdvance), setAside: sql(sqlSetAside), heads: sql(sqlHeads), topicHeads: sql(sqlTopicHeads),
		followers: sql(sqlFollowers), sent: sql(sqlSent), refused: sql(sqlRefused), release: sql(sqlRelease),
		rotateOutbox: sql(sqlRotateOutbox), rotateWindows: sql(sqlRotateWindows), releaseDue: sql(sqlReleaseDue),
	}
}

// sqlLocal bounds a relay's transaction, and keeps the plans of the statements
// below on the index: one made while a slot is empty would stay a sequential scan
// when it has filled. Timeouts are in milliseconds.
const sqlLocal = `
select set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
       set_config('statement_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $1, true)`

const sqlTake = `
select id, done::text, until::text, after, instance from claimq.relay_take($1, $2, $3, $4, $5)`

// sqlOpen reads the place of a slice. Unless a window is half done, the statement's
// own snapshot ends the new one.
const sqlOpen = `
select id, done::text, coalesce(until, pg_current_snapshot())::text, after, until is not null,
       exists (select 1 from claimq.outbox_held)
  from claimq.relay_open($1, $2, $3)`

// sqlList finds the rows of a window: those of transactions that were not yet
// visible in the snapshot done ($1) and are in the snapshot until ($2). The first
// arm holds the transactions that began since, the second those that were in
// progress at done; together they read nothing that is older, however long a
// transaction stays open. It must run in the transaction of sqlOpen, after it:
// then all that is visible in until is visible here, and rows of a transaction
// that rolled back never are.
//
// The order is that of seq over both arms. By (xid, seq) two transactions of one
// key, the later of which had drawn its xid first, would change places.
const sqlList = `
select w.slot, w.ctid, w.seq, w.bytes
  from (select o.slot, o.ctid, o.seq,
               coalesce(octet_length(o.key), 0) + coalesce(octet_length(o.value), 0) + pg_column_size(o.header_values) as bytes
          from claimq.outbox o
         where o.xid >= pg_snapshot_xmax($1::pg_snapshot) and o.xid < pg_snapshot_xmax($2::pg_snapshot)
           and pg_visible_in_snapshot(o.xid, $2::pg_snapshot)
           and o.seq > $3 and o.bucket >= $4 and o.bucket < $5
        union all
        select o.slot, o.ctid, o.seq,
               coalesce(octet_length(o.key), 0) + coalesce(octet_length(o.value), 0) + pg_column_size(o.header_values)
          from claimq.outbox o
         where o.xid = any (array(select pg_snapshot_xip($1::pg_snapshot)))
           and pg_visible_in_snapshot(o.xid, $2::pg_snapshot)
           and o.seq > $3 and o.bucket >= $4 and o.bucket < $5) w
 order by w.seq
 limit $6`

// sqlFetch reads rows by their place in each slot. Rows are never updated, so a
// place stays what it is until its slot is emptied, and no slot is while one of
// its rows is in an open window; the reader compares seq all the same, because an
// operator can rewrite a table.
const sqlFetch = `
select o.seq, o.id, o.bucket, o.ordered, o.topic, o.key, o.value, o.header_keys, o.header_values,
       o.correlation_id, o.causation_id, '' as held
  from (select * from claimq.outbox_0 where ctid = any ($1::tid[])
        union all
        select * from claimq.outbox_1 where ctid = any ($2::tid[])
        union all
        select * from claimq.outbox_2 where ctid = any ($3::tid[])) o
 order by o.seq`

// sqlFetchHeld is sqlFetch for an outbox in which rows are set aside. A row waits
// behind an earlier one of its key, or because it is set aside itself (a relay
// that begins again from the oldest row meets it a second time), or because its
// topic takes nothing. The key goes before the topic: behind the first row of a
// key that is set aside stand only rows that are marked so.
const sqlFetchHeld = `
select o.seq, o.id, o.bucket, o.ordered, o.topic, o.key, o.value, o.header_keys, o.header_values,
       o.correlation_id, o.causation_id,
       case when (select h.seq from claimq.outbox_held h where h.bucket = o.bucket and h.seq = o.seq) is not null
              or o.ordered and o.key is not null
                 and (select h.seq from claimq.outbox_held h
                       where h.key = o.key and h.ordered and h.key is not null and h.topic = o.topic limit 1) is not null
            then 'key'
            when (select h.seq from claimq.outbox_held h
                   where h.topic = o.topic and h.scope = 'topic' limit 1) is not null
            then 'topic'
            else '' end as held
  from (select * from claimq.outbox_0 where ctid = any ($1::tid[])
        union all
        select * from claimq.outbox_1 where ctid = any ($2::tid[])
        union all
        select * from claimq.outbox_2 where ctid = any ($3::tid[])) o
 order by o.seq`

const sqlAdvance = `
select claimq.relay_advance($1, $2, $3, $4, $5::pg_snapshot, $6::pg_snapshot, $7, $8)`

// sqlSetAside copies rows out of the outbox's way, in the transaction that moves
// the place beyond them. A row that is there already stays as it is. One without
// an order that was there and is not, because it was discarded meanwhile, waits
// behind nothing.
const sqlSetAside = `
insert into claimq.outbox_held (seq, bucket, ordered, id, topic, key, value, header_keys, header_values,
                                correlation_id, causation_id, created_at, scope, reason, attempts, tried_at, next_at)
select o.seq, o.bucket, o.ordered, o.id, o.topic, o.key, o.value, o.header_keys, o.header_values,
       o.correlation_id, o.causation_id, o.created_at,
       case when o.ordered and o.key is not null then t.scope else replace(t.scope, 'key', 'row') end::claimq.held_scope,
       t.reason, t.attempts, clock_timestamp(), clock_timestamp() + $7::interval
  from unnest($4::bigint[], $5::text[], $6::text[], $8::int[]) as t (seq, scope, reason, attempts)
  join (select * from claimq.outbox_0 where ctid = any ($1::tid[])
        union all
        select * from claimq.outbox_1 where ctid = any ($2::tid[])
        union all
        select * from claimq.outbox_2 where ctid = any ($3::tid[])) o on o.seq = t.seq
    on conflict (bucket, seq) do nothing`

// sqlHeads finds the rows of a slice that were refused and are due. Rows behind
// them are not in the index that this walks. Due is told by the transaction's
// clock, because the index cannot be searched by one that moves.
const sqlHeads = `
select seq, id, bucket, ordered, topic, key, value, header_keys, header_values,
       correlation_id, causation_id, '' as held, attempts, scope::text
  from claimq.outbox_held
 where scope = 'row' and next_at <= now() and bucket >= $1 and bucket < $2
 order by next_at
 limit $3`

// sqlTopicHeads finds rows of topics that took nothing, the oldest first: one of
// each topic whose oldest is due, as a probe. Given a topic in $3 it finds that
// topic's next rows, due or not, for the relay that has just seen the probe pass.
const sqlTopicHeads = `
select h.seq, h.id, h.bucket, h.ordered, h.topic, h.key, h.value, h.header_keys, h.header_values,
       h.correlation_id, h.causation_id, '' as held, h.attempts, h.scope::text
  from (select $3::text as topic where $3::text is not null
        union all
        (with recursive topics as (
             (select topic from claimq.outbox_held where scope = 'topic' and $3::text is null order by topic limit 1)
             union all
             select (select n.topic from claimq.outbox_held n
                      where n.scope = 'topic' and n.topic > t.topic order by n.topic limit 1)
               from topics t where t.topic is not null)
         select topic from topics where topic is not null)) t
 cross join lateral (
       select * from claimq.outbox_held o
        where o.topic = t.topic and o.scope = 'topic' and o.bucket >= $1 and o.bucket < $2
        order by o.seq
        limit $4) h
 where $3::text is not null or h.next_at <= now()`

// sqlFollowers finds the rows behind one that was set aside, in order.
const sqlFollowers = `
select seq, id, bucket, ordered, topic, key, value, header_keys, header_values,
       correlation_id, causation_id, '' as held, attempts, scope::text
  from claimq.outbox_held
 where key = $1 and ordered and key is not null and topic = $2 and seq > $3
 order by seq
 limit $4`

// sqlSent forgets rows that are out.
const sqlSent = `
delete from claimq.outbox_held h
 using unnest($1::int2[], $2::bigint[]) as t (bucket, seq)
 where h.bucket = t.bucket and h.seq = t.seq`

// sqlRefused notes an attempt that failed, and when the next one is due.
const sqlRefused = `
update claimq.outbox_held h
   set scope = t.scope::claimq.held_scope, reason = t.reason, attempts = t.attempts,
       tried_at = clock_timestamp(), next_at = clock_timestamp() + t.delay
  from unnest($1::int2[], $2::bigint[], $3::text[], $4::text[], $5::int[], $6::interval[])
       as t (bucket, seq, scope, reason, attempts, delay)
 where h.bucket = t.bucket and h.seq = t.seq`

const sqlRotateOutbox = `select claimq.rotate_outbox()`

const sqlRotateWindows = `select claimq.rotate_relay_windows()`
