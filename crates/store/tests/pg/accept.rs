use std::time::Duration;

use contracts::{Code, events::OrderEvent};
use domain::{Decision, OrderStatus, Refusal};
use store::{
    idempotency::{self, Answer, PRUNE_PAGES, PruneStep},
    orders, outbox, stock,
};

use crate::support::{accept, claims, hold, order, request, sku, sku_put, with_db};

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_order_is_whole_and_a_refused_one_leaves_nothing() {
    with_db(|db| async move {
        db.put(&sku_put("A", 3)).await?;
        db.put(&sku_put("B", 10)).await?;
        let requests = [
            request("one", "c-1", &[("B", 1), ("A", 2)]),
            request("two", "c-2", &[("A", 2)]),
            request("three", "c-3", &[("A", 1)]),
        ];
        let (plan, written) = accept(&db.store, &requests).await?;
        assert_eq!(
            plan.decisions[1],
            Decision::Refuse(Refusal::SoldOut { sku: sku("A") })
        );
        assert_eq!(written.len(), 2);
        let found = orders::get(&db.store, written[0].id, None).await?;
        assert_eq!(
            found.as_ref(),
            Some(&written[0]),
            "read back as it was written"
        );

        let mut conn = db.store.conn().await?;
        let holds = requests.clone().map(|request| request.hold_id);
        let keys = idempotency::find(&mut conn, &holds).await?;
        assert_eq!(keys.len(), 2);
        assert_eq!(
            keys[&holds[0]].answer,
            Answer::Accepted(requests[0].order_id)
        );
        assert!(!keys.contains_key(&holds[1]), "a refusal stores nothing");

        let row = db.sku("A").await?;
        assert_eq!((row.on_hand, row.held, row.sold, row.version), (3, 3, 0, 1));
        let batch = outbox::read(&mut conn, 0, &[], 100).await?;
        let event = batch
            .rows
            .iter()
            .find(|row| row.key == written[0].id.to_string());
        let event = event.expect("an event");
        match OrderEvent::decode(&event.event_type, event.data.as_bytes())? {
            Some(OrderEvent::Reserved(data)) => {
                assert_eq!(data.reserved_until, written[0].reserved_until);
                assert_eq!(data.lines, written[0].lines);
            }
            other => panic!("{other:?}"),
        }
        let history = "select count(*) from order_history where to_status = 'RESERVED'";
        assert_eq!(db.number(history).await?, 2);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_twin_waits_and_sees_what_was_decided() {
    with_db(|db| async move {
        let requests = [request("twin", "c-1", &[("A", 1)])];
        let mine = claims(&db.store, &requests).await?;
        let mut first = db.store.begin().await?;
        assert_eq!(
            idempotency::claim(&mut first, &mine, false).await?,
            [requests[0].hold_id]
        );
        let twin = tokio::spawn({
            let (store, mine) = (db.store.clone(), mine.clone());
            async move {
                let mut tx = store.begin().await?;
                let taken = idempotency::claim(&mut tx, &mine, false).await?;
                let seen = idempotency::find(&mut tx, &[mine[0].hold_id]).await?;
                tx.commit().await?;
                anyhow::Ok((taken, seen))
            }
        });
        db.wait_for_blocked(1).await?;
        first.commit().await?;
        let (taken, seen) = twin.await??;
        assert!(taken.is_empty());
        assert_eq!(
            seen[&mine[0].hold_id].answer,
            Answer::Accepted(mine[0].order_id)
        );
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_twin_of_an_undone_attempt_takes_the_key() {
    with_db(|db| async move {
        let mine = claims(&db.store, &[request("twin", "c-1", &[("A", 1)])]).await?;
        let mut first = db.store.begin().await?;
        idempotency::claim(&mut first, &mine, false).await?;
        let twin = tokio::spawn({
            let (store, mine) = (db.store.clone(), mine.clone());
            async move {
                let mut tx = store.begin().await?;
                let taken = idempotency::claim(&mut tx, &mine, false).await?;
                tx.commit().await?;
                anyhow::Ok(taken)
            }
        });
        db.wait_for_blocked(1).await?;
        first.rollback().await?;
        assert_eq!(twin.await??, [mine[0].hold_id]);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_twin_that_waits_too_long_is_to_be_run_again() {
    with_db(|db| async move {
        let hasty = db.store_with(|options| options.lock_timeout = Duration::from_millis(50));
        let mine = claims(&db.store, &[request("twin", "c-1", &[("A", 1)])]).await?;
        let mut first = db.store.begin().await?;
        idempotency::claim(&mut first, &mine, false).await?;
        let mut second = hasty.begin().await?;
        let error = idempotency::claim(&mut second, &mine, false)
            .await
            .expect_err("a time-out");
        assert!(error.must_rerun() && error.is_transient(), "{error:?}");
        assert_eq!(error.sqlstate().as_deref(), Some("55P03"));
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_passed_deadline_takes_nothing() {
    with_db(|db| async move {
        let requests = [
            request("in time", "c-1", &[("A", 1)]),
            request("late", "c-1", &[("A", 1)]),
        ];
        let mut mine = claims(&db.store, &requests).await?;
        mine[1].deadline = db.store.clock().await?;
        let mut tx = db.store.begin().await?;
        assert_eq!(
            idempotency::claim(&mut tx, &mine, false).await?,
            [requests[0].hold_id]
        );
        tx.commit().await?;
        assert_eq!(db.number("select count(*) from idempotency").await?, 1);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_buyers_cannot_take_the_last_unit() {
    with_db(|db| async move {
        db.put(&sku_put("A", 1)).await?;
        let mut tasks = Vec::new();
        for number in 0..8 {
            let store = db.store.clone();
            let request = request(&format!("k-{number}"), &format!("c-{number}"), &[("A", 1)]);
            tasks.push(tokio::spawn(
                async move { accept(&store, &[request]).await },
            ));
        }
        let mut accepted = 0;
        for task in tasks {
            accepted += task.await??.1.len();
        }
        assert_eq!(accepted, 1);
        assert_eq!(db.sku("A").await?.available(), 0);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_cannot_pass_the_limit_from_two_batches() {
    with_db(|db| async move {
        db.put(&store::skus::SkuPut {
            per_customer_limit: Some(2),
            ..sku_put("A", 100)
        })
        .await?;
        let mut tasks = Vec::new();
        for number in 0..6 {
            let store = db.store.clone();
            let request = request(&format!("k-{number}"), "c-1", &[("A", 1)]);
            tasks.push(tokio::spawn(
                async move { accept(&store, &[request]).await },
            ));
        }
        let mut accepted = 0;
        for task in tasks {
            accepted += task.await??.1.len();
        }
        assert_eq!(accepted, 2);
        assert_eq!(
            db.number("select sum(units)::bigint from buyer_units")
                .await?,
            2
        );
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_accept_reads_the_clock_although_no_sku_is_known() {
    with_db(|db| async move {
        let before = db.store.clock().await?;
        let mut tx = db.store.begin().await?;
        let view = stock::lock_for_accept(&mut tx, &[sku("NONE")]).await?;
        assert!(view.skus.is_empty() && view.rows.is_empty());
        assert!(view.now >= before);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_by_kafka_is_kept_and_told_again() {
    with_db(|db| async move {
        let mine = claims(&db.store, &[request("kafka", "c-1", &[("A", 1)])]).await?;
        let mut tx = db.store.begin().await?;
        idempotency::claim(&mut tx, &mine, true).await?;
        let refusal = (mine[0].hold_id, Code::SoldOut, "A is sold out".to_owned());
        idempotency::reject(&mut tx, &[refusal]).await?;
        tx.commit().await?;
        let mut conn = db.store.conn().await?;
        let found = idempotency::find(&mut conn, &[mine[0].hold_id]).await?;
        let expected = Answer::Rejected {
            code: Code::SoldOut,
            detail: "A is sold out".to_owned(),
        };
        assert_eq!(found[&mine[0].hold_id].answer, expected);
        Ok(())
    })
    .await;
}

/// A hundred thousand keys of Kafka that must stay, and an old one behind them: a step reads its
/// pages and no more, and the round comes to the end.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_must_stay_cost_a_step_of_the_pruner_nothing() {
    with_db(|db| async move {
        db.run(
            "insert into idempotency (hold_id, fingerprint, order_id, by_kafka, created_at)
             select md5(n::text)::uuid, '\\x00', md5(n::text)::uuid, n % 100000 <> 0,
                    now() - interval '3 days'
             from generate_series(1, 100000) n",
        )
        .await?;
        let mut conn = db.store.conn().await?;
        let pages: i64 = sqlx::query_scalar(
            "select pg_relation_size('idempotency') / current_setting('block_size')::bigint",
        )
        .fetch_one(&mut *conn)
        .await?;
        let (mut from, mut steps, mut gone) = (0, 0, Vec::new());
        loop {
            let step = idempotency::prune(&mut conn, from).await?;
            steps += 1;
            gone.push(step.gone);
            match step.next {
                Some(next) => from = next,
                None => break,
            }
        }
        assert_eq!(steps, (pages + PRUNE_PAGES - 1) / PRUNE_PAGES);
        assert!(steps > 2, "{pages} pages are no test");
        assert_eq!(gone.pop(), Some(1), "it is on the last page");
        assert!(gone.iter().all(|gone| *gone == 0), "{gone:?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_pruned_a_day_after_the_end_and_never_before() {
    with_db(|db| async move {
        db.put(&sku_put("A", 10)).await?;
        for key in ["live", "fresh", "old"] {
            order(&db.store, key, "c-1", &[("A", 1)]).await?;
        }
        db.run("update idempotency set created_at = now() - interval '3 days'")
            .await?;
        let end = |key: &str, hours: u32| {
            format!(
                "update orders set status = 'CANCELED', version = 2,
                     ended_at = now() - interval '{hours} hours' where hold_id = '{}'",
                hold(key)
            )
        };
        db.run(&end("fresh", 24)).await?;
        db.run(&end("old", 26)).await?;
        let mut conn = db.store.conn().await?;
        let step = idempotency::prune(&mut conn, 0).await?;
        assert_eq!(
            step,
            PruneStep {
                gone: 1,
                next: None
            }
        );
        let left = idempotency::find(&mut conn, &["live", "fresh", "old"].map(hold)).await?;
        assert!(left.contains_key(&hold("live")) && left.contains_key(&hold("fresh")));
        let found = orders::find_many(&mut conn, &[]).await?;
        assert!(
            found
                .iter()
                .all(|order| order.status == OrderStatus::Reserved)
        );
        Ok(())
    })
    .await;
}
