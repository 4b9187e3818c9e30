-- The roll of the claims' segments: what it keeps between its steps.

-- When nobody could insert into the segment any more and its clocks were taken;
-- null: still written, or empty. opened is now the moment from which on every claim
-- stands in this segment or in a newer one.
alter table {{.schema}}.claim_segments add column closed timestamptz;

-- Since when the segment is the only one that is inserted into: its age, which says
-- when the next roll comes. opened can lie before it.
alter table {{.schema}}.claim_segments add column current_since timestamptz;
update {{.schema}}.claim_segments set current_since = opened;

-- How new a closed segment's claims are, by both clocks. A closed segment changes by
-- DELETE only, so these are bounds for as long as it stands, and whether it may be
-- forgotten is a look at a few rows and not a scan.
create table {{.schema}}.claim_segment_clocks (
    segment       smallint not null references {{.schema}}.claim_segments,
    queue         int not null,
    claims        bigint not null,
    newest_record timestamptz not null,
    newest_claim  timestamptz not null,
    primary key (segment, queue)
);

-- Which slot results are written to. It belongs to the phase, so that the lock of
-- the phase tells when a slot is written no more.
alter table {{.schema}}.claim_phases
    add column result_slot smallint not null default 0 check (result_slot between 0 and 2);

create table {{.schema}}.result_slots (
    slot          smallint primary key check (slot between 0 and 2),
    opened        timestamptz,
    closed        timestamptz,  -- when it was written no more; null: still written, or empty
    newest_expiry timestamptz,  -- taken then: the slot is emptied after it
    longest       interval      -- taken then: the longest lifetime of a result in it
);
insert into {{.schema}}.result_slots (slot, opened) values (0, now()), (1, null), (2, null);
