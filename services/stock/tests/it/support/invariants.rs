//! What must hold after each test, in PostgreSQL and at the gate.

use std::collections::BTreeMap;

use contracts::HoldId;
use domain::Hold;

use super::{SHARD, World};

impl World {
    /// What must hold at any moment, as `invariants.md` A.1 has it.
    pub(crate) async fn assert_invariants(&self) {
        for (rule, query) in INVARIANTS {
            let rows = self.rows(query).await;
            assert!(rows.is_empty(), "{rule}: {rows:?}");
        }
    }

    /// I20: the gate is what PostgreSQL says.
    pub(crate) async fn assert_gate_agrees(&self) {
        let gate = self.stock.gate.snapshot(SHARD).await.unwrap();
        assert!(
            gate.epoch.as_ref().is_some_and(|epoch| epoch.open),
            "no open epoch"
        );
        let page = store::skus::page(&self.stock.store, Some(SHARD), None, 1_000)
            .await
            .unwrap();
        for row in page {
            let there = gate
                .gates
                .get(&row.sku)
                .unwrap_or_else(|| panic!("no gate of {}", row.sku));
            assert_eq!(
                (there.limit, there.held, there.version),
                (row.on_hand - row.sold, row.held, row.version),
                "limit, held, version of {}",
                row.sku
            );
        }
        let live = store::holds::live_page(&self.stock.store, SHARD, None, 100_000)
            .await
            .unwrap();
        let live: BTreeMap<HoldId, Hold> = live
            .holds
            .into_iter()
            .map(|view| (view.hold.hold_id, view.hold))
            .collect();
        let there: BTreeMap<HoldId, Hold> = gate
            .holds
            .iter()
            .map(|(id, stored)| (*id, stored.hold.clone()))
            .collect();
        assert_eq!(there, live, "holds");
        assert_eq!(gate.due.len(), gate.holds.len(), "due");
        let buyers: i64 = gate.buyers.values().sum();
        let right: i64 = self
            .value("select coalesce(sum(units), 0)::bigint from buyer_units")
            .await;
        assert_eq!(buyers, right, "units of buyers");
    }
}

const INVARIANTS: &[(&str, &str)] = &[
    (
        "I1",
        "select sku from stock where held < 0 or sold < 0 or held + sold > on_hand",
    ),
    (
        "I2",
        "select s.sku from stock s left join (
             select l.sku, sum(l.quantity) filter (where o.status = 'RESERVED') h,
                    sum(l.quantity) filter (where o.status = 'CONFIRMED') c
             from order_lines l join orders o on o.id = l.order_id group by 1) x using (sku)
         where s.held <> coalesce(h, 0) or s.sold <> coalesce(c, 0)",
    ),
    (
        "I3",
        "select s.sku from stock s left join (
             select sku, sum(held) h, sum(sold) c from stock_movements group by 1) m using (sku)
         where s.held <> coalesce(h, 0) or s.sold <> coalesce(c, 0)",
    ),
    (
        "I4",
        "select order_id from order_history where to_status <> 'RESERVED'
         group by 1 having count(*) > 1",
    ),
    (
        "I4 path",
        "select order_id from order_history h where not exists (
             select from allowed_transitions a
             where a.from_status is not distinct from h.from_status and a.to_status = h.to_status)",
    ),
    (
        "I5",
        "select order_id from payments where applied group by 1 having count(*) > 1",
    ),
    (
        "I5 both ways",
        "select o.id from orders o left join payments p on p.order_id = o.id and p.applied
         where (o.status = 'CONFIRMED') <> (p.id is not null)",
    ),
    (
        "I6",
        "select id from orders where status = 'EXPIRED' and ended_at < reserved_until",
    ),
    (
        "I9",
        "select b.sku from buyer_units b left join (
             select l.sku, o.shop, o.customer_id, sum(l.quantity) u
             from order_lines l join orders o on o.id = l.order_id
             where o.status in ('RESERVED', 'CONFIRMED') group by 1, 2, 3) x
             using (sku, shop, customer_id)
         where b.units <> coalesce(u, 0)",
    ),
    (
        "I15",
        "select p.id from payments p join orders o on o.id = p.order_id
         where p.captured_minor > p.refunded_minor and not (p.applied and o.status = 'CONFIRMED')
           and not exists (select from refunds r where r.payment_id = p.id)",
    ),
];
