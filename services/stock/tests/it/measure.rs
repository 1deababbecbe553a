//! Measurements that documents quote; run by hand:
//! `cargo test -p stock --test it measure:: -- --ignored --nocapture`.

use std::{sync::Arc, time::Duration};

use contracts::ConsumerName;
use stock::{Audit, RepairDrift, ResendEvents, rebuild_gate::rebuild_if_lost};
use store::{StoreOptions, audit::Auditor, verify::Payments};

use crate::{
    gate::{key, redis_do},
    support::{SHARD, World},
};

fn say(text: &str) {
    eprintln!("measured: {text}");
}

/// T11: 10,000 SKUs and 100,000 holds, wiped; how long until the gate is open and exact.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: two minutes"]
async fn a_wiped_gate_of_ten_thousand_skus_and_a_hundred_thousand_holds() {
    let world = World::new().await;
    world
        .execute(
            "insert into skus (sku, unit_price_minor, currency, reservation_ttl_seconds)
             select 'S' || lpad(n::text, 5, '0'), 1000, 'KRW', 3600 from generate_series(0, 9999) n;
             insert into stock (sku, on_hand, held)
             select 'S' || lpad(n::text, 5, '0'), 100, 10 from generate_series(0, 9999) n;
             create temp table o as
             select n, gen_random_uuid() as id, gen_random_uuid() as hold_id,
                    'S' || lpad((n % 10000)::text, 5, '0') as sku
             from generate_series(1, 100000) n;
             insert into idempotency (hold_id, fingerprint, order_id)
             select hold_id, ''::bytea, id from o;
             insert into orders (id, hold_id, shop, customer_id, status, total_minor, currency,
                                 payment_method, reserved_until, created_at)
             select id, hold_id, 'shop', 'c-' || n, 'RESERVED', 1000, 'KRW', 'card',
                    now() + interval '1 hour' + n * interval '1 ms', now() from o;
             insert into order_lines (order_id, sku, quantity, unit_price_minor)
             select id, sku, 1, 1000 from o;
             drop table o;",
        )
        .await;
    world.execute("analyze").await;
    for round in 0..3 {
        let begun = platform::clock::monotonic();
        rebuild_if_lost(&world.stock, SHARD).await.unwrap();
        let took = begun.elapsed();
        say(&format!("rebuild {round}: {} ms", took.as_millis()));
        let drift = RepairDrift::new(world.stock.clone());
        for look in 0..2 {
            let begun = platform::clock::monotonic();
            let repaired = drift.look().await.unwrap();
            assert_eq!(repaired, stock::Repaired::default());
            let took = begun.elapsed();
            say(&format!("drift look {look}: {} ms", took.as_millis()));
        }
        let meta = key(&world, ":meta").await;
        redis_do(&world, &["DEL", &meta]).await;
    }
}

/// T22: what the audit costs with the million orders of the database in `MEASURE_DATABASE_URL`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: needs a filled database, takes two minutes"]
async fn the_audit_over_a_million_orders() {
    let url = std::env::var("MEASURE_DATABASE_URL").expect("MEASURE_DATABASE_URL");
    let world = World::new().await;
    let store = store::Store::connect(&StoreOptions::background(&url, "measure")).unwrap();
    let stock = stock::Stock {
        store,
        gate: world.stock.gate.clone(),
    };
    let options = StoreOptions::background(&url, "measure");
    let auditor = Auditor::new(&options, Payments::Internal).unwrap();
    let consumers = vec![ConsumerName::Payment, ConsumerName::Stock];
    let resend = Arc::new(ResendEvents::new(stock.clone(), auditor.clone(), consumers));
    let drift = Arc::new(RepairDrift::new(stock.clone()));
    let audit = Audit::new(stock.clone(), auditor, drift, Arc::clone(&resend));
    let begun = platform::clock::monotonic();
    let mut cpu = None;
    let mut looks = 0_u32;
    while begun.elapsed() < Duration::from_secs(150) {
        audit.look().await.unwrap();
        resend.look().await.unwrap();
        looks += 1;
        // The first half minute checks everything once; what comes after is the rhythm.
        if cpu.is_none() && begun.elapsed() > Duration::from_secs(30) {
            cpu = Some((begun.elapsed(), backend_cpu(&url).await, own_cpu()));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let (since, backend, own) = cpu.unwrap();
    let window = (begun.elapsed() - since).as_secs_f64();
    let share = |ticks: u64| 100.0 * ticks as f64 / 100.0 / window;
    say(&format!(
        "{looks} looks; over {window:.0} s: the backend {:.2} % of a core, this process {:.2} %",
        share(backend_cpu(&url).await - backend),
        share(own_cpu() - own),
    ));
    say(&format!("red: {:?}", audit.red().await));
}

/// User and system time of a process of this machine, in hundredths of a second.
fn cpu_of(pid: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn own_cpu() -> u64 {
    cpu_of("self")
}

async fn backend_cpu(url: &str) -> u64 {
    let pool = sqlx::PgPool::connect(url).await.unwrap();
    let pid: i32 = sqlx::query_scalar(
        "select pid from pg_stat_activity where application_name = 'measure audit'",
    )
    .fetch_one(&pool)
    .await
    .unwrap();
    pool.close().await;
    cpu_of(&pid.to_string())
}
