//! The rules as data: each statement returns one text per offender, and none when the rule holds.

/// One rule. Statements read history as a whole: they belong to verification, not to the hot path.
pub(super) struct Rule {
    pub(super) id: &'static str,
    pub(super) rule: &'static str,
    /// What both sides show when the rule holds.
    pub(super) right: &'static str,
    pub(super) sql: &'static str,
    /// The statement when an upstream system makes the payments, where it differs.
    pub(super) sql_upstream: Option<&'static str>,
}

const fn rule(
    id: &'static str,
    rule: &'static str,
    right: &'static str,
    sql: &'static str,
) -> Rule {
    Rule {
        id,
        rule,
        right,
        sql,
        sql_upstream: None,
    }
}

pub(super) const ALL: &[Rule] = &[
    rule(
        "I1",
        "no SKU is oversold: 0 <= held, 0 <= sold, held + sold <= on_hand",
        "0 oversold",
        "select format('%s: held %s + sold %s > on_hand %s', sku, held, sold, on_hand)
         from stock where held < 0 or sold < 0 or held + sold > on_hand order by sku",
    ),
    rule(
        "I2",
        "held and sold of a SKU equal the units of its RESERVED and CONFIRMED orders",
        "stock = orders",
        "select format('%s: held %s, sold %s in stock; held %s, sold %s in orders', s.sku,
                       s.held, s.sold, coalesce(x.held, 0), coalesce(x.sold, 0))
         from stock s
         left join (select l.sku,
                           sum(l.quantity) filter (where o.status = 'RESERVED') as held,
                           sum(l.quantity) filter (where o.status = 'CONFIRMED') as sold
                    from order_lines l join orders o on o.id = l.order_id group by l.sku) x
                using (sku)
         where s.held <> coalesce(x.held, 0) or s.sold <> coalesce(x.sold, 0) order by s.sku",
    ),
    rule(
        "I2",
        "every order has lines, and its total is the sum of them",
        "total = lines",
        "select format('%s: total %s, lines %s', o.id, o.total_minor, coalesce(x.sum, 0))
         from orders o
         left join (select order_id, sum(quantity * unit_price_minor) as sum
                    from order_lines group by order_id) x on x.order_id = o.id
         where x.sum is distinct from o.total_minor order by o.id",
    ),
    rule(
        "I3",
        "on_hand of a SKU equals the sum of its adjustments, the opening one included",
        "stock = adjustments",
        "select format('%s: on_hand %s in stock; %s by adjustments', s.sku, s.on_hand,
                       coalesce(a.sum, 0))
         from stock s
         left join (select sku, sum(delta) as sum from stock_adjustments group by sku) a using (sku)
         where s.on_hand <> coalesce(a.sum, 0) order by s.sku",
    ),
    rule(
        "I3",
        "held and sold of a SKU equal the sums of its movements",
        "stock = movements",
        "select format('%s: held %s, sold %s in stock; held %s, sold %s by movements', s.sku,
                       s.held, s.sold, coalesce(m.held, 0), coalesce(m.sold, 0))
         from stock s
         left join (select sku, sum(held) as held, sum(sold) as sold
                    from stock_movements group by sku) m using (sku)
         where s.held <> coalesce(m.held, 0) or s.sold <> coalesce(m.sold, 0) order by s.sku",
    ),
    rule(
        "I4",
        "an order ends at most once, by lawful transitions, without a gap in its versions",
        "1 end, lawful, no gap",
        "select format('%s: %s ends, versions up to %s in %s rows, %s unlawful', order_id, ends,
                       top, rows, unlawful)
         from (select h.order_id, count(*) as rows, max(h.version) as top,
                      count(*) filter (where h.to_status <> 'RESERVED') as ends,
                      count(*) filter (where not exists (
                          select from allowed_transitions a
                          where a.from_status is not distinct from h.from_status
                            and a.to_status = h.to_status)) as unlawful
               from order_history h group by h.order_id) x
         where ends > 1 or top <> rows or unlawful > 0 order by order_id",
    ),
    rule(
        "I4",
        "an order's status and version are those of its last history row",
        "order = history",
        "select format('%s: %s version %s; history says %s version %s', o.id, o.status, o.version,
                       coalesce(h.to_status, 'nothing'), coalesce(h.version, 0))
         from orders o
         left join lateral (select to_status, version from order_history h
                            where h.order_id = o.id order by version desc limit 1) h on true
         where h.to_status is distinct from o.status or h.version is distinct from o.version
         order by o.id",
    ),
    rule(
        "I5",
        "an order has at most one applied payment, and has one exactly when it is CONFIRMED",
        "1 applied per confirmed",
        "select format('%s: %s with %s applied payments', o.id, o.status, coalesce(p.n, 0))
         from orders o
         left join (select order_id, count(*) as n from payments where applied group by order_id) p
                on p.order_id = o.id
         where coalesce(p.n, 0) <> case when o.status = 'CONFIRMED' then 1 else 0 end
         order by o.id",
    ),
    rule(
        "I6",
        "no order expired before its deadline",
        "0 early",
        "select format('%s: ended %s before %s', id, ended_at, reserved_until)
         from orders where status = 'EXPIRED' and ended_at < reserved_until order by id",
    ),
    rule(
        "I7",
        "one cause has at most one effect on an order",
        "1 effect per cause",
        "select format('%s: %s times %s', order_id, count(*), cause)
         from order_history group by order_id, cause having count(*) > 1 order by order_id",
    ),
    rule(
        "I8",
        "every key has its order or is a stored rejection of a Kafka request, never both",
        "key = order",
        "select format('%s: order %s does not exist or has hold %s', i.hold_id, i.order_id,
                       coalesce(o.hold_id::text, 'none'))
         from idempotency i left join orders o on o.id = i.order_id
         where i.order_id is not null and (o.id is null or o.hold_id <> i.hold_id)
         order by i.hold_id",
    ),
    rule(
        "I8",
        "every order's key has its row until 25 h after the order's end, and names it",
        "order = key",
        "select format('%s: key %s names %s', o.id, o.hold_id, coalesce(i.order_id::text, 'nothing'))
         from orders o left join idempotency i on i.hold_id = o.hold_id
         where (o.ended_at is null or o.ended_at > now() - interval '25 hours')
           and i.order_id is distinct from o.id order by o.id",
    ),
    rule(
        "I9",
        "units counted per buyer of a limited SKU equal those of the buyer's live and confirmed orders",
        "buyer units = orders",
        "select format('%s %s/%s: %s counted, %s in orders', coalesce(b.sku, x.sku),
                       coalesce(b.shop, x.shop), coalesce(b.customer_id, x.customer_id),
                       coalesce(b.units, 0), coalesce(x.units, 0))
         from buyer_units b
         full join (select l.sku, o.shop, o.customer_id, sum(l.quantity) as units
                    from orders o join order_lines l on l.order_id = o.id
                    join skus s on s.sku = l.sku and s.per_customer_limit is not null
                    where o.status in ('RESERVED', 'CONFIRMED')
                    group by l.sku, o.shop, o.customer_id) x
              on (b.sku, b.shop, b.customer_id) = (x.sku, x.shop, x.customer_id)
         where coalesce(b.units, 0) <> coalesce(x.units, 0)
           and exists (select from skus s where s.sku = coalesce(b.sku, x.sku)
                       and s.per_customer_limit is not null)
         order by 1",
    ),
    rule(
        "I13",
        "no order is overdue by more than 3 s (by the grace, while a payment is pending; not while expiry is paused)",
        "0 overdue",
        "select format('%s: due %s', o.id, o.reserved_until)
         from orders o
         where o.status = 'RESERVED' and o.reserved_until < now() - interval '3 seconds'
           and not exists (select from outages where closed_at is null)
           and not exists (select from payments p where p.order_id = o.id
                           and p.state in ('PENDING', 'COMPLETED')
                           and o.reserved_until > now() - interval '63 seconds')
         order by o.id",
    ),
    Rule {
        id: "I15",
        rule: "money that belongs to no confirmed order is refunded within 10 s",
        right: "0 dead captures",
        sql: "select format('%s: captured %s, refunded %s, applied %s, order %s', p.id,
                            p.captured_minor, p.refunded_minor, p.applied, p.order_id)
              from payments p left join orders o on o.id = p.order_id
              where p.captured_minor > 0 and p.updated_at < now() - interval '10 seconds'
                and not (p.applied and o.status = 'CONFIRMED')
                and p.refunded_minor < p.captured_minor order by p.id",
        // An upstream system answers when it likes; ours is to have asked.
        sql_upstream: Some(
            "select format('%s: captured %s and no refund requested, order %s', p.id,
                           p.captured_minor, p.order_id)
             from payments p left join orders o on o.id = p.order_id
             where p.captured_minor > 0 and p.updated_at < now() - interval '10 seconds'
               and not (p.applied and o.status = 'CONFIRMED')
               and not exists (select from refunds r where r.payment_id = p.id) order by p.id",
        ),
    },
    Rule {
        id: "I26",
        rule: "captured minus refunded is the total of a confirmed order, and 0 for any other end",
        right: "money = orders",
        sql: "select format('%s: %s, total %s, kept %s', o.id, o.status, o.total_minor,
                            coalesce(p.kept, 0))
              from orders o
              left join (select order_id, sum(captured_minor - refunded_minor) as kept,
                                max(updated_at) as at
                         from payments group by order_id) p on p.order_id = o.id
              where coalesce(p.kept, 0) <>
                    case when o.status = 'CONFIRMED' then o.total_minor else 0 end
                and coalesce(p.at, o.created_at) < now() - interval '10 seconds'
                and o.status <> 'RESERVED' order by o.id",
        sql_upstream: Some(
            "select format('%s: %s, total %s, kept %s', o.id, o.status, o.total_minor,
                           coalesce(p.kept, 0))
             from orders o
             left join (select q.order_id, max(q.updated_at) as at,
                               sum(q.captured_minor - greatest(q.refunded_minor,
                                   coalesce(r.amount_minor, 0))) as kept
                        from payments q left join refunds r on r.payment_id = q.id
                        group by q.order_id) p on p.order_id = o.id
             where coalesce(p.kept, 0) <>
                   case when o.status = 'CONFIRMED' then o.total_minor else 0 end
               and coalesce(p.at, o.created_at) < now() - interval '10 seconds'
               and o.status <> 'RESERVED' order by o.id",
        ),
    },
    rule(
        "I17",
        "no event waits for the relay longer than 5 s",
        "0 waiting",
        "select format('outbox %s: %s %s since %s', o.id, o.type, o.key, o.at)
         from outbox o
         where o.id > (select greatest(low, sent) from relay_watermark where name = 'outbox')
           and o.at < now() - interval '5 seconds' order by o.id",
    ),
    // Inbox rows are pruned after 30 days; a partition of the outbox that never fills lives longer.
    rule(
        "I18",
        "every event that a consumer of ours must handle was handled or set aside within 15 s",
        "0 lost",
        "select format('outbox %s: %s %s not handled by payment', o.id, o.type, o.key)
         from outbox o
         where o.type in ('ORDER_RESERVED', 'REFUND_REQUESTED') and o.topic = 'orders.v1'
           and o.id <= (select greatest(low, sent) from relay_watermark where name = 'outbox')
           and o.at between now() - interval '29 days' and now() - interval '15 seconds'
           and exists (select from heartbeats where name = 'payment')
           and not exists (select from inbox i where i.consumer = 'payment'
                           and i.source = o.source and i.event_id = o.event_id::text)
           and not exists (select from dead_letters d where d.consumer = 'payment'
                           and d.event_id = o.event_id::text)
         union all
         select format('outbox %s: %s %s not handled by stock', o.id, o.type, o.key)
         from outbox o
         where o.topic = 'payments.v1'
           and o.id <= (select greatest(low, sent) from relay_watermark where name = 'outbox')
           and o.at between now() - interval '29 days' and now() - interval '15 seconds'
           and not exists (select from inbox i where i.consumer = 'stock'
                           and i.source = o.source and i.event_id = o.event_id::text)
           and not exists (select from dead_letters d where d.consumer = 'stock'
                           and d.event_id = o.event_id::text)
         order by 1",
    ),
    Rule {
        id: "I21",
        rule: "no payment waits for its outcome, and no refund for its answer, longer than a minute",
        right: "0 pending",
        sql: "select format('payment %s: PENDING since %s', id, created_at)
              from payments where state = 'PENDING' and created_at < now() - interval '90 seconds'
              union all
              select format('refund of %s: REQUESTED since %s', payment_id, created_at)
              from refunds where state = 'REQUESTED' and created_at < now() - interval '60 seconds'
              order by 1",
        sql_upstream: Some(
            "select format('payment %s: PENDING', id) from payments
             where state = 'PENDING' order by 1",
        ),
    },
    rule(
        "I24",
        "no dead letter was made by an outage",
        "0 unexplained",
        "select format('dead letter %s: %s (%s)', id, class, reason)
         from dead_letters
         where class not in ('malformed', 'unknown-version', 'contract', 'unknown-subject',
                             'conflict', 'unclassified')
         order by id",
    ),
];
