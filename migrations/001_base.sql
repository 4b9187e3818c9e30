-- Queues, topics, ownership of partitions, positions.
-- {{.schema}} is the schema's quoted name; every migration is run in one transaction.

-- A queue's name is explicit and immutable: it is the root of the dedup scope.
-- Other tables hold its number, so that a name's length costs nothing.
create table {{.schema}}.queues (
    id            int generated always as identity primary key,
    name          text not null unique check (name ~ '^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}$'),
    group_name    text not null check (group_name <> ''),
    rule          text not null,              -- canonical text of the id, scope and fingerprint rules
    config        jsonb not null default '{}',
    owner_team    text not null default '',
    owner_contact text not null default '',
    retention     interval not null default '8 days' check (retention > interval '0'),
    created_at    timestamptz not null default now(),
    changed_at    timestamptz not null default now(),
    paused_at     timestamptz,
    paused_by     text,
    paused_why    text,
    constraint queues_pause_is_explained check (
        (paused_at is null and paused_by is null and paused_why is null)
        or (paused_at is not null and paused_by <> '' and paused_why <> ''))
);

-- A topic is known by Kafka's topic id: a topic that was deleted and created
-- again under its old name is another topic, with another number here.
create table {{.schema}}.topics (
    id         int generated always as identity primary key,
    topic_id   uuid not null unique,
    name       text not null check (name <> ''),
    first_seen timestamptz not null default now()
);
create index topics_name on {{.schema}}.topics (name);

-- The topics that a queue has begun to read. Written once, when the start of all
-- the topic's partitions is decided: a partition without a position is then either
-- new or has lost it, and never just "first".
create table {{.schema}}.queue_topics (
    queue    int not null references {{.schema}}.queues,
    topic    int not null references {{.schema}}.topics,
    begun_at timestamptz not null default now(),
    primary key (queue, topic)
);

-- Who may write a partition's effects. Written at assignment only; read, in a
-- statement of its own after the fence lock, by every batch. The token is random,
-- because a failover can lose the newest epochs and hand them out again.
create table {{.schema}}.owners (
    queue      int not null references {{.schema}}.queues,
    topic      int not null references {{.schema}}.topics,
    partition  int not null check (partition >= 0),
    epoch      bigint not null check (epoch > 0),
    token      uuid not null,
    instance   text not null,
    taken_at   timestamptz not null default now(),
    primary key (queue, topic, partition)
);

-- The slot that rows written now go to: ten minutes each, three in turn. A slot
-- is emptied only under its own lock, with what is still needed carried over
-- first, so a clock that jumps costs space and never a position.
create function {{.schema}}.position_slot(at timestamptz) returns smallint
    language sql immutable parallel safe
    return (floor(extract(epoch from at) / 600)::bigint % 3)::smallint;

-- Insert-only: one row a committed batch, with all its partitions side by side.
-- A partition's position is the row with the highest (epoch, offset).
create table {{.schema}}.positions (
    slot          smallint not null,
    id            uuid not null,              -- the batch attempt; a retry of an unknown COMMIT inserts it again
    queue         int not null,
    topics        int[] not null,
    partitions    int[] not null,
    epochs        bigint[] not null,
    offsets       bigint[] not null,          -- the next offset whose effect is not yet in this database
    leader_epochs int[] not null,
    written_at    timestamptz not null default now(),
    primary key (slot, id),
    constraint positions_columns_align check (
        cardinality(topics) = cardinality(partitions)
        and cardinality(topics) = cardinality(epochs)
        and cardinality(topics) = cardinality(offsets)
        and cardinality(topics) = cardinality(leader_epochs)
        and 0 <= all (offsets))
) partition by list (slot);
create table {{.schema}}.positions_0 partition of {{.schema}}.positions for values in (0) with (autovacuum_freeze_min_age = 0);
create table {{.schema}}.positions_1 partition of {{.schema}}.positions for values in (1) with (autovacuum_freeze_min_age = 0);
create table {{.schema}}.positions_2 partition of {{.schema}}.positions for values in (2) with (autovacuum_freeze_min_age = 0);

-- The position of every partition of a queue, over all slots.
create function {{.schema}}.positions_of(for_queue int)
    returns table (topic int, partition int, epoch bigint, next_offset bigint, leader_epoch int, written_at timestamptz)
    language sql stable
    begin atomic
        select distinct on (u.topic, u.partition)
               u.topic, u.partition, u.epoch, u.next_offset, u.leader_epoch, p.written_at
          from {{.schema}}.positions p,
               unnest(p.topics, p.partitions, p.epochs, p.offsets, p.leader_epochs)
                   as u (topic, partition, epoch, next_offset, leader_epoch)
         where p.queue = for_queue
         order by u.topic, u.partition, u.epoch desc, u.next_offset desc, p.written_at desc;
    end;

