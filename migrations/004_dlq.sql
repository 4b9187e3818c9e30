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
    interrupted_why     text,
    order_key           uuid not null,
    order_pos           bigint not null default nextval('{{.schema}}.order_positions'),
    holds_key           boolean not null default false, -- while dead: what is stored behind it waits
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
create index dead_letters_holding on {{.schema}}.dead_letters (queue, order_key, order_pos) where holds_key and state = 'dead';

-- The keys of the delay queue, derived from both tables, in one place.

-- When a key is ready: its head's due time, 'infinity' while a dead letter before
-- the head holds it, null when nothing waits and nothing holds.
create function {{.schema}}.key_ready_at(for_queue int, for_key uuid) returns timestamptz
    language sql stable
    begin atomic
        select case when held.order_pos < coalesce(head.order_pos, 9223372036854775807) then timestamptz 'infinity'
                    else head.due_at end
          from (select min(l.order_pos) as order_pos from {{.schema}}.dead_letters l
                 where l.queue = for_queue and l.order_key = for_key and l.holds_key and l.state = 'dead') held
          left join lateral (
               select d.order_pos, d.due_at from {{.schema}}.delayed d
                where d.queue = for_queue and d.order_key = for_key
                order by d.order_pos limit 1) head on true;
    end;

-- Brings the key rows in line with what is stored. The caller has the rows'
-- locks from a statement before, so that the snapshot here is newer than whatever
-- those locks waited for. Rows of another lease than with_token (null: rows that
-- nobody leases) are left alone: their holder settles them. A row that is right
-- already gets no new version, so a key that thousands are stored behind is quiet.
create function {{.schema}}.settle_keys(for_queue int, of_keys uuid[], with_tokens uuid[])
    returns void language plpgsql volatile set plan_cache_mode = force_custom_plan set enable_hashjoin = off set enable_mergejoin = off as $$
begin
    delete from {{.schema}}.delayed_keys k
     using unnest(of_keys, with_tokens) as u (order_key, token)
     where k.queue = for_queue and k.order_key = u.order_key and k.lease_token is not distinct from u.token
       and {{.schema}}.key_ready_at(for_queue, u.order_key) is null;
    update {{.schema}}.delayed_keys k
       set ready_at = r.ready_at, lease_token = null
      from unnest(of_keys, with_tokens) as u (order_key, token),
           lateral (select {{.schema}}.key_ready_at(for_queue, u.order_key) as ready_at) r
     where k.queue = for_queue and k.order_key = u.order_key and k.lease_token is not distinct from u.token
       and r.ready_at is not null
       and (k.lease_token is not null or k.ready_at is distinct from r.ready_at);
end $$;

-- Makes sure that each key has its row, and holds it until the transaction ends.
--
-- ON CONFLICT DO UPDATE WHERE false is insert-or-lock in one statement: it waits
-- for a finisher that is deleting the row and then inserts, it locks a row that
-- stays, without a new version of it, and never finds neither. With DO NOTHING the
-- row that it met could be gone one statement later, and an item would wait for
-- ever under a key without a row. Then the rows are settled, in statements whose
-- snapshots are newer than the locks.
create function {{.schema}}.keep_keys(for_queue int, of_keys uuid[])
    returns void language plpgsql volatile set plan_cache_mode = force_custom_plan set enable_hashjoin = off set enable_mergejoin = off as $$
begin
    insert into {{.schema}}.delayed_keys as k (queue, order_key, ready_at)
    select for_queue, u.order_key, coalesce({{.schema}}.key_ready_at(for_queue, u.order_key), 'infinity')
      from (select distinct order_key from unnest(of_keys) as x (order_key)) u
     order by u.order_key
        on conflict (queue, order_key) do update set ready_at = excluded.ready_at where false;
    perform {{.schema}}.settle_keys(for_queue, of_keys, array_fill(null::uuid, array[cardinality(of_keys)]));
end $$;

-- Moves the scheduled items among the given keys that are due to the end of the
-- order key that they join, and keeps that key's row. An item that joins nothing
-- stays where it is. Such an item is alone under its own id, so it is found by that:
-- a key that thousands wait behind costs nothing here.
create function {{.schema}}.join_scheduled(for_queue int, of_keys uuid[])
    returns void language plpgsql volatile set plan_cache_mode = force_custom_plan set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    joined uuid[];
begin
    with due as (
        update {{.schema}}.delayed d
           set kind = 'blocked', order_key = d.joins, joins = null, order_pos = nextval('{{.schema}}.order_positions')
          from unnest(of_keys) as u (id)
         where d.id = u.id and d.queue = for_queue and d.joins is not null and d.due_at <= now()
        returning d.order_key)
    select array_agg(order_key) into joined from due;
    if joined is not null then
        perform {{.schema}}.keep_keys(for_queue, joined);
    end if;
end $$;
