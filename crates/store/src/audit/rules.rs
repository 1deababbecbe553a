//! The rules as data. Each statement returns one text per offender, `ID: both sides`, and none when
//! the rule holds. The whole rules are in `verify/rules.rs`; these are the same, cut into what can
//! be asked cheaply.

/// Offenders of a rule that are counted at most.
pub(super) const OFFENDERS_COUNTED: usize = 1_000;

/// One rule.
pub(super) struct LiveRule {
    pub(super) id: &'static str,
    pub(super) sql: &'static str,
    /// The statement when an upstream system makes the payments, where it differs.
    pub(super) sql_upstream: Option<&'static str>,
}

const fn rule(id: &'static str, sql: &'static str) -> LiveRule {
    LiveRule {
        id,
        sql,
        sql_upstream: None,
    }
}

/// Answered by an index, or by a table that is small whatever was sold.
pub(super) const NOW: &[LiveRule] = &[
    rule(
        "I1",
        "select format('%s: held %s + sold %s > on_hand %s', sku, held, sold, on_hand)
         from stock where held < 0 or sold < 0 or held + sold > on_hand",
    ),
    rule(
        "I13",
        "select format('%s: due %s', o.id, o.reserved_until)
         from (select id, reserved_until from orders
               where status = 'RESERVED' and reserved_until < now() - interval '3 seconds'
               order by reserved_until, id limit 2000) o
         where not exists (select from outages where closed_at is null)
           and not exists (select from payments p where p.order_id = o.id
                           and p.state in ('PENDING', 'COMPLETED')
                           and o.reserved_until > now() - interval '63 seconds')",
    ),
    // Dead money that nobody has asked for is found by the walk along orders.
    LiveRule {
        id: "I15",
        sql: "select format('%s: refund requested %s, not made', r.payment_id, r.created_at)
              from refunds r
              where r.state = 'REQUESTED' and r.created_at < now() - interval '10 seconds'",
        sql_upstream: Some("select null::text where false"),
    },
    rule(
        "I17",
        "select format('%s: %s %s waits since %s', o.id, o.type, o.key, o.at)
         from outbox o
         where o.id > (select greatest(low, sent) from relay_watermark where name = 'outbox')
           and o.at < now() - interval '5 seconds'",
    ),
    LiveRule {
        id: "I21",
        sql: "select format('%s: PENDING since %s', id, created_at)
              from payments
              where state = 'PENDING' and created_at < now() - interval '90 seconds'",
        sql_upstream: Some("select null::text where false"),
    },
    rule(
        "I24",
        "select format('%s: dead letter of class %s (%s)', id, class, reason)
         from dead_letters
         where class not in ('malformed', 'unknown-version', 'contract', 'unknown-subject',
                             'conflict', 'unclassified')",
    ),
    rule(
        "I25",
        "select format('%s: %s in transaction, silent since %s', pid, application_name, state_change)
         from pg_stat_activity
         where datname = current_database() and state like 'idle in transaction%'
           and state_change < now() - interval '6 seconds'",
    ),
];

/// What live orders alone say; an index finds them.
pub(super) const HELD: &[LiveRule] = &[rule(
    "I2",
    "select format('%s: held %s in stock, %s in live orders', s.sku, s.held, coalesce(x.held, 0))
     from stock s
     left join (select l.sku, sum(l.quantity) as held
                from orders o join order_lines l on l.order_id = o.id
                where o.status = 'RESERVED' group by l.sku) x using (sku)
     where s.held <> coalesce(x.held, 0) and ($1::text[] is null or s.sku = any($1))",
)];

