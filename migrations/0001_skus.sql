-- The catalogue: what is sold, for how much and when. Written by the order service
-- (PUT /v1/skus), read by every accept. Rows live for ever: orders name them.
create table skus (
    sku                     text collate "C" not null,
    shard                   integer          not null default 0,
    unit_price_minor        bigint           not null,
    currency                text collate "C" not null,
    per_customer_limit      integer,
    opens_at                timestamptz,
    closes_at               timestamptz,
    reservation_ttl_seconds integer          not null,
    waiting_room            text             not null default 'off',
    created_at              timestamptz      not null default clock_timestamp(),
    updated_at              timestamptz      not null default clock_timestamp(),
    constraint skus_pk primary key (sku),
    constraint skus_sku_valid check (sku ~ '^[A-Z0-9_-]{1,32}$'),
    constraint skus_shard_valid check (shard between 0 and 1023),
    constraint skus_price_valid check (unit_price_minor between 0 and 9007199254740991),
    constraint skus_currency_valid check (currency ~ '^[A-Z]{3}$'),
    constraint skus_limit_positive check (per_customer_limit > 0),
    constraint skus_window_valid check (opens_at < closes_at),
    constraint skus_ttl_valid check (reservation_ttl_seconds between 1 and 86400),
    constraint skus_waiting_room_valid check (waiting_room in ('off', 'on', 'auto'))
);
comment on table skus is
    'The catalogue. Written by the order service; read by every accept. Rows live for ever.';
