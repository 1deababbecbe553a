-- As before, but the age of a partition is that of its last row: the newest of all rows was found by
-- reading the whole partition, on the relay's own connection and within its two seconds. Ids rise
-- with time, but for what long transactions wrote, and ages here are days.
create or replace function outbox_drop_partitions(age interval) returns integer
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
                execute format('select at from %s order by id desc limit 1', part.name) into newest;
                if newest is null or newest < clock_timestamp() - age then
                    execute format('drop table %s', part.name);
                    dropped := dropped + 1;
                end if;
            end if;
        end loop;
    return dropped;
end;
$$;
