-- Claims: the rows whose unique constraint says that an id's effect has been made.

-- The digest of queue, tenant, operation and id: the first 16 bytes of SHA-256
-- over each part's length (four bytes, big endian; -1 for null) and bytes. The Go
-- twin is dedup.Identity.Digest.
create function {{.schema}}.claim_part(part bytea) returns bytea
    language sql immutable parallel safe
    return coalesce(int4send(octet_length(part)) || part, int4send(-1));

create function {{.schema}}.claim_id(queue text, tenant text, operation text, id bytea) returns uuid
    language sql immutable parallel safe
    return encode(substring(sha256(
        {{.schema}}.claim_part(convert_to(queue, 'UTF8'))
        || {{.schema}}.claim_part(convert_to(tenant, 'UTF8'))
        || {{.schema}}.claim_part(convert_to(operation, 'UTF8'))
        || {{.schema}}.claim_part(id)) from 1 for 16), 'hex')::uuid;

-- For people: an id written as text.
create function {{.schema}}.claim_id(queue text, tenant text, operation text, id text) returns uuid
    language sql immutable parallel safe
    return {{.schema}}.claim_id(queue, tenant, operation, convert_to(id, 'UTF8'));

-- A ring of segments: claims are inserted into the current one and looked up in
-- the older ones; forgetting is TRUNCATE of the oldest. The widest columns come
-- first, so that no row is padded.
create table {{.schema}}.claims (
    "offset"            bigint,               -- where the id was first seen; null: claimed outside Kafka
    record_at           timestamptz not null, -- the record's clock
    claimed_at          timestamptz not null default now(), -- the database's clock
    queue               int not null,
    topic               int,
    partition           int,
    segment             smallint not null,
    fingerprint_version smallint not null,    -- 0: no fingerprint
    id                  uuid not null,
    fingerprint         uuid not null,
    shown               text,                 -- the id, shortened, for people; null when that is turned off
    constraint claims_source_is_whole check (num_nulls(topic, partition, "offset") in (0, 3))
) partition by list (segment);

create table {{.schema}}.claims_0 partition of {{.schema}}.claims (constraint claims_0_id primary key (id)) for values in (0);
create table {{.schema}}.claims_1 partition of {{.schema}}.claims (constraint claims_1_id primary key (id)) for values in (1);
create table {{.schema}}.claims_2 partition of {{.schema}}.claims (constraint claims_2_id primary key (id)) for values in (2);
create table {{.schema}}.claims_3 partition of {{.schema}}.claims (constraint claims_3_id primary key (id)) for values in (3);

-- Which segments claimers write and read. Insert-only: the newest row is in
-- force, and a claimer that planned with an older one is told to start again.
create table {{.schema}}.claim_phases (
    phase   bigint primary key check (phase >= 0),
    inserts smallint[] not null check (cardinality(inserts) between 1 and 2),
    lookups smallint[] not null check (cardinality(lookups) <= 2),
    since   timestamptz not null default now()
);
insert into {{.schema}}.claim_phases (phase, inserts, lookups) values (0, '{0}', '{}');

-- Since when each segment holds claims: what "remembers since" is computed from.
create table {{.schema}}.claim_segments (
    segment smallint primary key check (segment between 0 and 3),
    opened  timestamptz
);
insert into {{.schema}}.claim_segments values (0, now()), (1, null), (2, null), (3, null);

-- Run after the shared phase lock and in a statement of its own, so that its
-- snapshot is newer than the phase that the lock belongs to.
create function {{.schema}}.assert_phase(planned bigint) returns void
    language plpgsql volatile as $$
begin
    if planned <> (select max(phase) from {{.schema}}.claim_phases) then
        raise exception using errcode = 'CQ002', message = 'claimq: the claim segments have rolled; begin again';
    end if;
end $$;

-- What a handler left for repeats to see. Commits with its claim.
create table {{.schema}}.results (
    slot       smallint not null,
    claim      uuid not null,
    value      bytea not null check (octet_length(value) <= 65536),
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    primary key (slot, claim)
) partition by list (slot);
create table {{.schema}}.results_0 partition of {{.schema}}.results for values in (0);
create table {{.schema}}.results_1 partition of {{.schema}}.results for values in (1);
create table {{.schema}}.results_2 partition of {{.schema}}.results for values in (2);
