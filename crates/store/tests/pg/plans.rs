//! The hot statements on tables with a past: none may read a whole table.

use anyhow::Result;
use contracts::{ConsumerName, envelope::source};
use domain::OrderStatus;
use store::{
    Store, holds, idempotency, inbox,
    orders::{self, Ending, transition},
    outbox,
    skus::SkuPut,
    timeline::{self, Events},
};

use crate::support::{Db, accept, buyer, hold, request, sku, sku_put, wait_for, with_db};

const PAST: &str = "
insert into idempotency (hold_id, fingerprint, order_id)
select md5('h' || n)::uuid, '\\x00', md5('o' || n)::uuid from generate_series(1, 30000) n;
insert into orders (id, hold_id, shop, customer_id, status, version, total_minor, currency,
                    payment_method, reserved_until, created_at, ended_at)
select md5('o' || n)::uuid, md5('h' || n)::uuid, 'shop', 'c-' || n, 'CONFIRMED', 2, 1000, 'KRW',
       'card', now(), now(), now()
from generate_series(1, 30000) n;
insert into order_lines (order_id, sku, quantity, unit_price_minor)
select md5('o' || n)::uuid, 'P', 1, 1000 from generate_series(1, 30000) n;
insert into order_history (order_id, version, to_status, cause, at)
select md5('o' || n)::uuid, 1, 'RESERVED', 'accept', now() from generate_series(1, 30000) n;
insert into buyer_units (sku, shop, customer_id, units)
select 'L', 'shop', 'c-' || n, 1 from generate_series(1, 30000) n;
insert into outbox (event_id, topic, key, type, source, aggregate_version, data)
select gen_random_uuid(), 'orders.v1', n::text, 'T', '/s', 1, '{}' from generate_series(1, 30000) n;
update relay_watermark set low = 29000;
insert into inbox (consumer, source, event_id)
select 'stock', '/s', n::text from generate_series(1, 30000) n;
insert into skus (sku, unit_price_minor, currency, reservation_ttl_seconds)
select 'X' || n, 1, 'KRW', 60 from generate_series(1, 40000) n;
insert into stock (sku, on_hand) select 'X' || n, 1000 from generate_series(1, 40000) n;
analyze;
";

/// Tables that grow and were read whole since the last reset.
async fn read_whole(db: &Db) -> Result<Vec<String>> {
    let mut conn = db.store.conn().await?;
    let tables = sqlx::query_scalar(
        "select relname::text from pg_stat_user_tables
         where seq_scan > 0
           and relname in ('idempotency', 'orders', 'order_lines', 'order_history', 'buyer_units',
                           'inbox', 'skus', 'stock', 'outbox_p0')",
    );
    Ok(tables.fetch_all(&mut *conn).await?)
}

/// Statistics are sent by an idle session when it likes; this makes it do so at once.
async fn flush(store: &Store) -> Result<()> {
    let mut conn = store.conn().await?;
    sqlx::query("select pg_stat_force_next_flush()")
        .execute(&mut *conn)
        .await?;
    store.ping().await?;
    Ok(())
}

