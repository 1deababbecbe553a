use anyhow::Result;
use contracts::{
    OrderId,
    envelope::source,
    events::{OrderEvent, StockEvent},
};
use domain::OrderStatus::{self, Canceled, Confirmed, Expired, Reserved};
use store::{
    Order, Store, StoreError,
    orders::{self, Ending, Transitioned, transition},
    outbox,
    skus::SkuPut,
};

use crate::support::{Db, order, sku, sku_put, with_db};

async fn end(store: &Store, endings: &[(&Order, OrderStatus)]) -> Result<Vec<Transitioned>> {
    let now = store.clock().await?;
    let endings: Vec<Ending<'_>> = endings
        .iter()
        .map(|(order, to)| Ending {
            order,
            to: *to,
            cause: "cancel".to_owned(),
            reason: "a test".to_owned(),
        })
        .collect();
    let mut tx = store.begin().await?;
    let ids: Vec<_> = endings.iter().map(|ending| ending.order.id).collect();
    orders::lock(&mut tx, &ids).await?;
    let done = transition(&mut tx, &endings, now, source::STOCK).await?;
    tx.commit().await?;
    Ok(done)
}

async fn stock_events(db: &Db) -> Result<Vec<StockEvent>> {
    let mut conn = db.store.conn().await?;
    let rows = outbox::read(&mut conn, 0, &[], 1000).await?.rows;
    let mut events = Vec::new();
    for row in rows.iter().filter(|row| row.topic == "stock.v1") {
        events.extend(StockEvent::decode(&row.event_type, row.data.as_bytes())?);
    }
    Ok(events
        .into_iter()
        .filter(|event| !matches!(event, StockEvent::Adjusted(_)))
        .collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_ends_moves_each_unit_once_and_says_so() {
    with_db(|db| async move {
        db.put(&sku_put("A", 10)).await?;
        db.put(&SkuPut {
            per_customer_limit: Some(5),
            ..sku_put("B", 10)
        })
        .await?;
        let one = order(&db.store, "1", "c-1", &[("A", 1), ("B", 2)]).await?;
        let two = order(&db.store, "2", "c-2", &[("A", 2)]).await?;
        let three = order(&db.store, "3", "c-1", &[("A", 3), ("B", 1)]).await?;
        let done = end(
            &db.store,
            &[(&three, Expired), (&one, Confirmed), (&two, Canceled)],
        )
        .await?;
        let Transitioned::Applied(ended) = &done[0] else {
            panic!("{done:?}")
        };
        assert_eq!(
            (ended.id, ended.status, ended.version),
            (three.id, Expired, 2)
        );
        assert_eq!(
            orders::get(&db.store, three.id, None).await?.as_ref(),
            Some(ended)
        );

        let a = db.sku("A").await?;
        assert_eq!((a.on_hand, a.held, a.sold, a.version), (10, 0, 1, 3));
        let b = db.sku("B").await?;
        assert_eq!((b.on_hand, b.held, b.sold, b.version), (10, 0, 2, 3));
        let units = "select units from buyer_units where sku = 'B' and customer_id = 'c-1'";
        assert_eq!(
            db.number(units).await?,
            2,
            "the confirmed units stay the buyer's"
        );
        let moved = "select sum(held + 1000 * sold)::bigint from stock_movements";
        assert_eq!(db.number(moved).await?, 3000);

        let events = stock_events(&db).await?;
        assert_eq!(events.len(), 4, "one per SKU and kind: {events:?}");
        let StockEvent::Released(data) = &events[2] else {
            panic!("{events:?}")
        };
        assert_eq!(
            (&data.sku, data.quantity, data.order_ids.len()),
            (&sku("A"), 5, 2)
        );
        assert_eq!((data.held, data.sold, data.version), (0, 1, 3));
        let kinds = "select count(distinct type) from outbox where topic = 'orders.v1'";
        assert_eq!(db.number(kinds).await?, 4);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_moved_meanwhile_is_stale_and_changes_nothing() {
    with_db(|db| async move {
        db.put(&sku_put("A", 10)).await?;
        let order = order(&db.store, "1", "c-1", &[("A", 4)]).await?;
        let both = end(&db.store, &[(&order, Confirmed), (&order, Canceled)]).await?;
        assert!(matches!(both[0], Transitioned::Applied(_)));
        assert_eq!(
            both[1],
            Transitioned::Stale(order.id),
            "the first of a batch wins"
        );
        assert_eq!(
            end(&db.store, &[(&order, Canceled)]).await?,
            [Transitioned::Stale(order.id)]
        );
        let mut unknown = order.clone();
        unknown.id = contracts::OrderId::generate();
        let done = end(&db.store, &[(&unknown, Canceled)]).await?;
        assert_eq!(done, [Transitioned::Stale(unknown.id)]);
        let a = db.sku("A").await?;
        assert_eq!((a.held, a.sold, a.version), (0, 4, 2));
        assert_eq!(stock_events(&db).await?.len(), 1);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_ends_at_once_leave_one() {
    with_db(|db| async move {
        db.put(&sku_put("A", 10)).await?;
        let order = order(&db.store, "1", "c-1", &[("A", 1)]).await?;
        let mut tasks = Vec::new();
        for to in [Confirmed, Canceled, Expired, Confirmed] {
            let (store, order) = (db.store.clone(), order.clone());
            tasks.push(tokio::spawn(
                async move { end(&store, &[(&order, to)]).await },
            ));
        }
        let mut applied = 0;
        for task in tasks {
            applied += usize::from(matches!(task.await??[0], Transitioned::Applied(_)));
        }
        assert_eq!(applied, 1);
        let history = "select count(*) from order_history where version = 2";
        assert_eq!(db.number(history).await?, 1);
        assert_eq!(db.sku("A").await?.held, 0);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_that_does_not_hold_the_units_stops_the_end() {
    with_db(|db| async move {
        db.put(&sku_put("A", 10)).await?;
        let order = order(&db.store, "1", "c-1", &[("A", 4)]).await?;
        db.run("update stock set held = 3").await?;
        let error = end(&db.store, &[(&order, Canceled)])
            .await
            .expect_err("a broken invariant");
        let error: StoreError = error.downcast()?;
        assert!(matches!(error, StoreError::StockBounds { .. }), "{error:?}");
        assert!(!error.is_transient());
        let now = orders::get(&db.store, order.id, None)
            .await?
            .map(|order| order.status);
        assert_eq!(now, Some(Reserved), "rolled back");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_is_no_end() {
    with_db(|db| async move {
        db.put(&sku_put("A", 10)).await?;
        let order = order(&db.store, "1", "c-1", &[("A", 4)]).await?;
        let error = end(&db.store, &[(&order, Reserved)])
            .await
            .expect_err("no end");
        assert!(matches!(
            error.downcast()?,
            StoreError::NotAnEnd("RESERVED")
        ));
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_events_of_an_order_have_rising_positions() {
    with_db(|db| async move {
        db.put(&sku_put("A", 10)).await?;
        let order = order(&db.store, "1", "c-1", &[("A", 4)]).await?;
        end(&db.store, &[(&order, Canceled)]).await?;
        let mut conn = db.store.conn().await?;
        let rows = outbox::read(&mut conn, 0, &[], 100).await?.rows;
        let mine: Vec<_> = rows
            .iter()
            .filter(|row| row.key == order.id.to_string())
            .collect();
        assert_eq!(
            mine.iter()
                .map(|row| row.aggregate_version)
                .collect::<Vec<_>>(),
            [1, 2]
        );
        let ended = OrderEvent::decode(&mine[1].event_type, mine[1].data.as_bytes())?;
        let Some(OrderEvent::Canceled(data)) = ended else {
            panic!("{ended:?}")
        };
        assert_eq!((data.reason.as_str(), data.lines), ("a test", order.lines));
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_orders_that_are_waited_for_only_those_that_have_ended_are_read() {
    with_db(|db| async move {
        db.put(&sku_put("A", 10)).await?;
        let mut all = Vec::new();
        for key in ["1", "2", "3"] {
            all.push(order(&db.store, key, "c-1", &[("A", 1)]).await?);
        }
        let ids = all.iter().map(|order| order.id);
        let ids: Vec<OrderId> = ids.chain([OrderId::generate()]).collect();
        let mut conn = db.store.conn().await?;
        assert!(orders::find_ended(&mut conn, &ids).await?.is_empty());
        end(&db.store, &[(&all[0], Canceled), (&all[2], Confirmed)]).await?;
        let ended = orders::find_ended(&mut conn, &ids).await?;
        let found: Vec<_> = ended.iter().map(|order| (order.id, order.status)).collect();
        assert_eq!(found, [(all[0].id, Canceled), (all[2].id, Confirmed)]);
        Ok(())
    })
    .await;
}
