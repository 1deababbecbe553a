-- Money. A PENDING row is written by our payment service before it charges; in upstream mode, and
-- for news of payments that we did not make, the stock service records what the event says.
-- No foreign key to orders: news may name an order that does not exist.
create table payments (
    id              text collate "C" not null,
    order_id        uuid             not null,
    gateway_key     text collate "C",
    state           text collate "C" not null,
    amount_minor    bigint           not null,
    currency        text collate "C" not null,
    method          text collate "C" not null,
    captured_minor  bigint           not null default 0,
    refunded_minor  bigint           not null default 0,
    applied         boolean          not null default false,
    attempts        integer          not null default 0,
    next_attempt_at timestamptz,
    reason_code     text,
    flagged         text,
    version         bigint           not null default 1,
    created_at      timestamptz      not null default clock_timestamp(),
    updated_at      timestamptz      not null default clock_timestamp(),
    constraint payments_pk primary key (id),
    constraint payments_gateway_key_once unique (gateway_key),
    constraint payments_state_valid check (state in ('PENDING', 'COMPLETED', 'FAILED', 'VOIDED')),
    constraint payments_amounts_valid check (
        amount_minor >= 0 and captured_minor >= 0 and refunded_minor >= 0
        and refunded_minor <= captured_minor),
    constraint payments_pending_scheduled check ((state = 'PENDING') = (next_attempt_at is not null))
) with (fillfactor = 80);
create unique index payments_one_applied on payments (order_id) where applied;
create index payments_by_order on payments (order_id);
create index payments_pending on payments (next_attempt_at) where state = 'PENDING';
comment on table payments is
    'Payments, ours and those that events told us of. Invariant: at most one applied per order. Written by payment (charge) and stock (apply).';

-- One refund per payment, written in the transaction that finds the need, asked again with
-- backing off until PAYMENT_REFUNDED closes it. EXTERNAL: money went back that we had not asked for.
create table refunds (
    payment_id   text collate "C" not null,
    refund_key   text collate "C" not null,
    order_id     uuid             not null,
    amount_minor bigint           not null,
    currency     text collate "C" not null,
    reason       text             not null,
    state        text collate "C" not null,
    asks         integer          not null default 1,
    next_ask_at  timestamptz,
    created_at   timestamptz      not null default clock_timestamp(),
    closed_at    timestamptz,
    constraint refunds_pk primary key (payment_id),
    constraint refunds_key_once unique (refund_key),
    constraint refunds_state_valid check (state in ('REQUESTED', 'CLOSED', 'EXTERNAL')),
    constraint refunds_open_scheduled check ((state = 'REQUESTED') = (next_ask_at is not null))
);
create index refunds_due on refunds (next_ask_at) where state = 'REQUESTED';
comment on table refunds is
    'Money that is to go back, one row per payment. Written by stock; closed by PAYMENT_REFUNDED.';

-- What our payment service does about a refund request: PENDING until the gateway has executed it.
-- REFUSED: not a capture of ours, or more than was captured; reason_code says which, people must
-- look, and a repeat of the request is examined anew. Once a key is DONE it stays so.
create table refund_executions (
    refund_key      text collate "C" not null,
    payment_id      text collate "C" not null,
    order_id        uuid             not null,
    amount_minor    bigint           not null,
    currency        text collate "C" not null,
    state           text collate "C" not null,
    attempts        integer          not null default 0,
    next_attempt_at timestamptz,
    reason_code     text,
    created_at      timestamptz      not null default clock_timestamp(),
    updated_at      timestamptz      not null default clock_timestamp(),
    constraint refund_executions_pk primary key (refund_key),
    constraint refund_executions_state_valid check (state in ('PENDING', 'DONE', 'REFUSED')),
    constraint refund_executions_refusal_explained check ((state = 'REFUSED') = (reason_code is not null)),
    constraint refund_executions_scheduled check ((state = 'PENDING') = (next_attempt_at is not null))
);
create index refund_executions_due on refund_executions (next_attempt_at) where state = 'PENDING';
comment on table refund_executions is
    'Refunds that our payment service executes, once per refund_key. Written by payment alone.';
