-- The outbox: records that are to be published once their transaction has
-- committed, the place that each relay has reached, and the rows set aside.

-- Drawn one by one: a cache would hand a later transaction a smaller number, and
-- the number is what puts two serialised transactions of one key in their order.
create sequence {{.schema}}.outbox_seq cache 1;

-- The slot that rows written now go to: two minutes each, three in turn. Any
-- slot is right for any row; the relay reads all of them. Stable and in floating
-- point, so that the planner can inline it: as a call it costs as much as the row.
create function {{.schema}}.outbox_slot(at timestamptz) returns smallint
    language sql stable parallel safe
    return ((date_part('epoch', at))::bigint / 120 % 3)::smallint;

-- The bucket of a row: rows of one key share one, rows without a key are spread
-- by their id. The Go twin is outbox.bucketOf.
create function {{.schema}}.outbox_bucket(key bytea, id uuid) returns smallint
    language sql immutable parallel safe
    return (get_byte(sha256(coalesce(key, uuid_send(id))), 0) % 64)::smallint;

-- Insert-only: a row is never updated and never deleted; a slot is emptied by
-- TRUNCATE when all of it is out. Any program may insert here: what it must state
-- is bucket, id, topic, key and value. The columns fit Debezium's outbox event
-- router (event id = id, key = key, payload = value, routed by topic;
-- correlation_id and causation_id as additional headers).
create table {{.schema}}.outbox (
    seq           bigint not null default nextval('{{.schema}}.outbox_seq'),
    xid           xid8 not null default pg_current_xact_id(), -- the top-level transaction, also inside a savepoint
    created_at    timestamptz not null default now(),
    slot          smallint not null default {{.schema}}.outbox_slot(clock_timestamp()),
    bucket        smallint not null,
    ordered       boolean not null default true, -- false: no order among the rows of its key
    id            uuid not null,
    topic         text not null,
    key           bytea,
    value         bytea,
    header_keys   bytea[] not null default '{}',
    header_values bytea[] not null default '{}',
    -- Two headers that most rows have, as columns: an array costs as much as the
    -- rest of the row. Null: no such header. Bytes, because they come from records.
    correlation_id bytea,
    causation_id  bytea,
    constraint outbox_row_is_whole check (
        bucket between 0 and 63 and topic <> '' and cardinality(header_keys) = cardinality(header_values))
) partition by list (slot);

-- No primary key: a row is found by its transaction only, and each further index
-- costs a quarter of the insert. Nothing here is ever vacuumed for its own sake.
create table {{.schema}}.outbox_0 partition of {{.schema}}.outbox for values in (0)
    with (autovacuum_freeze_min_age = 0, autovacuum_vacuum_insert_threshold = -1);
create table {{.schema}}.outbox_1 partition of {{.schema}}.outbox for values in (1)
    with (autovacuum_freeze_min_age = 0, autovacuum_vacuum_insert_threshold = -1);
create table {{.schema}}.outbox_2 partition of {{.schema}}.outbox for values in (2)
    with (autovacuum_freeze_min_age = 0, autovacuum_vacuum_insert_threshold = -1);
create index outbox_xid on {{.schema}}.outbox (xid);

-- Rows that could not be sent, and the rows of the same key behind them. Small
-- when all is well, and the one place of the outbox that is updated.
create type {{.schema}}.held_scope as enum (
    'row',    -- this row was refused
    'topic',  -- the topic refuses everything: it is missing, or may not be written
    'key');   -- an earlier row of the same topic and key is held

create table {{.schema}}.outbox_held (
    seq           bigint not null,
    bucket        smallint not null,
    ordered       boolean not null,
    id            uuid not null,
    topic         text not null,
    key           bytea,
    value         bytea,
    header_keys   bytea[] not null,
    header_values bytea[] not null,
    correlation_id bytea,
    causation_id  bytea,
    created_at    timestamptz not null,
    scope         {{.schema}}.held_scope not null,
    reason        text not null check (reason <> ''),
    attempts      int not null default 0 check (attempts >= 0),
    held_at       timestamptz not null default clock_timestamp(),
    tried_at      timestamptz,
    next_at       timestamptz not null default clock_timestamp(),
    -- Not by seq alone: an index in that order would tempt the planner to walk it
    -- for the first row of a topic.
    primary key (bucket, seq),
    constraint outbox_held_headers_align check (cardinality(header_keys) = cardinality(header_values))
);
-- A hash index takes keys of any length.
create index outbox_held_key on {{.schema}}.outbox_held using hash (key) where ordered and key is not null;
create index outbox_held_topic on {{.schema}}.outbox_held (topic, seq) where scope = 'topic';
create index outbox_held_due on {{.schema}}.outbox_held (next_at) where scope = 'row';

