-- Replays: an operator's durable, bounded orders to try dead letters again, and what
-- people say of causes.

create type {{.schema}}.replay_state as enum ('running', 'paused', 'finished', 'cancelled');

-- listed → queued → resolved | dead (it died again), and what never gets that far.
create type {{.schema}}.replay_item_state as enum
    ('listed', 'queued', 'resolved', 'dead', 'done', 'skipped', 'quarantined', 'cancelled');

create table {{.schema}}.replays (
    id          uuid primary key,
    state       {{.schema}}.replay_state not null default 'running',
    chosen      jsonb not null,               -- the selection in words, for people
    who         text not null check (who <> ''),
    why         text not null check (why <> ''),
    created_at  timestamptz not null default now(),
    ended_at    timestamptz,
    rate        double precision check (rate > 0), -- letters a second; null: as fast as they are taken
    ramp        interval not null default '0' check (ramp >= interval '0'),
    in_flight   int not null check (in_flight > 0),
    -- How long it has been driven, which is what the rate counts from: a pause, and
    -- the time between a kill and the next run, are no credit to burst with.
    elapsed     interval not null default '0',
    stepped_at  timestamptz not null default clock_timestamp(),
    fed         bigint not null default 0,
    constraint replays_ended_has_a_time check ((ended_at is null) = (state in ('running', 'paused')))
) with (fillfactor = 50);
create index replays_created on {{.schema}}.replays (created_at);

-- The frozen list of a replay, in the order in which it goes out.
create table {{.schema}}.replay_items (
    replay uuid not null references {{.schema}}.replays,
    seq    int not null check (seq > 0),
    letter uuid not null references {{.schema}}.dead_letters,
    state  {{.schema}}.replay_item_state not null,
    why    text,
    at     timestamptz not null default clock_timestamp(),
    primary key (replay, seq)
) with (fillfactor = 80);
-- Twice is refused: a letter is in one open replay, whoever orders at the same time.
create unique index replay_items_open on {{.schema}}.replay_items (letter) where state in ('listed', 'queued');
create index replay_items_state on {{.schema}}.replay_items (replay, state, seq);
create index replay_items_letter on {{.schema}}.replay_items (letter);

alter table {{.schema}}.dead_letters
    add column replay       uuid,             -- the newest replay that put it into the delay queue
    add column overtaken_at timestamptz,      -- a newer message of its order key has succeeded: a replay is stale
    add column decided_by   text,             -- who discarded, restored or erased it last, and why
    add column decided_why  text;
create index dead_letters_not_overtaken on {{.schema}}.dead_letters (queue, order_key, order_pos)
    where state = 'dead' and overtaken_at is null;
create index delayed_replay on {{.schema}}.delayed (replay) where replay is not null;

create table {{.schema}}.cause_notes (
    id    bigint generated always as identity primary key,
    cause uuid not null,
    at    timestamptz not null default now(),
    who   text not null check (who <> ''),
    note  text not null check (note <> '')
);
create index cause_notes_cause on {{.schema}}.cause_notes (cause, id);

-- An item of a replay has the fate of its letter, in the transaction that decides
-- the letter's: nobody can see one settled and the other not.
create function {{.schema}}.replay_follow() returns trigger language plpgsql as $$
begin
    update {{.schema}}.replay_items i
       set state = case new.state when 'resolved' then 'resolved' when 'dead' then 'dead' else 'skipped' end::{{.schema}}.replay_item_state,
           why = case new.state when 'dead' then new.reason end, at = clock_timestamp()
     where i.letter = new.id and i.replay = new.replay and i.state = 'queued';
    return null;
end $$;
create trigger dead_letters_replay after update of state on {{.schema}}.dead_letters
    for each row when (old.state = 'replaying' and new.state <> 'replaying' and new.replay is not null)
    execute function {{.schema}}.replay_follow();

-- The letters that a selection chooses; null chooses all. One text for lists, counts,
-- replays and decisions, so that what was shown is what is acted on. It is inlined
-- into the statement that calls it.
create function {{.schema}}.letters_chosen(
    of_queue int, in_states text[], of_reason text, of_cause uuid, of_class text, of_tenant text, of_ids uuid[], of_shown text[],
    of_key bytea, died_from timestamptz, died_before timestamptz, least_attempts int, most_attempts int,
    header_key bytea, header_value bytea, in_value bytea)
    returns setof {{.schema}}.dead_letters language sql stable as $$
    select l.*
      from {{.schema}}.dead_letters l
     where (of_queue is null or l.queue = of_queue)
       and (in_states is null or l.state::text = any (in_states))
       and (of_reason is null or l.reason = of_reason)
       and (of_cause is null or l.cause = of_cause)
       and (of_class is null or l.error_class = of_class)
       and (of_tenant is null or l.tenant = of_tenant)
       and (of_ids is null or l.id = any (of_ids))
       and (of_shown is null or l.shown = any (of_shown))
       and (of_key is null or l.record_key = of_key)
       and (died_from is null or l.died_at >= died_from)
       and (died_before is null or l.died_at < died_before)
       and (least_attempts is null or l.attempts >= least_attempts)
       and (most_attempts is null or l.attempts <= most_attempts)
       and (header_key is null or exists (
            select from unnest(l.header_keys, l.header_values) as h (k, v)
             where h.k = header_key and (header_value is null or h.v = header_value)))
       and (in_value is null or position(in_value in l.record_value) > 0)
$$;