/// Every line of every order, of the SKUs in $1.
pub(super) const SUMS: &[LiveRule] = &[
    rule(
        "I2",
        "select format('%s: held %s, sold %s in stock; held %s, sold %s in orders', s.sku,
                       s.held, s.sold, coalesce(x.held, 0), coalesce(x.sold, 0))
         from stock s
         left join (select l.sku,
                           sum(l.quantity) filter (where o.status = 'RESERVED') as held,
                           sum(l.quantity) filter (where o.status = 'CONFIRMED') as sold
                    from order_lines l join orders o on o.id = l.order_id
                    where $1::text[] is null or l.sku = any($1)
                    group by l.sku) x using (sku)
         where (s.held <> coalesce(x.held, 0) or s.sold <> coalesce(x.sold, 0))
           and ($1::text[] is null or s.sku = any($1))",
    ),
    rule(
        "I3",
        "select format('%s: on_hand %s in stock; %s by adjustments', s.sku, s.on_hand,
                       coalesce(a.sum, 0))
         from stock s
         left join (select sku, sum(delta) as sum from stock_adjustments
                    where $1::text[] is null or sku = any($1) group by sku) a using (sku)
         where s.on_hand <> coalesce(a.sum, 0) and ($1::text[] is null or s.sku = any($1))",
    ),
    rule(
        "I3",
        "select format('%s: held %s, sold %s in stock; held %s, sold %s by movements', s.sku,
                       s.held, s.sold, coalesce(m.held, 0), coalesce(m.sold, 0))
         from stock s
         left join (select sku, sum(held) as held, sum(sold) as sold from stock_movements
                    where $1::text[] is null or sku = any($1) group by sku) m using (sku)
         where (s.held <> coalesce(m.held, 0) or s.sold <> coalesce(m.sold, 0))
           and ($1::text[] is null or s.sku = any($1))",
    ),
];

