-- Dead letters: messages for which no attempt is made until someone decides.

create type {{.schema}}.letter_state as enum ('dead', 'replaying', 'resolved', 'discarded', 'erased');

create table {{.schema}}.dead_letters (
    id                  uuid primary key,
    queue               int not null references {{.schema}}.queues,
    state               {{.schema}}.letter_state not null default 'dead',
    round               int not null default 1 check (round >= 1), -- how many times this message has died
    reason              text not null check (reason <> ''),
    error_class         text not null default '',
    error_message       text not null default '',
    stack               text,
    cause               uuid not null,        -- groups letters by queue, reason, class and masked message
    cause_version       smallint not null,
    starts              int not null default 0,
    attempts            int not null default 0,
    crashes             int not null default 0,
    interrupted         int not null default 0,
    order_key           uuid not null,
    order_pos           bigint,               -- null: died on the direct path
    holds_key           boolean not null default false,
    claim               uuid,
    fingerprint         uuid,
    fingerprint_version smallint not null default 0,
    tenant              text,
    operation           text,
    shown               text,
    topic               int references {{.schema}}.topics,
    partition           int,
    "offset"            bigint,
    leader_epoch        int not null default -1,
    record_topic        text not null,
    record_key          bytea,
    record_value        bytea,
    header_keys         bytea[] not null default '{}',
    header_values       bytea[] not null default '{}',
    record_at           timestamptz not null,
    record_attributes   smallint not null default 0,
    first_seen          timestamptz not null default now(),
    died_at             timestamptz not null default now(),
    settled_at          timestamptz,
    replay_count        int not null default 0 check (replay_count >= 0),
    constraint dead_letters_source_is_whole check (num_nulls(topic, partition, "offset") in (0, 3)),
    constraint dead_letters_headers_align check (cardinality(header_keys) = cardinality(header_values)),
    constraint dead_letters_settled_has_a_time check ((settled_at is null) = (state in ('dead', 'replaying')))
);
-- One letter a message: a record found here is known, whatever became of it.
create unique index dead_letters_source on {{.schema}}.dead_letters (queue, topic, partition, "offset") where topic is not null;
create index dead_letters_open_claim on {{.schema}}.dead_letters (claim) where claim is not null and state in ('dead', 'replaying');
create index dead_letters_open on {{.schema}}.dead_letters (queue, died_at) where state in ('dead', 'replaying');
create index dead_letters_cause on {{.schema}}.dead_letters (cause, died_at);
create index dead_letters_holding on {{.schema}}.dead_letters (queue, order_key) where holds_key;