-- Which history of which server this is. A failover changes the timeline, a
-- restored dump the system identifier; a relay's place means nothing in another.
create function {{.schema}}.incarnation() returns text
    language sql volatile
    return (select system_identifier from pg_control_system())::text
        || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8);

create sequence {{.schema}}.relay_windows_id cache 1;

-- Where each slice of the outbox stands and who relays it. Insert-only: of one
-- (slices, slice) the row with the highest id is in force.
create table {{.schema}}.relay_windows (
    slot         smallint not null default {{.schema}}.outbox_slot(clock_timestamp()),
    id           bigint not null default nextval('{{.schema}}.relay_windows_id'),
    slices       smallint not null,           -- how many slices share the 64 buckets; 0: the schema's first row
    slice        smallint not null,
    token        uuid not null,               -- whose the lease is
    instance     text not null,
    leased_until timestamptz not null,
    incarnation  text not null,
    done         pg_snapshot not null,        -- all that is visible in it is out or set aside
    until        pg_snapshot,                 -- the window that is being published; null: none
    after        bigint not null default 0,   -- of that window the rows up to this seq are out or set aside
    written_at   timestamptz not null default clock_timestamp(),
    primary key (slices, slice, id, slot),    -- the newest row of a slice is the last of its range
    constraint relay_windows_slice_exists check (slice >= 0 and (slice < slices or slices = 0))
) partition by list (slot);
create table {{.schema}}.relay_windows_0 partition of {{.schema}}.relay_windows for values in (0) with (autovacuum_freeze_min_age = 0);
create table {{.schema}}.relay_windows_1 partition of {{.schema}}.relay_windows for values in (1) with (autovacuum_freeze_min_age = 0);
create table {{.schema}}.relay_windows_2 partition of {{.schema}}.relay_windows for values in (2) with (autovacuum_freeze_min_age = 0);

-- The first row tells a dump that was restored before any relay ran.
insert into {{.schema}}.relay_windows (slices, slice, token, instance, leased_until, incarnation, done)
values (0, 0, gen_random_uuid(), 'migration', now(), {{.schema}}.incarnation(), '3:3:');

-- The row in force of one slice.
create function {{.schema}}.relay_row(of_slices smallint, of_slice smallint)
    returns setof {{.schema}}.relay_windows language sql volatile rows 1
    begin atomic
        select * from {{.schema}}.relay_windows w
         where w.slices = of_slices and w.slice = of_slice
         order by w.id desc limit 1;
    end;

-- The rows in force of all slices, of every layout.
create function {{.schema}}.relay_rows() returns setof {{.schema}}.relay_windows language sql volatile
    begin atomic
        select distinct on (w.slices, w.slice) * from {{.schema}}.relay_windows w
         order by w.slices, w.slice, w.id desc;
    end;

-- A dump that was restored elsewhere holds transaction ids of another server:
-- taken by this server's snapshots they would lie in the future, or in the past.
-- All rows that are visible are written again under this transaction's, with
-- their seq and id. This is the one DELETE that the outbox ever sees.
create function {{.schema}}.outbox_adopt() returns bigint
    language plpgsql volatile as $$
declare
    moved bigint;
begin
    with gone as (delete from {{.schema}}.outbox returning *)
    insert into {{.schema}}.outbox (seq, created_at, bucket, ordered, id, topic, key, value,
                                    header_keys, header_values, correlation_id, causation_id)
    select seq, created_at, bucket, ordered, id, topic, key, value,
           header_keys, header_values, correlation_id, causation_id from gone;
    get diagnostics moved = row_count;
    return moved;
end $$;

-- Takes the lease of a slice when it is free, ended, or of another incarnation,
-- and returns the row it wrote, or none when another relay holds it. Leases
-- change hands under an exclusive lock that every relay_advance shares: so no
-- advance of the old holder can commit after the new one has read the place.
create function {{.schema}}.relay_take(
    of_slices smallint, of_slice smallint, with_token uuid, as_instance text, lease interval)
    returns setof {{.schema}}.relay_windows
    language plpgsql volatile as $$
