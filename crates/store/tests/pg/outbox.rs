use std::time::Duration;

use anyhow::Result;
use contracts::{OrderId, envelope::source, events::NewEvent};
use store::{Tx, outbox};

use crate::support::{Db, wait_for, with_db};

fn event(key: &str, version: i64) -> NewEvent {
    let ended = contracts::events::OrderEnded {
        order_id: OrderId::generate(),
        customer_id: contracts::CustomerId::parse("c-1").expect("a customer"),
        version,
        lines: vec![],
        reason: "a test".to_owned(),
    };
    let data = contracts::events::OrderEvent::Canceled(ended);
    NewEvent {
        key: key.to_owned(),
        ..NewEvent::order(source::STOCK, OrderId::generate(), version, &data)
    }
}

/// A transaction that has an xid already, as every use case has before it writes events.
async fn begin_writing(db: &Db) -> Result<Tx> {
    let mut tx = db.store.begin().await?;
    sqlx::query("insert into heartbeats (name) values (gen_random_uuid()::text)")
        .execute(&mut *tx)
        .await?;
    Ok(tx)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_committed_late_is_found_as_a_gap() {
    with_db(|db| async move {
        let mut conn = db.store.conn().await?;
        let mut late = begin_writing(&db).await?;
        outbox::insert(&mut late, &[event("late", 1)]).await?;
        let mut early = begin_writing(&db).await?;
        outbox::insert(&mut early, &[event("early", 1)]).await?;
        early.commit().await?;

        let first = outbox::read(&mut conn, 0, &[], 100).await?;
        assert_eq!(first.rows.len(), 1);
        let high = first.rows[0].id;
        let gap = high - 1;
        let fence = outbox::begin_fence(&mut conn).await?;
        let second = outbox::read(&mut conn, high, &[gap], 100).await?;
        assert!(second.rows.is_empty());
        assert!(
            second.xmin <= fence,
            "its writer still runs: the gap stays open"
        );
        late.commit().await?;
        let third = outbox::read(&mut conn, high, &[gap], 100).await?;
        assert_eq!(
            third.rows.iter().map(|row| row.id).collect::<Vec<_>>(),
            [gap]
        );
        assert_eq!(third.rows[0].key, "late");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolled_back_id_can_be_closed_only_behind_the_fence() {
    with_db(|db| async move {
        let mut conn = db.store.conn().await?;
        let old = begin_writing(&db).await?;
        let mut undone = begin_writing(&db).await?;
        outbox::insert(&mut undone, &[event("undone", 1)]).await?;
        let mut kept = begin_writing(&db).await?;
        outbox::insert(&mut kept, &[event("kept", 1)]).await?;
        kept.commit().await?;
        undone.rollback().await?;

        let high = outbox::read(&mut conn, 0, &[], 100).await?.rows[0].id;
        let gap = high - 1;
        let fence = outbox::begin_fence(&mut conn).await?;
        let batch = outbox::read(&mut conn, high, &[gap], 100).await?;
        assert!(
            batch.xmin <= fence,
            "an older writer runs: it might be the one"
        );
        old.rollback().await?;
        // Transactions of other databases of this server hold xmin back as well.
        wait_for("the fence passes", || async {
            let mut conn = db.store.conn().await?;
            let batch = outbox::read(&mut conn, high, &[gap], 100).await?;
            assert!(batch.rows.is_empty());
            Ok(batch.xmin > fence)
        })
        .await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_keep_the_order_and_the_content_they_were_given() {
    with_db(|db| async move {
        let mut conn = db.store.conn().await?;
        let mut events: Vec<NewEvent> = (1..=50).map(|n| event("k", n)).collect();
        events[3].traceparent = Some("00-abc-def-01".to_owned());
        let mut tx = begin_writing(&db).await?;
        outbox::insert(&mut tx, &events).await?;
        tx.commit().await?;
        let rows = outbox::read(&mut conn, 0, &[], 1000).await?.rows;
        assert!(rows.is_sorted_by_key(|row| row.id));
        let versions: Vec<i64> = rows.iter().map(|row| row.aggregate_version).collect();
        assert_eq!(versions, (1..=50).collect::<Vec<_>>());
        assert_eq!(
            (&rows[3].data, &rows[3].source),
            (&events[3].data, &events[3].source.into())
        );
        let headers = rows[3]
            .headers
            .as_ref()
            .and_then(|headers| headers.get("traceparent"));
        assert_eq!(
            headers.and_then(|text| text.as_str()),
            Some("00-abc-def-01")
        );
        let few = outbox::read(&mut conn, rows[9].id, &[rows[2].id, rows[4].id], 3)
            .await?
            .rows;
        let ids: Vec<i64> = few.iter().map(|row| row.id).collect();
        let want = [2, 4, 10, 11, 12].map(|index: usize| rows[index].id);
        assert_eq!(ids, want, "gaps come beside the limit");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_watermark_moves_forward_only_and_tells_the_age() {
    with_db(|db| async move {
        let mut conn = db.store.conn().await?;
        assert_eq!(outbox::watermark(&mut conn).await?, 0);
        assert_eq!(outbox::oldest_unpublished_age(&db.store).await?, None);
        let mut tx = begin_writing(&db).await?;
        outbox::insert(&mut tx, &[event("k", 1), event("k", 2)]).await?;
        tx.commit().await?;
        db.run("update outbox set at = at - interval '1 minute' where aggregate_version = 1")
            .await?;
        let age = outbox::oldest_unpublished_age(&db.store)
            .await?
            .expect("one waits");
        assert!(age >= Duration::from_secs(60), "{age:?}");
        outbox::move_watermark(&mut conn, 1, 1).await?;
        let age = outbox::oldest_unpublished_age(&db.store)
            .await?
            .expect("one waits");
        assert!(age < Duration::from_secs(60), "{age:?}");
        outbox::move_watermark(&mut conn, 2, 2).await?;
        assert_eq!(outbox::oldest_unpublished_age(&db.store).await?, None);
        outbox::move_watermark(&mut conn, 1, 1)
            .await
            .expect_err("backward");
        assert_eq!(outbox::watermark(&mut conn).await?, 2);
        // A gap holds the watermark back, not what is published; and neither says what the other does.
        let mut tx = begin_writing(&db).await?;
        outbox::insert(&mut tx, &[event("k", 3), event("k", 4), event("k", 5)]).await?;
        tx.commit().await?;
        db.run("update outbox set at = at - interval '1 minute' where aggregate_version < 5")
            .await?;
        outbox::move_watermark(&mut conn, 2, 4).await?;
        assert_eq!(outbox::sent(&mut conn).await?, 4);
        let age = outbox::oldest_unpublished_age(&db.store)
            .await?
            .expect("one waits");
        assert!(age < Duration::from_secs(60), "{age:?}");
        outbox::move_watermark(&mut conn, 5, 3).await?;
        assert_eq!(
            outbox::sent(&mut conn).await?,
            5,
            "never below the watermark"
        );
        assert_eq!(outbox::oldest_unpublished_age(&db.store).await?, None);
        let mut tx = begin_writing(&db).await?;
        outbox::insert(&mut tx, &[event("k", 6)]).await?;
        tx.commit().await?;
        outbox::park(&mut conn, 2, contracts::ids::generate(), "too large").await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_made_ahead_and_dropped_when_published_and_old() {
    with_db(|db| async move {
        let mut conn = db.store.conn().await?;
        assert_eq!(
            outbox::make_partitions(&mut conn, 3_000_000).await?,
            0,
            "made by migrate"
        );
        assert_eq!(outbox::make_partitions(&mut conn, 5_000_000).await?, 2);
        let mut tx = begin_writing(&db).await?;
        outbox::insert(&mut tx, &[event("first", 1)]).await?;
        tx.commit().await?;
        db.run("select setval('outbox_id_seq', 1000001)").await?;
        let mut tx = begin_writing(&db).await?;
        outbox::insert(&mut tx, &[event("second", 1)]).await?;
        tx.commit().await?;
        let day = Duration::from_secs(86_400);
        outbox::move_watermark(&mut conn, 999_998, 999_998).await?;
        db.run("update outbox set at = at - interval '2 days'")
            .await?;
        assert_eq!(
            outbox::drop_partitions(&mut conn, day).await?,
            0,
            "not wholly published"
        );
        outbox::move_watermark(&mut conn, 1_000_002, 1_000_002).await?;
        assert_eq!(
            outbox::drop_partitions(&mut conn, day * 3).await?,
            0,
            "not old"
        );
        assert_eq!(outbox::drop_partitions(&mut conn, day).await?, 1);
        let left = outbox::read(&mut conn, 0, &[], 10).await?.rows;
        assert_eq!(
            left.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(),
            ["second"]
        );
        let made = outbox::make_partitions(&mut conn, 3_000_000).await?;
        assert_eq!(made, 0, "a dropped partition is not made again");
        Ok(())
    })
    .await;
}

/// Upkeep runs on the relay's own connection, which answers within two seconds or is lost.
#[tokio::test(flavor = "multi_thread")]
async fn the_age_of_a_partition_is_read_from_its_last_row() {
    with_db(|db| async move {
        db.run(
            "insert into outbox (event_id, topic, key, type, source, aggregate_version, data, at)
             select gen_random_uuid(), 'orders.v1', 'k', 'T', '/s', 1, '{}',
                    now() - case n when 5000 then interval '2 days' else interval '3 days' end
             from generate_series(1, 5000) n;
             select setval('outbox_id_seq', 1000001);
             update relay_watermark set low = 1000000;
             analyze",
        )
        .await?;
        let mut tx = db.store.begin().await?;
        let three_days = Duration::from_secs(3 * 86_400 - 60);
        assert_eq!(outbox::drop_partitions(&mut tx, three_days).await?, 0);
        let read: i64 = sqlx::query_scalar(
            "select coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
             from pg_stat_xact_user_tables where relname = 'outbox_p0'",
        )
        .fetch_one(&mut *tx)
        .await?;
        assert!(read <= 1, "{read} rows were read");
        tx.rollback().await?;
        let mut conn = db.store.conn().await?;
        let day = Duration::from_secs(86_400);
        assert_eq!(outbox::drop_partitions(&mut conn, day).await?, 1);
        Ok(())
    })
    .await;
}
