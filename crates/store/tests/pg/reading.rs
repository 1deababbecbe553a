use contracts::{OrderId, Shop};
use domain::{HoldState, OrderStatus, Shard};
use store::{
    PgClock, buyer_units,
    expiry::Cursor,
    holds, orders,
    outages::{self, Closing},
    skus,
    timeline::{self, Events},
};

use crate::support::{buyer, hold, order, sku, sku_put, with_db};

#[tokio::test(flavor = "multi_thread")]
async fn an_order_of_two_shards_is_a_view_in_each() {
    with_db(|db| async move {
        db.put(&sku_put("A", 10)).await?;
        db.put(&sku_put("C", 10)).await?;
        db.put(&skus::SkuPut {
            shard: Shard(3),
            ..sku_put("B", 10)
        })
        .await?;
        let both = order(&db.store, "1", "c-1", &[("A", 1), ("B", 2), ("C", 3)]).await?;
        order(&db.store, "2", "c-1", &[("B", 1)]).await?;
        let views = holds::of_orders(&db.store, &[both.id, OrderId::generate()]).await?;
        let lines: Vec<(Shard, Vec<String>)> = views
            .iter()
            .map(|(shard, view)| {
                let names = view
                    .hold
                    .lines
                    .iter()
                    .map(|line| line.sku.to_string())
                    .collect();
                (*shard, names)
            })
            .collect();
        let (a, b, c) = ("A".to_owned(), "B".to_owned(), "C".to_owned());
        assert_eq!(lines, [(Shard(0), vec![a, c]), (Shard(3), vec![b])]);
        assert!(views.iter().all(|(_, view)| view.state == HoldState::Live));

        let by_key = holds::by_hold(&db.store, &[hold("1"), hold("never")]).await?;
        assert_eq!(by_key.len(), 1);
        assert_eq!(by_key[&hold("1")], views);
        let registers = skus::registers(&db.store, &[sku("B"), sku("NONE")]).await?;
        assert_eq!(
            (registers[0].0, registers[0].1.limit, registers.len()),
            (Shard(3), 10, 1)
        );
        assert_eq!(skus::shards(&db.store).await?[&sku("B")], Shard(3));
        let page = skus::page(&db.store, Some(Shard(0)), Some(&sku("A")), 10).await?;
        assert_eq!(
            page.iter().map(|row| row.sku.as_str()).collect::<Vec<_>>(),
            ["C"]
        );
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn live_holds_are_paged_without_loss_or_repeat() {
    with_db(|db| async move {
        db.put(&sku_put("A", 100)).await?;
        db.put(&skus::SkuPut {
            shard: Shard(1),
            ..sku_put("B", 100)
        })
        .await?;
        for number in 0..7 {
            let name = if number == 3 { "B" } else { "A" };
            order(&db.store, &format!("{number}"), "c-1", &[(name, 1)]).await?;
        }
        db.run("update orders set reserved_until = (select min(reserved_until) from orders)")
            .await?;
        let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = holds::live_page(&db.store, Shard(0), after, 2).await?;
            seen.extend(page.holds.into_iter().map(|view| view.hold.hold_id));
            pages += 1;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        seen.sort_unstable();
        let mut want: Vec<_> = ["0", "1", "2", "4", "5", "6"].map(hold).into();
        want.sort_unstable();
        assert_eq!(seen, want);
        assert_eq!(pages, 4, "three full ones and an empty one");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_newest_first_and_a_shop_sees_its_own() {
    with_db(|db| async move {
        db.put(&sku_put("A", 100)).await?;
        let mut ids = Vec::new();
        for number in 0..5 {
            let customer = if number == 2 { "c-2" } else { "c-1" };
            ids.push(
                order(&db.store, &format!("{number}"), customer, &[("A", 1)])
                    .await?
                    .id,
            );
        }
        let mine = buyer("c-1");
        let (shop, customer) = (Some(&mine.shop), Some(&mine.customer));
        let first = orders::list(&db.store, shop, customer, None, 3, None).await?;
        let got: Vec<_> = first.orders.iter().map(|order| order.id).collect();
        assert_eq!(got, [ids[4], ids[3], ids[1]]);
        assert!(first.has_more);
        let rest = orders::list(&db.store, shop, customer, None, 3, got.last().copied()).await?;
        assert_eq!(
            rest.orders.iter().map(|order| order.id).collect::<Vec<_>>(),
            [ids[0]]
        );
        assert!(!rest.has_more);
        let ended = Some(OrderStatus::Expired);
        assert!(
            orders::list(&db.store, shop, None, ended, 3, None)
                .await?
                .orders
                .is_empty()
        );
        let all = orders::list(&db.store, None, None, None, 100, None).await?;
        assert_eq!(all.orders.len(), 5);
        let other = Shop::parse("other")?;
        assert_eq!(orders::get(&db.store, ids[0], Some(&other)).await?, None);
        assert!(orders::get(&db.store, ids[0], shop).await?.is_some());
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeline_tells_history_and_events_by_time() {
    with_db(|db| async move {
        db.put(&sku_put("A", 100)).await?;
        let order = order(&db.store, "1", "c-1", &[("A", 1)]).await?;
        db.run(&format!(
            "insert into payments (id, order_id, state, amount_minor, currency, method)
             values ('p-1', '{}', 'COMPLETED', 1000, 'KRW', 'card')",
            order.id
        ))
        .await?;
        let steps = timeline::of_order(&db.store, order.id, Events::Near).await?;
        let all = timeline::of_order(&db.store, order.id, Events::All).await?;
        assert_eq!(steps, all);
        let what: Vec<&str> = steps.iter().map(|step| step.what.as_str()).collect();
        assert_eq!(what, ["RESERVED", "ORDER_RESERVED", "payment COMPLETED"]);
        assert!(steps[1].event.is_some());
        assert!(
            timeline::of_order(&db.store, OrderId::generate(), Events::Near)
                .await?
                .is_empty()
        );
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn buyers_are_paged_in_order() {
    with_db(|db| async move {
        db.put(&skus::SkuPut {
            per_customer_limit: Some(9),
            ..sku_put("A", 100)
        })
        .await?;
        for customer in ["b", "a", "B", "c"] {
            order(&db.store, customer, customer, &[("A", 2)]).await?;
        }
        let page = buyer_units::page(&db.store, &sku("A"), None, 3).await?;
        let names: Vec<_> = page
            .iter()
            .map(|(buyer, _)| buyer.customer.as_str())
            .collect();
        assert_eq!(names, ["B", "a", "b"], "as Rust sorts");
        let rest = buyer_units::page(&db.store, &sku("A"), Some(&buyer("b")), 3).await?;
        assert_eq!(rest, [(buyer("c"), 2)]);
        let found = buyer_units::find(&db.store, &[(sku("A"), buyer("a"))]).await?;
        assert_eq!(found.into_values().collect::<Vec<_>>(), [2]);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kept_clock_is_never_ahead_of_the_server() {
    with_db(|db| async move {
        let clock = PgClock::new();
        assert_eq!(clock.now(), None);
        let reading = db.store.clock().await?;
        clock.observe(reading, std::time::Instant::now());
        for _ in 0..50 {
            let kept = clock.now().expect("a reading");
            assert!(kept >= reading && kept <= db.store.clock().await?);
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_shows_the_deadline_of_the_first_answer_however_often_it_has_moved() {
    with_db(|db| async move {
        db.put(&sku_put("A", 10)).await?;
        let first = order(&db.store, "1", "c-1", &[("A", 1)]).await?;
        let later = first.reserved_until + std::time::Duration::from_secs(60);
        let mut tx = db.store.begin().await?;
        assert_eq!(orders::renew(&mut tx, &[(first.id, later)]).await?, 1);
        tx.commit().await?;
        let outage = contracts::ids::generate();
        let ended = db.store.clock().await?;
        db.run(&format!(
            "insert into outages (id, reason, opened_at)
             values ('{outage}', 'a test', clock_timestamp() - interval '1 minute')"
        ))
        .await?;
        let mut tx = db.store.begin().await?;
        let closing = outages::close(&mut tx, outage, ended, None, Cursor::START, 10).await?;
        assert_eq!(closing, Closing::Closed(1));
        tx.commit().await?;
        let moved = orders::get(&db.store, first.id, None).await?;
        let moved = moved.ok_or_else(|| anyhow::anyhow!("the order is gone"))?;
        assert!(moved.reserved_until > later, "the outage moved nothing");
        let repeat = moved.as_of_version_1();
        assert_eq!(repeat.reserved_until, first.reserved_until);
        assert_eq!((repeat.status, repeat.lines), (first.status, first.lines));
        Ok(())
    })
    .await;
}
