-- The units. Narrow and hot: one row per SKU, locked late and sorted by every accept, settlement
-- and expiry. available = on_hand - held - sold. version rises with every commit, release,
-- adjustment and change of the catalogue, not with the accept: it orders what the gate is told.
-- limited = the SKU has a per-customer limit, said here so that it is known under the lock: the
-- catalogue joined to a locked row is as old as the statement, however long it waited.
create table stock (
    sku     text collate "C" not null,
    on_hand bigint           not null,
    held    bigint           not null default 0,
    sold    bigint           not null default 0,
    version bigint           not null default 1,
    limited boolean          not null default false,
    constraint stock_pk primary key (sku),
    constraint stock_sku_known foreign key (sku) references skus (sku),
    constraint stock_held_not_negative check (held >= 0),
    constraint stock_sold_not_negative check (sold >= 0),
    constraint stock_never_oversold check (held + sold <= on_hand),
    constraint stock_on_hand_valid check (on_hand between 0 and 1000000000000)
) with (fillfactor = 50);
comment on table stock is
    'The units of each SKU, the truth. Invariant: held + sold <= on_hand. Rows live for ever.';

-- Every change of on_hand, the opening stock included: their sum is on_hand (invariant I3).
-- request_id is the hash of who asked with which Idempotency-Key, so a repeat finds its row.
create table stock_adjustments (
    id          uuid             not null,
    request_id  uuid             not null,
    fingerprint bytea            not null,
    sku         text collate "C" not null,
    delta       bigint           not null,
    reason      text             not null,
    on_hand     bigint           not null,
    held        bigint           not null,
    sold        bigint           not null,
    version     bigint           not null,
    at          timestamptz      not null default clock_timestamp(),
    constraint stock_adjustments_pk primary key (id),
    constraint stock_adjustments_request_once unique (request_id),
    constraint stock_adjustments_sku_known foreign key (sku) references skus (sku),
    constraint stock_adjustments_reason_valid check (length(reason) between 1 and 200)
);
create index stock_adjustments_by_sku on stock_adjustments (sku, id);
comment on table stock_adjustments is
    'Every change of on_hand with its reason and the stock after it. Written by the order service. Rows live for ever.';

-- Units that a buyer holds and owns, only of SKUs with a per-customer limit (invariant I9).
create table buyer_units (
    sku         text collate "C" not null,
    shop        text collate "C" not null,
    customer_id text collate "C" not null,
    units       bigint           not null,
    constraint buyer_units_pk primary key (sku, shop, customer_id),
    constraint buyer_units_not_negative check (units >= 0)
) with (fillfactor = 70);
comment on table buyer_units is
    'Units in RESERVED and CONFIRMED orders per buyer, for SKUs with a limit. Written by accept, settle, cancel and expiry.';
