-- The delay queue: messages that failed and wait, messages held behind one of
-- their order key, messages scheduled for later.
--
-- Who may change what, so that a lease's token is proof enough:
--   items and key row of a leased key: the holder of the token, nobody else;
--   an operator who takes or moves an item of a leased key takes the lease away
--   first, and the worker's last flight then fails with CQ003.

create type {{.schema}}.delay_kind as enum ('failed', 'blocked', 'scheduled', 'replay');

-- Order positions: given at a message's first storing, delayed or dead, and kept
-- through death and replay, so that a replayed letter goes back to its place.
create sequence {{.schema}}.order_positions as bigint;

create table {{.schema}}.delayed (
    id                  uuid primary key,
    order_pos           bigint not null default nextval('{{.schema}}.order_positions'),
    queue               int not null references {{.schema}}.queues,
    kind                {{.schema}}.delay_kind not null,
    order_key           uuid not null,        -- digest of the order key; the item's own id when nothing is ordered, or not before it is due
    joins               uuid,                 -- scheduled: the order key that the item joins when it is due
    due_at              timestamptz not null,
    -- A start is recorded before the handler runs; an attempt is a start with a verdict.
    starts              int not null default 0 check (starts >= 0),
    attempts            int not null default 0 check (attempts >= 0),
    crashes             int not null default 0 check (crashes >= 0),
    interrupted         int not null default 0 check (interrupted >= 0),
    interrupted_why     text,                 -- the newest interruption's reason
    lease_token         uuid,                 -- the lease of the newest start, until it has a verdict
    -- What was asked for, and where it came from. All null: scheduled outside Kafka.
    claim               uuid,                 -- null: a queue without claims
    fingerprint         uuid,
    fingerprint_version smallint not null default 0,
    tenant              text,
    operation           text,
    shown               text,
    topic               int references {{.schema}}.topics,
    partition           int,
    "offset"            bigint,
    leader_epoch        int not null default -1,
    -- The record, byte for byte.
    record_topic        text not null,
    record_key          bytea,
    record_value        bytea,
    header_keys         bytea[] not null default '{}',
    header_values       bytea[] not null default '{}',
    record_at           timestamptz not null,
    record_attributes   smallint not null default 0,
    -- How it has gone.
    first_seen          timestamptz not null default now(), -- kept through death and replay
    stored_at           timestamptz not null default now(), -- this time: what a deadline counts from
    failed_at           timestamptz,
    error_class         text,
    error_message       text,
    replay              uuid,
    replay_count        int not null default 0 check (replay_count >= 0),
    constraint delayed_source_is_whole check (num_nulls(topic, partition, "offset") in (0, 3)),
    constraint delayed_headers_align check (cardinality(header_keys) = cardinality(header_values)),
    constraint delayed_attempts_had_starts check (attempts + crashes + interrupted <= starts),
    constraint delayed_joins_when_due check (joins is null or (kind = 'scheduled' and order_key = id))
) with (fillfactor = 80);
create unique index delayed_claim on {{.schema}}.delayed (claim) where claim is not null;
create unique index delayed_source on {{.schema}}.delayed (queue, topic, partition, "offset") where topic is not null;
create index delayed_run on {{.schema}}.delayed (queue, order_key, order_pos);
create index delayed_age on {{.schema}}.delayed (queue, stored_at);
create index delayed_scheduled on {{.schema}}.delayed (queue, due_at) where kind = 'scheduled';

-- Ready work is found by key, not by item: one row a waiting key with its head's
-- due time, or, while it is leased, the lease's end. A poll reads this index only.
create table {{.schema}}.delayed_keys (
    queue       int not null references {{.schema}}.queues,
    order_key   uuid not null,
    ready_at    timestamptz not null,         -- 'infinity': held by a dead letter
    lease_token uuid,
    primary key (queue, order_key)
) with (fillfactor = 70);
create index delayed_keys_ready on {{.schema}}.delayed_keys (queue, ready_at);

-- The functions below plan what they run when they run it, and look each key up by
-- itself. Plans that were made on the empty table and kept, or on one that has
-- filled and was not analyzed yet, read all of it (tried: 33 s and 0.2 s instead of
-- a millisecond, on 400,000 items).

-- Locks the leased keys, in key order, and refuses with CQ003 when one of the
-- leases is no longer the caller's. Run in the last flight before anything about
-- the items is written: the COMMIT behind it in the same flight is then never
-- executed. The lock keeps out who stores behind the key until that COMMIT, so
-- that the statements after this one see all that the key has.
create function {{.schema}}.assert_leases(for_queue int, of_keys uuid[], with_tokens uuid[])
    returns void language plpgsql volatile set plan_cache_mode = force_custom_plan set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    held uuid[];
begin
    with locked as materialized (
        select k.order_key
          from {{.schema}}.delayed_keys k, unnest(of_keys, with_tokens) as u (order_key, token)
         where k.queue = for_queue and k.order_key = u.order_key and k.lease_token = u.token
         order by k.order_key
           for update of k)
    select coalesce(array_agg(order_key), '{}') into held from locked;
    if cardinality(held) <> cardinality(of_keys) then
        raise exception using errcode = 'CQ003', message = 'claimq: the lease is lost: another worker or an operator has the key',
              detail = (select string_agg(k::text, ',') from unnest(of_keys) k where k <> all (held));
    end if;
end $$;

-- Refuses with CQ003 when fewer items were written than were handed out.
create function {{.schema}}.assert_handed_out(written bigint, expected bigint) returns void
    language plpgsql volatile as $$
begin
    if written <> expected then
        raise exception using errcode = 'CQ003', message = 'claimq: the lease is lost: an item that was handed out is gone',
              detail = format('%s of %s items', written, expected);
    end if;
end $$;
