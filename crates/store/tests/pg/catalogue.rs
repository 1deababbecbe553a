use store::{
    adjustments::{self, Adjusted, NewAdjustment},
    skus::{self, Put, SkuPut},
};

use crate::support::{Db, accept, hold, order, request, sku, sku_put, with_db};

async fn adjust(db: &Db, key: &str, name: &str, delta: i64) -> anyhow::Result<Adjusted> {
    let new = NewAdjustment {
        request_id: hold(key),
        fingerprint: [1; 32],
        sku: sku(name),
        delta,
        reason: "restock".to_owned(),
    };
    let mut tx = db.store.begin().await?;
    let done = adjustments::insert(&mut tx, &new).await?;
    tx.commit().await?;
    Ok(done)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sku_is_created_once_and_changed_without_its_stock() {
    with_db(|db| async move {
        assert_eq!(db.put(&sku_put("A", 10)).await?, Put::Created);
        let changed = SkuPut {
            reservation_ttl_seconds: 60,
            ..sku_put("A", 99)
        };
        assert_eq!(db.put(&changed).await?, Put::Updated);
        let row = db.sku("A").await?;
        assert_eq!(
            (row.on_hand, row.version, row.reservation_ttl_seconds),
            (10, 2, 60)
        );
        assert_eq!(db.put(&changed).await?, Put::Updated);
        assert_eq!(db.sku("A").await?.version, 2, "a repeat changes nothing");
        let opening = adjustments::find(&db.store, hold("put A"))
            .await?
            .expect("an opening");
        assert_eq!(
            (opening.delta, opening.on_hand, &*opening.reason),
            (10, 10, "opening")
        );
        let events = "select count(*) from outbox where type = 'STOCK_ADJUSTED'";
        assert_eq!(db.number(events).await?, 1);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_comes_later_counts_what_buyers_have() {
    with_db(|db| async move {
        db.put(&sku_put("A", 100)).await?;
        order(&db.store, "1", "c-1", &[("A", 2)]).await?;
        order(&db.store, "2", "c-1", &[("A", 1)]).await?;
        assert_eq!(db.number("select count(*) from buyer_units").await?, 0);
        let limited = SkuPut {
            per_customer_limit: Some(3),
            ..sku_put("A", 100)
        };
        db.put(&limited).await?;
        assert_eq!(db.number("select units from buyer_units").await?, 3);
        let (_, none) = accept(&db.store, &[request("3", "c-1", &[("A", 1)])]).await?;
        assert!(none.is_empty());
        db.put(&sku_put("A", 100)).await?;
        assert_eq!(db.number("select count(*) from buyer_units").await?, 0);
        order(&db.store, "4", "c-1", &[("A", 1)]).await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accept_that_waited_for_a_new_limit_sees_it() {
    with_db(|db| async move {
        db.put(&sku_put("A", 100)).await?;
        let mut change = db.store.begin().await?;
        let limited = SkuPut {
            per_customer_limit: Some(1),
            ..sku_put("A", 100)
        };
        skus::put(&mut change, &limited, hold("change")).await?;
        let waiting = tokio::spawn({
            let store = db.store.clone();
            async move { accept(&store, &[request("1", "c-1", &[("A", 5)])]).await }
        });
        db.wait_for_blocked(1).await?;
        change.commit().await?;
        let (_, none) = waiting.await??;
        assert!(none.is_empty(), "it sees the limit that it waited for");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adjustment_is_made_once_and_never_below_what_is_promised() {
    with_db(|db| async move {
        db.put(&sku_put("A", 5)).await?;
        order(&db.store, "1", "c-1", &[("A", 4)]).await?;
        let Adjusted::Done(done) = adjust(&db, "a", "A", 3).await? else {
            panic!("not done")
        };
        assert_eq!((done.on_hand, done.held, done.version), (8, 4, 2));
        assert_eq!(
            adjust(&db, "a", "A", 3).await?,
            Adjusted::Repeat(done.clone())
        );
        assert_eq!(adjustments::find(&db.store, hold("a")).await?, Some(done));
        assert!(matches!(
            adjust(&db, "b", "A", -5).await?,
            Adjusted::BelowCommitted(_)
        ));
        assert!(matches!(
            adjust(&db, "c", "A", -4).await?,
            Adjusted::Done(_)
        ));
        assert_eq!(adjust(&db, "d", "A", i64::MAX).await?, Adjusted::TooMany);
        assert_eq!(adjust(&db, "e", "NONE", 1).await?, Adjusted::UnknownSku);
        let sum = "select sum(delta)::bigint from stock_adjustments where sku = 'A'";
        assert_eq!(db.number(sum).await?, db.sku("A").await?.on_hand);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_impossible_value_is_refused_by_name() {
    with_db(|db| async move {
        let mut tx = db.store.begin().await?;
        let wrong = SkuPut {
            per_customer_limit: Some(0),
            ..sku_put("A", 1)
        };
        let error = skus::put(&mut tx, &wrong, hold("x"))
            .await
            .expect_err("refused");
        assert_eq!(error.constraint(), Some("skus_limit_positive"));
        assert!(!error.is_transient() && !error.must_rerun());
        Ok(())
    })
    .await;
}
