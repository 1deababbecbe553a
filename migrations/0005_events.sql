-- Events to be published, written with the state change. id comes from a sequence with cache 1;
-- the relay reads by id with gaps (P8). Partitioned by ranges of id: partitions are made ahead and
-- dropped when wholly published and old; no row is ever deleted.
create sequence outbox_id_seq as bigint cache 1;
create table outbox (
    id                bigint           not null default nextval('outbox_id_seq'),
    event_id          uuid             not null,
    topic             text collate "C" not null,
    key               text collate "C" not null,
    type              text collate "C" not null,
    source            text collate "C" not null,
    aggregate_version bigint           not null,
    data              text             not null,
    headers           jsonb,
    at                timestamptz      not null default clock_timestamp(),
    constraint outbox_pk primary key (id)
) partition by range (id);
alter sequence outbox_id_seq owned by outbox.id;
comment on table outbox is
    'Events in the transaction of their cause. headers: extra record headers (traceparent, dlq_*). Written by every use case; read by the relay.';

-- Makes partitions of 1,000,000 ids until `ahead` ids above the sequence are covered.
create function outbox_make_partitions(ahead bigint) returns integer
    language plpgsql
    set search_path from current
as
$$
declare
    span constant bigint := 1000000;
    top           bigint;
    low           bigint;
    made          integer := 0;
begin
    perform pg_advisory_xact_lock(hashtext('holdfast.outbox.partitions'));
    select last_value + ahead into top from outbox_id_seq;
    for low in select generate_series(0, top / span) * span
        loop
            if to_regclass(format('outbox_p%s', low / span)) is null
                and low + span > (select last_value from outbox_id_seq) then
                -- Not "create .. partition of": that would stop every writer of the outbox.
                execute format('create table outbox_p%s (like outbox including defaults)', low / span);
                execute format('alter table outbox attach partition outbox_p%s for values from (%s) to (%s)',
                               low / span, low, low + span);
                made := made + 1;
            end if;
        end loop;
    return made;
end;
$$;
comment on function outbox_make_partitions(bigint) is 'Makes outbox partitions ahead of the sequence; returns how many.';

-- Drops partitions that lie wholly below the watermark and whose newest row is older than `age`.
-- A drop stops every writer of the outbox while it waits for readers, hence the short time-out:
-- 55P03 means try again later.
create function outbox_drop_partitions(age interval) returns integer
    language plpgsql
    set search_path from current
    set lock_timeout = '100ms'
as
$$
declare
    span constant bigint := 1000000;
    part          record;
    newest        timestamptz;
    published     bigint;
    dropped       integer := 0;
begin
    perform pg_advisory_xact_lock(hashtext('holdfast.outbox.partitions'));
    select low into published from relay_watermark where name = 'outbox';
    for part in select c.oid::regclass::text as name, substring(c.relname from 'outbox_p(\d+)')::bigint as number
                from pg_inherits i
                         join pg_class c on c.oid = i.inhrelid
                where i.inhparent = 'outbox'::regclass
        loop
            if (part.number + 1) * span - 1 <= published then
                execute format('select max(at) from %s', part.name) into newest;
                if newest is null or newest < clock_timestamp() - age then
                    execute format('drop table %s', part.name);
                    dropped := dropped + 1;
                end if;
            end if;
        end loop;
    return dropped;
end;
$$;
comment on function outbox_drop_partitions(interval) is 'Drops outbox partitions that are published and old; returns how many.';

-- How far the relay has published: everything up to low is acknowledged, parked or a closed gap.
create table relay_watermark (
    name     text        not null,
    low      bigint      not null,
    moved_at timestamptz not null default clock_timestamp(),
    constraint relay_watermark_pk primary key (name)
);
comment on table relay_watermark is 'One row: what a new relay leader starts from. Moved by the leader, on the connection that holds its lock.';
insert into relay_watermark (name, low) values ('outbox', 0);

create table parked_events (
    id        bigint      not null,
    event_id  uuid        not null,
    reason    text        not null,
    parked_at timestamptz not null default clock_timestamp(),
    constraint parked_events_pk primary key (id)
);
comment on table parked_events is 'Outbox rows that can never be sent (too large, not encodable) and were passed. Written by the relay.';

-- An event is (source, event_id). A row is written in the transaction of the event's effect.
create table inbox (
    consumer text collate "C" not null,
    source   text collate "C" not null,
    event_id text collate "C" not null,
    at       timestamptz      not null default clock_timestamp(),
    constraint inbox_pk primary key (consumer, source, event_id)
);
create index inbox_by_time on inbox using brin (at) with (pages_per_range = 32);
comment on table inbox is
    'Events that a consumer has handled. Rows outlive the topic''s retention and the redrive horizon.';

create table dead_letters (
    id             uuid             not null,
    consumer       text collate "C" not null,
    topic          text collate "C" not null,
    partition      integer          not null,
    "offset"       bigint           not null,
    key            bytea,
    type           text,
    source         text,
    event_id       text,
    payload        bytea,
    payload_sha256 bytea            not null,
    headers        jsonb            not null,
    reason         text             not null,
    class          text             not null,
    attempts       integer          not null,
    first_seen     timestamptz      not null,
    dlq_topic      text collate "C" not null,
    at             timestamptz      not null default clock_timestamp(),
    state          text             not null default 'OPEN',
    constraint dead_letters_pk primary key (id),
    constraint dead_letters_once unique (consumer, topic, partition, "offset", payload_sha256),
    constraint dead_letters_state_valid check (state in ('OPEN', 'REDRIVEN'))
);
comment on table dead_letters is
    'Records that a consumer set aside, the truth (the DLQ topic is a copy). Written by the consumer runner with the inbox row.';