/// Of each order with $1 < id <= $2. Other tables are asked per order: the planner takes the range for
/// one row, and a join with a sum over it would sum once per order.
pub(super) const ORDERS: &[LiveRule] = &[
    rule(
        "I2",
        "select format('%s: total %s, lines %s', o.id, o.total_minor, coalesce(x.sum, 0))
         from orders o
         cross join lateral (select sum(quantity * unit_price_minor) as sum from order_lines
                             where order_id = o.id) x
         where o.id > $1 and o.id <= $2 and x.sum is distinct from o.total_minor",
    ),
    rule(
        "I4",
        "select format('%s: %s ends, versions up to %s in %s rows, %s unlawful', order_id, ends,
                       top, rows, unlawful)
         from (select h.order_id, count(*) as rows, max(h.version) as top,
                      count(*) filter (where h.to_status <> 'RESERVED') as ends,
                      count(*) filter (where a.to_status is null) as unlawful
               from order_history h
               left join allowed_transitions a
                      on a.from_status is not distinct from h.from_status
                     and a.to_status = h.to_status
               where h.order_id > $1 and h.order_id <= $2 group by h.order_id) x
         where ends > 1 or top <> rows or unlawful > 0",
    ),
    rule(
        "I4",
        "select format('%s: %s version %s; history says %s version %s', o.id, o.status, o.version,
                       coalesce(h.to_status, 'nothing'), coalesce(h.version, 0))
         from orders o
         left join lateral (select to_status, version from order_history
                            where order_id = o.id order by version desc limit 1) h on true
         where o.id > $1 and o.id <= $2
           and (h.to_status is distinct from o.status or h.version is distinct from o.version)",
    ),
    rule(
        "I5",
        "select format('%s: %s with %s applied payments', o.id, o.status, coalesce(p.n, 0))
         from orders o
         cross join lateral (select count(*) as n from payments
                             where applied and order_id = o.id) p
         where o.id > $1 and o.id <= $2
           and coalesce(p.n, 0) <> case when o.status = 'CONFIRMED' then 1 else 0 end",
    ),
    rule(
        "I6",
        "select format('%s: ended %s before %s', id, ended_at, reserved_until)
         from orders
         where id > $1 and id <= $2 and status = 'EXPIRED' and ended_at < reserved_until",
    ),
    rule(
        "I7",
        "select format('%s: %s times %s', order_id, count(*), cause)
         from order_history where order_id > $1 and order_id <= $2
         group by order_id, cause having count(*) > 1",
    ),
    rule(
        "I8",
        "select format('%s: key %s names %s', o.id, o.hold_id, coalesce(i.order_id::text, 'nothing'))
         from orders o left join idempotency i on i.hold_id = o.hold_id
         where o.id > $1 and o.id <= $2
           and (o.ended_at is null or o.ended_at > now() - interval '25 hours')
           and i.order_id is distinct from o.id",
    ),
    rule(
        "I9",
        "select format('%s: %s of %s/%s not counted', o.id, l.sku, o.shop, o.customer_id)
         from orders o
         join order_lines l on l.order_id = o.id
         join skus k on k.sku = l.sku and k.per_customer_limit is not null
         left join buyer_units b
                on b.sku = l.sku and b.shop = o.shop and b.customer_id = o.customer_id
         where o.id > $1 and o.id <= $2 and o.status in ('RESERVED', 'CONFIRMED')
           and coalesce(b.units, 0) < l.quantity",
    ),
    LiveRule {
        id: "I15",
        sql: "select format('%s: captured %s, refunded %s, applied %s, order %s', p.id,
                            p.captured_minor, p.refunded_minor, p.applied, p.order_id)
              from payments p left join orders o on o.id = p.order_id
              where p.order_id > $1 and p.order_id <= $2
                and p.captured_minor > 0 and p.updated_at < now() - interval '10 seconds'
                and not (p.applied and o.status is not distinct from 'CONFIRMED')
                and p.refunded_minor < p.captured_minor",
        sql_upstream: Some(
            "select format('%s: captured %s and no refund requested, order %s', p.id,
                           p.captured_minor, p.order_id)
             from payments p left join orders o on o.id = p.order_id
             where p.order_id > $1 and p.order_id <= $2
               and p.captured_minor > 0 and p.updated_at < now() - interval '10 seconds'
               and not (p.applied and o.status is not distinct from 'CONFIRMED')
               and not exists (select from refunds r where r.payment_id = p.id)",
        ),
    },
    LiveRule {
        id: "I26",
        sql: "select format('%s: %s, total %s, kept %s', o.id, o.status, o.total_minor,
                            coalesce(p.kept, 0))
              from orders o
              cross join lateral (select sum(captured_minor - refunded_minor) as kept,
                                         max(updated_at) as at
                                  from payments where order_id = o.id) p
              where o.id > $1 and o.id <= $2
                and coalesce(p.kept, 0) <>
                    case when o.status = 'CONFIRMED' then o.total_minor else 0 end
                and coalesce(p.at, o.created_at) < now() - interval '10 seconds'
                and o.status <> 'RESERVED'",
        sql_upstream: Some(
            "select format('%s: %s, total %s, kept %s', o.id, o.status, o.total_minor,
                           coalesce(p.kept, 0))
             from orders o
             cross join lateral (select max(q.updated_at) as at,
                                        sum(q.captured_minor - greatest(q.refunded_minor,
                                            coalesce(r.amount_minor, 0))) as kept
                                 from payments q left join refunds r on r.payment_id = q.id
                                 where q.order_id = o.id) p
             where o.id > $1 and o.id <= $2
               and coalesce(p.kept, 0) <>
                   case when o.status = 'CONFIRMED' then o.total_minor else 0 end
               and coalesce(p.at, o.created_at) < now() - interval '10 seconds'
               and o.status <> 'RESERVED'",
        ),
    },
];

/// I8 the other way: the $2 keys after $1, each with its complaint or null.
pub(super) const KEYS: &str = "
    select i.hold_id,
           case when i.order_id is not null and (o.id is null or o.hold_id <> i.hold_id)
               then format('%s: order %s does not exist or has hold %s', i.hold_id, i.order_id,
                           coalesce(o.hold_id::text, 'none')) end
    from (select hold_id, order_id from idempotency where hold_id > $1
          order by hold_id limit $2) i
    left join orders o on o.id = i.order_id
    order by i.hold_id";

