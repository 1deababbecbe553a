-- A deadline moves to a later one (an outage of ours, a payment that begins), but a repeat of the
-- request is answered with the first answer, byte for byte. Null while the deadline never moved, so
-- that an accept writes nothing more.
alter table orders add column first_until timestamptz;
comment on column orders.first_until is
    'The deadline that the first answer named, once it has moved; null before. Never changed again.';
