-- What is published, beside what a new relay leader starts from. A row that may still appear (a transaction
-- that runs on has taken its id, or might have) holds `low` back for as long as that lasts, and all that
-- came after it and is published long since looked as if it waited for the relay: orders were refused for
-- it, and expiry paused. Small: one row.
alter table relay_watermark add column sent bigint not null default 0;
comment on column relay_watermark.sent is
    'Every row up to it that the relay has seen is acknowledged or parked; never below low in effect (0 until a relay has written it).';