/// I9: the $4 buyers after ($1, $2, $3), each with its complaint or null.
pub(super) const BUYERS: &str = "
    select b.sku, b.shop, b.customer_id,
           case when k.per_customer_limit is not null and b.units <> x.units
               then format('%s %s/%s: %s counted, %s in orders', b.sku, b.shop, b.customer_id,
                           b.units, x.units) end
    from (select * from buyer_units where (sku, shop, customer_id) > ($1, $2, $3)
          order by sku, shop, customer_id limit $4) b
    join skus k on k.sku = b.sku
    cross join lateral (
        select coalesce(sum(l.quantity), 0)::bigint as units
        from orders o join order_lines l on l.order_id = o.id and l.sku = b.sku
        where o.shop = b.shop and o.customer_id = b.customer_id
          and o.status in ('RESERVED', 'CONFIRMED')) x
    order by b.sku, b.shop, b.customer_id";

/// Rows of stock written since the xid $2 (all without one), with the newest event above id $1.
/// A row whose version in sight was written before that snapshot's xmin can't have changed since.
pub(super) const STOCK_MOVES: &str = "
    select pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
           (select coalesce(max(id), 0) from outbox),
           s.sku, s.on_hand, s.sold, e.on_hand, e.sold
    from (values (1)) as one
    left join stock s
           on $2::bigint is null or age(s.xmin) <= age(($2 & 4294967295)::text::xid)
    left join (select distinct on (o.key) o.key,
                      (o.data::jsonb ->> 'on_hand')::bigint as on_hand,
                      (o.data::jsonb ->> 'sold')::bigint as sold
               from outbox o
               where o.id > $1
                 and o.type in ('STOCK_COMMITTED', 'STOCK_RELEASED', 'STOCK_ADJUSTED')
               order by o.key, o.aggregate_version desc, o.id desc) e on e.key = s.sku";

/// I18: of the $2 rows of the outbox after $1 that were published 15 s ago, those that the consumer
/// that must handle them has neither handled nor set aside, and that the relay has not parked: what
/// can't be sent would be parked again; and how far the look went. Inbox rows are pruned after 30
/// days.
pub(super) const DELIVERIES: &str = "
    with page as materialized (
        select o.id, o.event_id, o.type, o.key, o.source, o.at,
               case when o.type in ('ORDER_RESERVED', 'REFUND_REQUESTED') then 'payment'
                    when o.type in ('PAYMENT_COMPLETED', 'PAYMENT_FAILED', 'PAYMENT_REFUNDED')
                        then 'stock' end as consumer
        from outbox o
        where o.id > $1 and o.id <= (select low from relay_watermark where name = 'outbox')
        order by o.id limit $2),
    old as materialized (
        select * from page
        where id < coalesce((select min(id) from page where at >= now() - interval '15 seconds'),
                            9223372036854775807))
    select (select max(id) from old), o.id, o.event_id, o.consumer, o.type, o.key
    from (values (1)) as one
    left join old o
           on o.consumer = any($3) and o.at > now() - interval '29 days'
          and not exists (select from inbox i where i.consumer = o.consumer
                          and i.source = o.source and i.event_id = o.event_id::text)
          and not exists (select from dead_letters d where d.consumer = o.consumer
                          and d.event_id = o.event_id::text)
          and not exists (select from parked_events p where p.event_id = o.event_id)";

/// Of the rows of the outbox in $1, each with its consumer in $2, those that are still not handled.
pub(super) const STILL_LOST: &str = "
    select o.id
    from unnest($1::bigint[], $2::text[]) as k (id, consumer)
    join outbox o on o.id = k.id
    where not exists (select from inbox i where i.consumer = k.consumer
                      and i.source = o.source and i.event_id = o.event_id::text)
      and not exists (select from dead_letters d where d.consumer = k.consumer
                      and d.event_id = o.event_id::text)
      and not exists (select from parked_events p where p.event_id = o.event_id)";
