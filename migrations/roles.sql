-- The roles of claimq for schema {{.schema}}, to be run by a superuser, or by the
-- owner of the database with CREATEROLE, before or after the migrations and again
-- after each: what it grants is then exactly what stands here.
--
-- All four are groups that nobody logs in as. Give each program a login of its own:
--   grant {{.schema_text}}_worker to orders_service;
-- The login that migrates works as the owner, so that what it makes is the owner's:
--   grant {{.schema_text}}_owner to deployment;
--   alter role deployment set role = '{{.schema_text}}_owner';
--
--   owner     has the schema and all in it: migrations
--   worker    runs queues and the relay; claims and adds effects in its own transactions
--   operator  looks at everything and settles what is stuck: positions, claims, the
--             delay queue, dead letters; every action leaves a row in audit
--   reader    looks at everything but what messages hold: no keys, values, headers
--
-- Business tables are the business's: grant a worker what its handlers write.

do $$
declare
    role text;
begin
    foreach role in array array['owner', 'worker', 'operator', 'reader'] loop
        begin
            execute format('create role %I nologin', '{{.schema_text}}_' || role);
        exception
            -- Two that run this at once: one is answered by the name, one by its index.
            when duplicate_object or unique_violation then null;
        end;
    end loop;
    -- What follows hands objects to the owner, which only a member may do.
    if not pg_has_role(current_user, '{{.schema_text}}_owner', 'member') then
        execute format('grant {{.schema_text}}_owner to %I', current_user);
    end if;
end $$;

create schema if not exists {{.schema}} authorization {{.schema_text}}_owner;

-- Hands over what a migration made under another name.
do $$
declare
    object record;
begin
    execute 'alter schema {{.schema}} owner to {{.schema_text}}_owner';
    for object in
        select format('alter table %s owner to {{.schema_text}}_owner', c.oid::regclass) as command
          from pg_class c
         where c.relnamespace = '{{.schema}}'::regnamespace and c.relkind in ('r', 'p', 'v')
           and c.relowner <> '{{.schema_text}}_owner'::regrole
        union all
        -- A sequence that a column owns goes with its table.
        select format('alter sequence %s owner to {{.schema_text}}_owner', c.oid::regclass)
          from pg_class c
         where c.relnamespace = '{{.schema}}'::regnamespace and c.relkind = 'S'
           and c.relowner <> '{{.schema_text}}_owner'::regrole
           and not exists (select 1 from pg_depend d where d.objid = c.oid and d.deptype in ('a', 'i'))
        union all
        select format('alter routine %s owner to {{.schema_text}}_owner', p.oid::regprocedure)
          from pg_proc p
         where p.pronamespace = '{{.schema}}'::regnamespace and p.proowner <> '{{.schema_text}}_owner'::regrole
        union all
        select format('alter type %s owner to {{.schema_text}}_owner', t.oid::regtype)
          from pg_type t
         where t.typnamespace = '{{.schema}}'::regnamespace and t.typtype in ('e', 'd')
           and t.typowner <> '{{.schema_text}}_owner'::regrole
    loop
        execute object.command;
    end loop;
end $$;

-- From nothing: a right that an older script gave and this one does not is gone.
revoke all on schema {{.schema}} from public, {{.schema_text}}_worker, {{.schema_text}}_operator, {{.schema_text}}_reader;
revoke all on all tables in schema {{.schema}} from public, {{.schema_text}}_worker, {{.schema_text}}_operator, {{.schema_text}}_reader;
revoke all on all sequences in schema {{.schema}} from public, {{.schema_text}}_worker, {{.schema_text}}_operator, {{.schema_text}}_reader;
revoke all on all routines in schema {{.schema}} from public, {{.schema_text}}_worker, {{.schema_text}}_operator, {{.schema_text}}_reader;
alter default privileges for role {{.schema_text}}_owner revoke execute on routines from public;

grant usage on schema {{.schema}} to {{.schema_text}}_worker, {{.schema_text}}_operator, {{.schema_text}}_reader;

do $$
declare
    given   record;
    target  record;
    columns text;