-- Takes ownership of partitions and tells where each one's effects stand.
-- Holding the fence lock alone means: no batch of the queue is between its fence
-- and its COMMIT, so what the old owner committed is visible to the read below,
-- and what it has not committed will find another token. A partition without a
-- row comes back with null next_offset.
create function {{.schema}}.take_ownership(
    for_queue int, as_instance text, with_token uuid, of_topics int[], of_partitions int[])
    returns table (topic int, partition int, epoch bigint, next_offset bigint, leader_epoch int)
    language plpgsql volatile as $$
#variable_conflict use_column
begin
    perform pg_advisory_xact_lock(hashtext('{{.schema_text}}'), for_queue);
    insert into {{.schema}}.owners as o (queue, topic, partition, epoch, token, instance)
    select for_queue, u.t, u.p, 1, with_token, as_instance
      from unnest(of_topics, of_partitions) as u (t, p)
     order by 2, 3
        on conflict (queue, topic, partition) do update
       set epoch = o.epoch + 1, token = excluded.token, instance = excluded.instance, taken_at = clock_timestamp();
    return query
        select o.topic, o.partition,
               -- After a failover an epoch can lie below the positions' own: never write under those.
               greatest(o.epoch, coalesce(p.epoch, 0)), p.next_offset, p.leader_epoch
          from {{.schema}}.owners o
          left join {{.schema}}.positions_of(for_queue) p on p.topic = o.topic and p.partition = o.partition
         where o.queue = for_queue and o.token = with_token
           and (o.topic, o.partition) in (select u.t, u.p from unnest(of_topics, of_partitions) as u (t, p));
end $$;

-- The fence, run after the shared fence lock and in a statement of its own, so
-- that its snapshot is newer than any take-over. It raises CQ001 with the lost
-- partitions as detail: the COMMIT that stands behind it in the same flight is
-- then never executed.
create function {{.schema}}.assert_owner(
    for_queue int, of_topics int[], of_partitions int[], with_tokens uuid[])
    returns void language plpgsql volatile as $$
declare
    lost text;
begin
    select string_agg(u.t || '/' || u.p, ',' order by u.t, u.p) into lost
      from unnest(of_topics, of_partitions, with_tokens) as u (t, p, token)
     where not exists (select 1 from {{.schema}}.owners o
                        where o.queue = for_queue and o.topic = u.t and o.partition = u.p and o.token = u.token);
    if lost is not null then
        raise exception using errcode = 'CQ001', message = 'claimq: fenced: another worker owns the partition', detail = lost;
    end if;
end $$;

-- Empties the slot that will be written next, after carrying over what no later
-- row supersedes. One transaction; the leaf's own lock keeps writers out between
-- the carrying and the TRUNCATE. Returns the rows removed, or null when there is
-- nothing to do or somebody else is at it.
create function {{.schema}}.rotate_positions() returns bigint
    language plpgsql volatile as $$
declare
    current_slot smallint := {{.schema}}.position_slot(clock_timestamp());
    oldest       smallint := (current_slot + 1) % 3;
    leaf         text := format('%s.positions_%s', '{{.schema}}', oldest);
    removed      bigint;
begin
    if not pg_try_advisory_xact_lock(hashtext('{{.schema_text}}'), -1) then
        return null;
    end if;
    execute format('select count(*) from (select 1 from %s limit 1) s', leaf) into removed;
    if removed = 0 then
        return null;
    end if;
    perform set_config('lock_timeout', '50ms', true);
    execute format('lock table %s in access exclusive mode', leaf);
    -- The time stays that of the newest batch: a queue that nobody runs has not moved.
    insert into {{.schema}}.positions (slot, id, queue, topics, partitions, epochs, offsets, leader_epochs, written_at)
    select current_slot, gen_random_uuid(), q.id,
           array_agg(p.topic), array_agg(p.partition), array_agg(p.epoch),
           array_agg(p.next_offset), array_agg(p.leader_epoch), max(p.written_at)
      from {{.schema}}.queues q, {{.schema}}.positions_of(q.id) p
     group by q.id;
    execute format('select count(*) from %s', leaf) into removed;
    execute format('truncate %s', leaf);
    return removed;
end $$;

-- Running workers, one row each: what `status` shows. Written every few seconds.
create table {{.schema}}.workers (
    instance   text primary key,
    queues     text[] not null,
    host       text not null,
    version    text not null,
    started_at timestamptz not null default now(),
    seen_at    timestamptz not null default now(),
    stats      jsonb not null default '{}'
) with (fillfactor = 50);

-- What operators did, with who and why. Insert-only.
create table {{.schema}}.audit (
    id     bigint generated always as identity primary key,
    at     timestamptz not null default now(),
    who    text not null check (who <> ''),
    why    text not null,
    action text not null check (action <> ''),
    queue  int references {{.schema}}.queues,
    detail jsonb not null default '{}'
);
