-- The delay queue: messages that failed and wait, messages held behind one of
-- their order key, messages scheduled for later.

create type {{.schema}}.delay_kind as enum ('failed', 'blocked', 'scheduled', 'replay');

create table {{.schema}}.delayed (
    id                  uuid primary key,
    order_pos           bigint generated always as identity, -- given at the first storing, kept through death and replay
    queue               int not null references {{.schema}}.queues,
    kind                {{.schema}}.delay_kind not null,
    order_key           uuid not null,        -- digest of the order key; the item's own id when nothing is ordered
    due_at              timestamptz not null,
    deadline            timestamptz,
    -- A start is recorded before the handler runs; an attempt is a start with a verdict.
    starts              int not null default 0 check (starts >= 0),
    attempts            int not null default 0 check (attempts >= 0),
    crashes             int not null default 0 check (crashes >= 0),
    interrupted         int not null default 0 check (interrupted >= 0),
    lease_token         uuid,                 -- the token of the lease under which the newest start was made
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
    first_seen          timestamptz not null default now(),
    failed_at           timestamptz,
    error_class         text,
    error_message       text,
    replay              uuid,
    replay_count        int not null default 0 check (replay_count >= 0),
    constraint delayed_source_is_whole check (num_nulls(topic, partition, "offset") in (0, 3)),
    constraint delayed_headers_align check (cardinality(header_keys) = cardinality(header_values)),
    constraint delayed_attempts_had_starts check (attempts + crashes + interrupted <= starts + 1)
);
create unique index delayed_claim on {{.schema}}.delayed (claim) where claim is not null;
create unique index delayed_source on {{.schema}}.delayed (queue, topic, partition, "offset") where topic is not null;
create index delayed_run on {{.schema}}.delayed (queue, order_key, order_pos);

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