begin
    for given in
        select * from (values
            -- table, worker, operator; TRUNCATE is for the leaves of rings, whose
            -- slots the workers empty.
            ('schema_version', 'select',                         'select'),
            ('queues',         'select, insert, update',         'select, update'),
            ('topics',         'select, insert',                 'select, insert'),
            ('queue_topics',   'select, insert',                 'select, insert, delete'),
            ('owners',         'select, insert, update',         'select, insert, update'),
            ('positions',      'select, insert, truncate',       'select, insert'),
            ('workers',        'select, insert, update, delete', 'select'),
            ('audit',          'insert',                         'select, insert'),
            ('claims',         'select, insert, update, delete, truncate', 'select, insert, update, delete'),
            ('claim_phases',   'select, insert, delete',         'select'),
            ('claim_segments', 'select, insert, update',         'select'),
            ('claim_segment_clocks', 'select, insert, update, delete', 'select'),
            ('result_slots',   'select, update',                 'select'),
            ('results',        'select, insert, update, truncate', 'select, delete'),
            ('delayed',        'select, insert, update, delete', 'select, insert, update, delete'),
            ('delayed_keys',   'select, insert, update, delete', 'select, insert, update, delete'),
            ('dead_letters',   'select, insert, update',         'select, insert, update'),
            ('replays',        'select, update',                 'select, insert, update'),
            ('replay_items',   'select, update',                 'select, insert, update'),
            ('cause_notes',    'select',                         'select, insert'),
            -- A relay that finds a restored dump writes its rows again: the delete.
            ('outbox',         'select, insert, delete, truncate', 'select, insert'),
            ('outbox_due',     'select, insert, delete',         'select, insert'),
            ('outbox_held',    'select, insert, update, delete', 'select, update, delete'),
            ('relay_windows',  'select, insert, truncate',       'select')
        ) as t (name, worker, operator)
         where to_regclass(format('{{.schema}}.%I', t.name)) is not null
    loop
        for target in
            select relid::regclass as relation from pg_partition_tree(format('{{.schema}}.%I', given.name)::regclass)
            union select format('{{.schema}}.%I', given.name)::regclass
        loop
            execute format('grant %s on %s to {{.schema_text}}_worker', given.worker, target.relation);
            execute format('grant %s on %s to {{.schema_text}}_operator', given.operator, target.relation);
            -- A reader gets every column but those that hold a message's content.
            select string_agg(quote_ident(a.attname), ', ' order by a.attnum) into columns
              from pg_attribute a
             where a.attrelid = target.relation and a.attnum > 0 and not a.attisdropped
               and not (given.name in ('delayed', 'dead_letters', 'outbox', 'outbox_due', 'outbox_held', 'results')
                        and a.attname in ('record_key', 'record_value', 'header_keys', 'header_values', 'key', 'value'));
            execute format('grant select (%s) on %s to {{.schema_text}}_reader', columns, target.relation);
        end loop;
    end loop;
end $$;

grant usage, select on all sequences in schema {{.schema}} to {{.schema_text}}_worker, {{.schema_text}}_operator;

-- Functions run with the rights of who calls them, so EXECUTE gives no right to a table.
-- What keeps the rings going is the workers' alone.
grant execute on all routines in schema {{.schema}} to {{.schema_text}}_worker;
do $$
declare
    routine record;
begin
    for routine in
        select p.oid::regprocedure as signature, p.proname as name
          from pg_proc p
         where p.pronamespace = '{{.schema}}'::regnamespace
    loop
        if routine.name not like 'rotate\_%' and routine.name not in ('relay_take', 'relay_open', 'relay_advance', 'outbox_adopt') then
            execute format('grant execute on routine %s to {{.schema_text}}_operator', routine.signature);
        end if;
        if routine.name in ('claim_part', 'claim_id', 'position_slot', 'positions_of', 'outbox_slot', 'outbox_bucket',
                            'incarnation', 'relay_row', 'relay_rows', 'key_ready_at') then
            execute format('grant execute on routine %s to {{.schema_text}}_reader', routine.signature);
        end if;
    end loop;
end $$;
