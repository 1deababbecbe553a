-- An outage that begins while deadlines are still being moved by the one before may be over when the last
-- has moved; its time is the buyers' too.
alter table outages add column again_since timestamptz;
comment on column outages.again_since is
    'Since when another outage is under way that began while deadlines were being moved by this one; null: none.';