#variable_conflict use_column
declare
    here    text := {{.schema}}.incarnation();
    held    {{.schema}}.relay_windows;
    start   pg_snapshot;
    until_  pg_snapshot;
    after_  bigint := 0;
begin
    perform pg_advisory_xact_lock(hashtext('{{.schema_text}}'), -2);
    select * into held from {{.schema}}.relay_row(of_slices, of_slice);
    -- Another relay has it, in this layout or in one that shares buckets with it.
    if exists (select 1 from {{.schema}}.relay_rows() w
                where w.slices > 0 and w.token <> with_token
                  and w.incarnation = here and w.leased_until > clock_timestamp()
                  and w.slice::int * of_slices < (of_slice + 1) * w.slices
                  and of_slice::int * w.slices < (w.slice + 1) * of_slices) then
        return;
    end if;
    if not exists (select 1 from {{.schema}}.relay_windows w
                    where split_part(w.incarnation, '/', 1) = split_part(here, '/', 1)) then
        perform {{.schema}}.outbox_adopt();
    end if;
    start := {{.schema}}.relay_start(of_slices, of_slice, held.id, here);
    if start is null and held.id is not null and held.incarnation = here then
        start := held.done;
        until_ := held.until;
        after_ := held.after;
    end if;
    return query
        insert into {{.schema}}.relay_windows
               (slices, slice, token, instance, leased_until, incarnation, done, until, after)
        values (of_slices, of_slice, with_token, as_instance, clock_timestamp() + lease, here, coalesce(start, '3:3:'), until_, after_)
        returning *;
end $$;

-- Where a slice begins when another layout was the last to be relayed: where the
-- slices of that layout that cover all of its buckets have all been. Null when
-- none is newer than the slice's own row (of_id); then that row counts, and without
-- one the oldest row of the outbox. Snapshots of one server are nested, so the
-- earliest is the one with the smallest xmax and, of those, the most transactions
-- in progress.
create function {{.schema}}.relay_start(of_slices smallint, of_slice smallint, of_id bigint, here text) returns pg_snapshot
    language sql volatile
    begin atomic
        with inside as (
            select w.slices, w.slice, w.id, w.done
              from {{.schema}}.relay_rows() w
             where w.slices > 0 and w.slices <> of_slices and w.incarnation = here
               and w.slice::int * of_slices < (of_slice + 1) * w.slices
               and of_slice::int * w.slices < (w.slice + 1) * of_slices),
        chosen as (
            select i.slices
              from inside i
             group by i.slices
            having min(i.slice::int * of_slices) <= min(of_slice::int * i.slices)
               and max((i.slice + 1) * of_slices) >= max((of_slice + 1) * i.slices)
               and count(*) = max(i.slice) - min(i.slice) + 1
               and max(i.id) > coalesce(of_id, 0)
             order by max(i.id) desc
             limit 1)
        select i.done from inside i join chosen c on c.slices = i.slices
         order by pg_snapshot_xmax(i.done),
                  (select count(*) from pg_snapshot_xip(i.done)) desc
         limit 1;
    end;

-- The row in force, for the relay that holds the lease and for no other. CQ003: the
-- lease is another's. CQ004: another server.
create function {{.schema}}.relay_open(of_slices smallint, of_slice smallint, with_token uuid)
    returns setof {{.schema}}.relay_windows
    language plpgsql volatile as $$
declare
    held {{.schema}}.relay_windows;
begin
    select * into held from {{.schema}}.relay_row(of_slices, of_slice);
    if held.token is distinct from with_token then
        raise exception using errcode = 'CQ003', message = 'claimq: another relay has this slice of the outbox', detail = held.instance;
    end if;
    if held.incarnation <> {{.schema}}.incarnation() then
        raise exception using errcode = 'CQ004', message = 'claimq: the server has changed since the relay took its place', detail = held.incarnation;
    end if;
    return next held;
end $$;

-- Moves a slice's place and renews its lease; returns the new row's id. Refused
-- when the row in force is not the one that the relay went out from.
create function {{.schema}}.relay_advance(
    of_slices smallint, of_slice smallint, with_token uuid, from_id bigint,
    new_done pg_snapshot, new_until pg_snapshot, new_after bigint, lease interval)
    returns bigint
    language plpgsql volatile as $$
