-- One row per key that was used: it decides between twins. hold_id is the hash of
-- (shop, route, key) or of (ce_source, ce_id). Exactly one of order_id and rejected is set;
-- rejected only for requests by Kafka (a refusal by HTTP stores nothing). Pruned 25 h after the
-- order ended, never while it is RESERVED; rows of Kafka requests outlive the topic's retention.
create table idempotency (
    hold_id     uuid        not null,
    fingerprint bytea       not null,
    order_id    uuid,
    rejected    text,
    detail      text,
    by_kafka    boolean     not null default false,
    created_at  timestamptz not null default clock_timestamp(),
    constraint idempotency_pk primary key (hold_id),
    constraint idempotency_one_answer check ((order_id is null) <> (rejected is null)),
    constraint idempotency_rejected_by_kafka check (rejected is null or by_kafka)
);
-- For the pruner: rows come in time order, so a range index of a few pages finds the old ones.
create index idempotency_by_time on idempotency using brin (created_at) with (pages_per_range = 32);
comment on table idempotency is
    'One row per used key; its primary key decides between twins. Written by the accept. Pruned 25 h after the order ended.';

-- id is a UUID version 7: the primary key grows at one end. version starts at 1 and rises by one
-- per transition. Written by accept, settle, cancel and expiry; rows live as long as the shop needs.
create table orders (
    id             uuid             not null,
    hold_id        uuid             not null,
    shop           text collate "C" not null,
    customer_id    text collate "C" not null,
    status         text collate "C" not null,
    version        bigint           not null default 1,
    total_minor    bigint           not null,
    currency       text collate "C" not null,
    payment_method text collate "C" not null,
    reserved_until timestamptz      not null,
    created_at     timestamptz      not null,
    ended_at       timestamptz,
    end_reason     text,
    constraint orders_pk primary key (id),
    constraint orders_status_valid check (status in ('RESERVED', 'CONFIRMED', 'CANCELED', 'EXPIRED')),
    constraint orders_version_positive check (version >= 1),
    constraint orders_total_valid check (total_minor between 0 and 9007199254740991),
    constraint orders_end_complete check ((status = 'RESERVED') = (ended_at is null))
) with (fillfactor = 85);
create index orders_due on orders (reserved_until, id) where status = 'RESERVED';
create index orders_by_customer on orders (shop, customer_id, id);
comment on table orders is
    'The orders, the truth. Invariant: one end each, version = 1 + transitions. Written by accept, settle, cancel and expiry.';

create table order_lines (
    order_id         uuid             not null,
    sku              text collate "C" not null,
    quantity         integer          not null,
    unit_price_minor bigint           not null,
    constraint order_lines_pk primary key (order_id, sku),
    constraint order_lines_quantity_valid check (quantity between 1 and 1000)
);
comment on table order_lines is
    'What an order is for, one row per SKU, never changed. No foreign key: the accept writes order and lines in one statement.';

-- One row per version of an order; cause names what did it: accept, payment:ID, payment-failed:ID,
-- cancel, deadline.
create table order_history (
    order_id    uuid             not null,
    version     bigint           not null,
    from_status text collate "C",
    to_status   text collate "C" not null,
    cause       text             not null,
    at          timestamptz      not null,
    constraint order_history_pk primary key (order_id, version)
);
comment on table order_history is
    'Each transition of each order. The primary key lets no version happen twice. Append-only.';

-- The lawful transitions, for the invariant checks and for people.
create table allowed_transitions (
    from_status text collate "C",
    to_status   text collate "C" not null,
    constraint allowed_transitions_once unique nulls not distinct (from_status, to_status)
);
comment on table allowed_transitions is 'The order state machine as data; a test compares it with domain::order.';
insert into allowed_transitions values
    (null, 'RESERVED'),
    ('RESERVED', 'CONFIRMED'),
    ('RESERVED', 'CANCELED'),
    ('RESERVED', 'EXPIRED');

-- Stock as movements, derived: no stock row per order exists anywhere.
create view stock_movements as
select l.sku,
       h.order_id,
       h.at,
       h.cause,
       case h.to_status when 'RESERVED' then l.quantity else -l.quantity end as held,
       case h.to_status when 'CONFIRMED' then l.quantity else 0 end          as sold
from order_history h
         join order_lines l using (order_id);
comment on view stock_movements is 'How held and sold moved: history joined to lines. Sums to the stock row (invariant I3).';