/// Rows of a table that were read by the sessions of `store` since the last reset, once all of them have
/// told: `least` at least.
async fn rows_read(db: &Db, store: &Store, table: &str, least: i64) -> Result<i64> {
    let query = format!(
        "select seq_tup_read + idx_tup_fetch from pg_stat_user_tables where relname = '{table}'"
    );
    wait_for("the sessions to tell what they have read", || async {
        flush(store).await?;
        Ok(db.number(&query).await? >= least)
    })
    .await?;
    db.number(&query).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_hot_statement_reads_a_whole_table() {
    with_db(|db| async move {
        db.put(&sku_put("P", 1_000_000)).await?;
        db.put(&SkuPut {
            per_customer_limit: Some(5),
            ..sku_put("L", 1_000_000)
        })
        .await?;
        db.run(PAST).await?;
        // Two connections: the accept of these tests reads the catalogue beside its transaction.
        let one = db.store_with(|options| options.max_connections = 2);
        db.run("select pg_stat_reset()").await?;
        // More than five times each, so that generic plans are met as well.
        for round in 0..8 {
            for size in [1, 64] {
                hot_path(&one, round, size).await?;
                flush(&one).await?;
                let none: [&str; 0] = [];
                assert_eq!(read_whole(&db).await?, none, "in round {round} of {size}");
            }
        }
        one.close().await;
        Ok(())
    })
    .await;
}

async fn hot_path(store: &Store, round: usize, size: usize) -> Result<()> {
    let key = |n: usize| format!("r-{round}-{size}-{n}");
    let requests: Vec<_> = (0..size)
        .map(|n| {
            let other = format!("X{}", n + 1);
            request(&key(n), &key(n), &[("P", 1), ("L", 1), (other.as_str(), 1)])
        })
        .collect();
    let (_, accepted) = accept(store, &requests).await?;
    assert_eq!(accepted.len(), size);
    let ids: Vec<_> = accepted.iter().map(|order| order.id).collect();
    let keys: Vec<_> = (0..size).map(|n| hold(&key(n))).collect();
    {
        let mut conn = store.conn().await?;
        assert_eq!(idempotency::find(&mut conn, &keys).await?.len(), size);
        let gaps: Vec<i64> = (100..100 + i64::try_from(size)?).collect();
        outbox::read(&mut conn, 29_500, &gaps, 1000).await?;
        idempotency::prune(&mut conn, 100).await?;
    }
    holds::of_orders(store, &ids).await?;
    holds::by_hold(store, &keys).await?;
    orders::get(store, ids[0], None).await?;
    let who = buyer("c-77");
    let listed = orders::list(store, Some(&who.shop), Some(&who.customer), None, 10, None).await?;
    assert_eq!(listed.orders.len(), 1);
    outbox::oldest_unpublished_age(store).await?;
    store::skus::registers(store, &[sku("P"), sku("X7")]).await?;
    holds::live_page(store, domain::Shard(0), None, 10).await?;

    let now = store.clock().await?;
    let mut tx = store.begin().await?;
    let events: Vec<_> = (0..size).map(|n| ("/s".to_owned(), key(n))).collect();
    inbox::insert(&mut tx, ConsumerName::Stock, &events).await?;
    let locked = orders::lock(&mut tx, &ids).await?;
    let endings: Vec<Ending<'_>> = locked
        .iter()
        .enumerate()
        .map(|(n, order)| Ending {
            order,
            to: if n % 2 == 0 {
                OrderStatus::Confirmed
            } else {
                OrderStatus::Canceled
            },
            cause: "cancel".to_owned(),
            reason: "a test".to_owned(),
        })
        .collect();
    transition(&mut tx, &endings, now, source::STOCK).await?;
    tx.commit().await?;
    Ok(())
}

/// An hour's events before the order and an hour's after it.
const HOURS: &str = "
insert into outbox (event_id, topic, key, type, source, aggregate_version, data, at)
select gen_random_uuid(), 'orders.v1', n::text, 'T', '/s', 1, '{}',
       now() + n * interval '180 ms' * case when $after then 1 else -1 end
from generate_series(1, 20000) n order by 8;
analyze outbox;
";

#[tokio::test(flavor = "multi_thread")]
async fn a_timeline_reads_the_outbox_around_its_moments_alone() {
    with_db(|db| async move {
        db.put(&sku_put("P", 1_000)).await?;
        db.run(&HOURS.replace("$after", "false")).await?;
        let placed = request("1", "c-1", &[("P", 1)]);
        let (_, accepted) = accept(&db.store, &[placed]).await?;
        db.run(&HOURS.replace("$after", "true")).await?;
        let one = db.store_with(|options| options.max_connections = 2);
        db.run("select pg_stat_reset()").await?;
        let steps = timeline::of_order(&one, accepted[0].id, Events::Near).await?;
        let what: Vec<&str> = steps.iter().map(|step| step.what.as_str()).collect();
        assert_eq!(what, ["RESERVED", "ORDER_RESERVED"]);
        let read = rows_read(&db, &one, "outbox_p0", 1).await?;
        // 10 s of them, and 25 steps of the search at either end.
        assert!((1..1_000).contains(&read), "{read} rows were read");
        one.close().await;
        Ok(())
    })
    .await;
}

/// Old orders, all CONFIRMED, of which the oldest is not; a rare customer among them.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_a_list_costs_what_it_holds_however_rare_its_status() {
    with_db(|db| async move {
        for name in ["P", "L"] {
            db.put(&sku_put(name, 1_000)).await?;
        }
        let placed: Vec<_> = ["c-canceled", "c-expired", "c-reserved"]
            .map(|name| request(name, name, &[("P", 1)]))
            .into();
        let (_, accepted) = accept(&db.store, &placed).await?;
        let [canceled, expired, reserved] = [0, 1, 2].map(|at| accepted[at].id);
        // Newer than those: ids begin with the time.
        db.run(&PAST.replace("md5('o' || n)", "('f' || substr(md5('o' || n), 2))"))
            .await?;
        for (id, status) in [(canceled, "CANCELED"), (expired, "EXPIRED")] {
            db.run(&format!(
                "update orders set status = '{status}', version = 2, ended_at = now() \
                 where id = '{id}'"
            ))
            .await?;
        }
        db.run("analyze orders").await?;
        let one = db.store_with(|options| options.max_connections = 2);
        db.run("select pg_stat_reset()").await?;
        let who = buyer("c-expired");
        let shops = [None, Some(&who.shop)];
        let mut pages = 0;
        // More than five times each, so that generic plans are met as well.
        for _ in 0..8 {
            for shop in shops {
                for (status, id) in [
                    (OrderStatus::Canceled, canceled),
                    (OrderStatus::Expired, expired),
                    (OrderStatus::Reserved, reserved),
                ] {
                    let page = orders::list(&one, shop, None, Some(status), 10, None).await?;
                    let found: Vec<_> = page.orders.iter().map(|order| order.id).collect();
                    assert_eq!((found, page.has_more), (vec![id], false), "{status}");
                    pages += 1;
                }
                let of = Some(&who.customer);
                let page = orders::list(&one, shop, of, None, 10, None).await?;
                assert_eq!(page.orders.len(), 1);
                let confirmed = Some(OrderStatus::Confirmed);
                let page = orders::list(&one, shop, None, confirmed, 10, None).await?;
                assert_eq!((page.orders.len(), page.has_more), (10, true));
                pages += 2;
            }
        }
        let read = rows_read(&db, &one, "orders", pages).await?;
        assert!(
            (pages..pages * 15).contains(&read),
            "{read} rows for {pages} pages"
        );
        one.close().await;
        Ok(())
    })
    .await;
}