declare
    held   {{.schema}}.relay_windows;
    new_id bigint;
begin
    -- A place that is lost in a crash is published again from the one before it.
    perform set_config('synchronous_commit', 'off', true);
    perform pg_advisory_xact_lock_shared(hashtext('{{.schema_text}}'), -2);
    select * into held from {{.schema}}.relay_row(of_slices, of_slice);
    if held.token is distinct from with_token or held.id <> from_id then
        raise exception using errcode = 'CQ003', message = 'claimq: another relay has this slice of the outbox', detail = held.instance;
    end if;
    if held.incarnation <> {{.schema}}.incarnation() then
        raise exception using errcode = 'CQ004', message = 'claimq: the server has changed since the relay took its place', detail = held.incarnation;
    end if;
    insert into {{.schema}}.relay_windows
           (slices, slice, token, instance, leased_until, incarnation, done, until, after)
    values (of_slices, of_slice, with_token, held.instance, clock_timestamp() + lease, held.incarnation,
            new_done, new_until, new_after)
    returning id into new_id;
    return new_id;
end $$;

-- Empties the outbox slot that will be written next, when all of it is out.
-- Returns the bytes freed, or null when there was nothing to do, somebody else is
-- at it, or a row is not out. The check is made under the leaf's own lock: a
-- transaction that adds a row between a check and the lock would be lost. Only
-- rows of transactions that the slowest slice has not seen need a look, so the
-- lock is short however full the slot is.
create function {{.schema}}.rotate_outbox() returns bigint
    language plpgsql volatile as $$
declare
    oldest   smallint := ({{.schema}}.outbox_slot(clock_timestamp()) + 1) % 3;
    leaf     text := format('%s.outbox_%s', '{{.schema}}', oldest);
    layout   smallint;
    slowest  xid8;
    covered  int;
    size     bigint;
    left_out boolean;
begin
    if not pg_try_advisory_xact_lock(hashtext('{{.schema_text}}'), -3) then
        return null;
    end if;
    size := pg_relation_size(leaf);
    if size = 0 then
        return null;
    end if;
    select w.slices into layout from {{.schema}}.relay_windows w where w.slices > 0 order by w.id desc limit 1;
    perform set_config('lock_timeout', '50ms', true);
    execute format('lock table %s in access exclusive mode', leaf);
    select count(*), (array_agg(pg_snapshot_xmin(w.done) order by pg_snapshot_xmin(w.done)))[1]
      into covered, slowest
      from {{.schema}}.relay_rows() w
     where w.slices = layout and w.incarnation = {{.schema}}.incarnation();
    if covered is distinct from layout::int then
        return null;
    end if;
    execute format('select exists (select 1 from %s o
                     where o.xid >= $1
                       and not exists (select 1 from {{.schema}}.relay_rows() w
                                        where w.slices = $2 and w.slice = o.bucket::int * $2 / 64
                                          and pg_visible_in_snapshot(o.xid, w.done)))', leaf)
       into left_out using slowest, layout;
    if left_out then
        return null;
    end if;
    execute format('truncate %s', leaf);
    return size;
end $$;

-- Empties the slot of relay_windows that will be written next. Rows in force are
-- written again, unchanged but for the slot, before the TRUNCATE.
create function {{.schema}}.rotate_relay_windows() returns bigint
    language plpgsql volatile as $$
declare
    now_slot smallint := {{.schema}}.outbox_slot(clock_timestamp());
    oldest   smallint := (now_slot + 1) % 3;
    leaf     text := format('%s.relay_windows_%s', '{{.schema}}', oldest);
    removed  bigint;
begin
    if not pg_try_advisory_xact_lock(hashtext('{{.schema_text}}'), -4) then
        return null;
    end if;
    execute format('select count(*) from (select 1 from %s limit 1) s', leaf) into removed;
    if removed = 0 then
        return null;
    end if;
    perform set_config('lock_timeout', '50ms', true);
    execute format('lock table %s in access exclusive mode', leaf);
    insert into {{.schema}}.relay_windows
    select now_slot, w.id, w.slices, w.slice, w.token, w.instance, w.leased_until, w.incarnation,
           w.done, w.until, w.after, w.written_at
      from {{.schema}}.relay_rows() w
     where w.slot = oldest;
    execute format('select count(*) from %s', leaf) into removed;
    execute format('truncate %s', leaf);
    return removed;
end $$;
