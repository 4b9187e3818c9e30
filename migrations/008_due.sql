-- Effects that are to be published at a time of their own.

-- Apart from the outbox, whose slots are emptied as a whole every few minutes: what
-- is due next month must not hold a slot. A row lies here untouched until it is due;
-- then it moves, with its id, and is an effect like any other from there on.
create table {{.schema}}.outbox_due (
    due_at         timestamptz not null,
    seq            bigint not null default nextval('{{.schema}}.outbox_seq'),
    created_at     timestamptz not null default now(),
    bucket         smallint not null,
    ordered        boolean not null,
    id             uuid not null,
    topic          text not null,
    key            bytea,
    value          bytea,
    header_keys    bytea[] not null,
    header_values  bytea[] not null,
    correlation_id bytea,
    causation_id   bytea,
    primary key (due_at, seq),
    constraint outbox_due_row_is_whole check (
        bucket between 0 and 63 and topic <> '' and cardinality(header_keys) = cardinality(header_values))
);

-- Moves rows that are due into the outbox, in the order of due_at, and returns how
-- many. One transaction: a row is in one of the two tables, and by whose commit it
-- is in the outbox decides what comes before it. One mover at a time, or two could
-- put rows of one key out of order; the others are told 0. Due is told by the
-- transaction's clock, because the index cannot be searched by one that moves.
create function {{.schema}}.outbox_release(at_most int) returns int
    language plpgsql volatile as $$
declare
    moved int;
begin
    if not pg_try_advisory_xact_lock(hashtext('{{.schema_text}}'), -5) then
        return 0;
    end if;
    -- A plan made while the table is empty must not read all of it when it is full.
    perform set_config('enable_seqscan', 'off', true);
    with gone as (
        delete from {{.schema}}.outbox_due d
         using (select due_at, seq from {{.schema}}.outbox_due
                 where due_at <= now() order by due_at, seq limit at_most) n
         where d.due_at = n.due_at and d.seq = n.seq
        returning d.*)
    insert into {{.schema}}.outbox (slot, bucket, ordered, id, topic, key, value,
                                    header_keys, header_values, correlation_id, causation_id)
    select {{.schema}}.outbox_slot(clock_timestamp()), bucket, ordered, id, topic, key, value,
           header_keys, header_values, correlation_id, causation_id
      from gone
     order by due_at, seq;
    get diagnostics moved = row_count;
    return moved;
end $$;
