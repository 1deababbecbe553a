//! The sums that the audit carries on, against those that it makes anew.

use anyhow::Result;
use contracts::envelope::source;
use domain::OrderStatus;
use store::{
    Order, Store,
    audit::{Auditor, Finding, Sums},
    orders::{self, Ending, transition},
    verify::Payments,
};
use uuid::Uuid;

use crate::support::{Db, accept, request, sku_put, with_db};

async fn end(store: &Store, order: &Order, to: OrderStatus) -> Result<()> {
    let mut tx = store.begin().await?;
    let locked = orders::lock(&mut tx, &[order.id]).await?;
    let ending = Ending {
        order: &locked[0],
        to,
        cause: "a test".to_owned(),
        reason: "a test".to_owned(),
    };
    let now = store::settlement::now(&mut tx).await?;
    transition(&mut tx, &[ending], now, source::STOCK).await?;
    tx.commit().await?;
    Ok(())
}

async fn place(db: &Db, from: usize, count: usize) -> Result<Vec<Order>> {
    let requests: Vec<_> = (from..from + count)
        .map(|n| {
            let lines: &[(&str, i64)] = if n % 2 == 0 {
                &[("A", 1), ("B", 2)]
            } else {
                &[("A", 3)]
            };
            request(&n.to_string(), "c-1", lines)
        })
        .collect();
    let (_, accepted) = accept(&db.store, &requests).await?;
    assert_eq!(accepted.len(), count);
    Ok(accepted)
}

/// Who is red, and whether the sums made anew say the same.
async fn compared(auditor: &Auditor, sums: &mut Sums) -> Result<Vec<Finding>> {
    auditor.settle(sums).await?;
    let found = auditor.compare(sums).await?;
    let anew = auditor.sums(&["A".to_owned(), "B".to_owned()]).await?;
    assert_eq!(found, anew);
    Ok(found.into_iter().filter(|one| one.count > 0).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn sums_that_are_carried_on_say_what_sums_made_anew_say() {
    with_db(|db| async move {
        db.put(&sku_put("A", 1_000)).await?;
        db.put(&sku_put("B", 1_000)).await?;
        let auditor = Auditor::new(&db.options, Payments::Internal)?;
        let ends = [
            Some(OrderStatus::Confirmed),
            Some(OrderStatus::Canceled),
            None,
            Some(OrderStatus::Expired),
        ];
        let placed = place(&db, 0, 16).await?;
        for (order, end_as) in placed.iter().zip(ends.iter().cycle()) {
            if let Some(to) = end_as {
                end(&db.store, order, *to).await?;
            }
        }
        let mut sums = Sums::default();
        assert_eq!(compared(&auditor, &mut sums).await?, [], "of nothing yet");
        let upto = placed
            .iter()
            .map(|order| order.id.0)
            .max()
            .unwrap_or_default();
        let mut steps = 1;
        while auditor.extend(&mut sums, upto, 3).await? {
            assert_eq!(compared(&auditor, &mut sums).await?, []);
            steps += 1;
        }
        assert!(steps > 4, "{steps}");
        // Some that were open end, others come, and some of those end.
        for order in [&placed[2], &placed[10]] {
            end(&db.store, order, OrderStatus::Confirmed).await?;
        }
        for order in &place(&db, 16, 8).await?[..4] {
            end(&db.store, order, OrderStatus::Confirmed).await?;
        }
        assert_eq!(compared(&auditor, &mut sums).await?, []);
        for (damage, undo, ids) in [
            ("sold = sold + 1", "sold = sold - 1", vec!["I2", "I3"]),
            ("held = held + 1", "held = held - 1", vec!["I2", "I3"]),
            ("on_hand = on_hand + 1", "on_hand = on_hand - 1", vec!["I3"]),
        ] {
            db.run(&format!("update stock set {damage} where sku = 'B'"))
                .await?;
            let found = compared(&auditor, &mut sums).await?;
            assert_eq!(found.iter().map(|one| one.id).collect::<Vec<_>>(), ids);
            db.run(&format!("update stock set {undo} where sku = 'B'"))
                .await?;
        }
        auditor.extend(&mut sums, Uuid::max(), 100).await?;
        assert_eq!(compared(&auditor, &mut sums).await?, []);
        Ok(())
    })
    .await;
}

/// What has ended is not read again: it may be as much as it likes.
#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_reads_no_history() {
    with_db(|db| async move {
        db.put(&sku_put("A", 1_000)).await?;
        db.put(&sku_put("B", 1_000)).await?;
        let auditor = Auditor::new(&db.options, Payments::Internal)?;
        let placed = place(&db, 0, 8).await?;
        for order in &placed[1..] {
            end(&db.store, order, OrderStatus::Confirmed).await?;
        }
        let mut sums = Sums::default();
        assert!(!auditor.extend(&mut sums, Uuid::max(), 100).await?);
        db.run(&format!(
            "delete from order_lines where order_id <> '{0}';
             delete from order_history where order_id <> '{0}'",
            placed[0].id
        ))
        .await?;
        auditor.settle(&mut sums).await?;
        let found = auditor.compare(&sums).await?;
        assert!(found.iter().all(|one| one.count == 0), "{found:?}");
        let anew = auditor.sums(&["A".to_owned()]).await?;
        assert!(anew.iter().any(|one| one.count > 0), "{anew:?}");
        Ok(())
    })
    .await;
}
