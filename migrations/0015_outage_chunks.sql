-- The deadlines of an outage that is over move in chunks, each a transaction of its own: with a million
-- open orders one statement would run into its time-out. ended_at is noted with the first chunk,
-- closed_at, the same moment, with the last; until then the outage is open and nothing expires. An
-- order carries the outage that it was moved for, so that no repeat moves it twice; null costs an
-- accept nothing.
alter table outages add column ended_at timestamptz;
update outages set ended_at = closed_at;
alter table outages
    add constraint outages_closed_as_ended check (closed_at is null or closed_at = ended_at);
comment on column outages.ended_at is
    'When all was well again; deadlines are being moved while closed_at is null.';
alter table orders add column moved_for uuid;
comment on column orders.moved_for is
    'The last outage that the deadline was moved for; null: none.';
