-- Where in the outbox a moment is: id and `at` of a row are taken together, so they rise together but for what
-- overtakes within a statement, and a search by halves over the primary key finds it in some 25 steps. The
-- outbox has no index by key: one costs every event 178 bytes of WAL (625 without it).
create function outbox_since(moment timestamptz) returns bigint
    language plpgsql
    stable
    set search_path from current
as
$$
declare
    low    bigint;
    high   bigint;
    middle bigint;
    there  record;
begin
    select id into low from outbox order by id limit 1;
    select id + 1 into high from outbox order by id desc limit 1;
    if low is null then
        return 0;
    end if;
    while low < high
        loop
            middle := low + (high - low) / 2;
            select id, at into there from outbox where id >= middle and id < high order by id limit 1;
            if there.id is null or there.at >= moment then
                high := middle;
            else
                low := there.id + 1;
            end if;
        end loop;
    return low;
end;
$$;
comment on function outbox_since(timestamptz) is
    'The first id of the outbox whose row was written at that moment or later, give or take what overtakes.';
