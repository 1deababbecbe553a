-- Who is alive. A stale heartbeat of a consumer that this mode runs pauses expiry (P5).
create table heartbeats (
    name text        not null,
    at   timestamptz not null default clock_timestamp(),
    constraint heartbeats_pk primary key (name)
) with (fillfactor = 50);
comment on table heartbeats is 'One row per consumer, renewed by whichever process runs it.';

-- An outage of ours: expiry paused, deadlines moved by the measured downtime when it closed.
create table outages (
    id        uuid        not null,
    reason    text        not null,
    opened_at timestamptz not null default clock_timestamp(),
    closed_at timestamptz,
    moved     bigint,
    constraint outages_pk primary key (id)
);
create unique index outages_one_open on outages ((true)) where closed_at is null;
comment on table outages is 'When expiry was paused because of us, and how many deadlines moved. Written by stock under the expiry lock.';

select outbox_make_partitions(3000000);
