//! The relay: what is committed is published, in order per key; what is not, is not.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use contracts::events::NewEvent;
use messaging::{admin::RawRecord, relay};
use platform::Shutdown;
use rand::RngExt as _;
use store::{Store, StoreOptions, outbox};

use crate::world::{World, beside, drain, event, wait_for};

/// Each key's first occurrences come with rising versions, from one partition.
pub(crate) fn assert_in_order(records: &[RawRecord]) {
    let mut seen = HashSet::new();
    let mut last: HashMap<&[u8], (i64, i32)> = HashMap::new();
    let mut by_offset: Vec<&RawRecord> = records.iter().collect();
    by_offset.sort_by_key(|record| (record.partition, record.offset));
    for record in by_offset {
        if !seen.insert(record.header("ce_id").unwrap()) {
            continue;
        }
        let version: i64 = record
            .header("ce_aggregateversion")
            .unwrap()
            .parse()
            .unwrap();
        let key = record.key.as_deref().unwrap();
        if let Some((before, partition)) = last.insert(key, (version, record.partition)) {
            assert!(before < version, "version {version} came after {before}");
            assert_eq!(partition, record.partition, "one key, two partitions");
        }
    }
}

pub(crate) fn ids(records: &[RawRecord]) -> HashSet<String> {
    records
        .iter()
        .map(|record| record.header("ce_id").unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_slow_transaction_is_not_passed_over_and_a_rolled_back_one_does_not_hold_up() {
    let world = World::new().await;
    let mut relay = world.lead().await;
    let mut slow = world.store.begin().await.unwrap();
    outbox::begin_fence(&mut slow).await.unwrap();
    outbox::insert(&mut slow, &[event("slow", 1)])
        .await
        .unwrap();
    let mut gone = world.store.begin().await.unwrap();
    outbox::begin_fence(&mut gone).await.unwrap();
    outbox::insert(&mut gone, &[event("gone", 1), event("gone", 2)])
        .await
        .unwrap();
    world.write(&[event("quick", 1)]).await;
    gone.rollback().await.unwrap();

    wait_for(
        "the quick one is published, the slow one waited for",
        async || {
            let step = relay.step().await.unwrap();
            assert_eq!(
                step.low, 0,
                "the watermark must not pass an open transaction"
            );
            step.in_flight == 0 && step.gaps > 0
        },
    )
    .await;
    // many fences later it is still waited for
    for _ in 0..20 {
        assert!(relay.step().await.unwrap().gaps > 0);
    }
    let published = beside(&mut relay, world.published()).await;
    assert_eq!(ids(&published).len(), 1);
    slow.commit().await.unwrap();
    drain(&world, &mut relay).await;
    let keys: HashSet<_> = world
        .published()
        .await
        .into_iter()
        .map(|record| record.key.unwrap())
        .collect();
    assert_eq!(keys, HashSet::from([b"slow".to_vec(), b"quick".to_vec()]));
    assert_eq!(relay.low(), 4, "two rolled back ids are closed");
    relay.stand_down().await;
    world.end().await;
}

/// How old the oldest event that waits is made to look.
const OLD: Duration = Duration::from_secs(60);

async fn age(world: &World) -> Option<Duration> {
    outbox::oldest_unpublished_age(&world.store).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_published_is_old_for_nobody_however_long_a_gap_below_it_stays_open() {
    let world = World::new().await;
    let mut relay = world.lead().await;
    let patient = StoreOptions {
        idle_in_transaction_session_timeout: Duration::from_mins(10),
        ..world.options.clone()
    };
    let patient = Store::connect(&patient).unwrap();
    let mut slow = patient.begin().await.unwrap();
    outbox::begin_fence(&mut slow).await.unwrap();
    outbox::insert(&mut slow, &[event("slow", 1)])
        .await
        .unwrap();
    world.write(&[event("quick", 1), event("quick", 2)]).await;
    world.sql("update outbox set at = at - interval '1 minute'");
    assert!(age(&world).await.unwrap() >= OLD);
    wait_for("all that is there to be published", async || {
        let step = relay.step().await.unwrap();
        assert_eq!(step.low, 0, "the gap is open");
        step.in_flight == 0 && step.gaps > 0 && age(&world).await.is_none()
    })
    .await;
    world.write(&[event("quick", 3)]).await;
    assert!(age(&world).await.unwrap() < OLD, "the newest alone waits");
    wait_for("the newest to be published", async || {
        relay.step().await.unwrap();
        age(&world).await.is_none()
    })
    .await;
    relay.stand_down().await;

    // The next leader, whose broker is away, begins at the watermark: what it sends once more is no
    // younger for it, and what appears now is as old as it is.
    let mut config = world.relay_config();
    config.brokers = "127.0.0.1:1".to_owned();
    config.silence_max = Duration::from_mins(10);
    let mut relay = world.lead_at(config).await;
    wait_for("all to be sent again", async || {
        relay.step().await.unwrap().in_flight == 3
    })
    .await;
    assert_eq!(age(&world).await, None);
    slow.commit().await.unwrap();
    world.sql("update outbox set at = at - interval '1 minute' where key = 'slow'");
    wait_for("what came late to count", async || {
        relay.step().await.unwrap();
        age(&world).await.is_some_and(|age| age >= OLD)
    })
    .await;
    drop(relay);
    let mut relay = world.lead().await;
    drain(&world, &mut relay).await;
    assert_eq!((relay.low(), age(&world).await), (4, None));
    relay.stand_down().await;
    patient.close().await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_overlapping_transactions_lose_no_event_and_keep_order_per_key() {
    let world = World::new().await;
    let shutdown = Shutdown::new();
    let leader = tokio::spawn(relay::run(world.relay_config(), shutdown.clone()));
    let mut writers = Vec::new();
    for writer in 0..12 {
        let store = world.store.clone();
        writers.push(tokio::spawn(async move {
            let mut committed = Vec::new();
            let mut version = 0;
            for _ in 0..40 {
                let mut tx = store.begin().await.unwrap();
                outbox::begin_fence(&mut tx).await.unwrap();
                let size = rand::rng().random_range(1..4);
                let events: Vec<NewEvent> = (1..=size)
                    .map(|n| event(&format!("key-{writer}"), version + n))
                    .collect();
                outbox::insert(&mut tx, &events).await.unwrap();
                let pause = rand::rng().random_range(0..30);
                tokio::time::sleep(Duration::from_millis(pause)).await;
                if rand::rng().random_bool(0.2) {
                    tx.rollback().await.unwrap();
                } else {
                    tx.commit().await.unwrap();
                    version += size;
                    committed.extend(events.iter().map(|event| event.event_id.to_string()));
                }
            }
            committed
        }));
    }
    let mut committed = HashSet::new();
    for writer in writers {
        committed.extend(writer.await.unwrap());
    }
    let top = world.number("select max(id) from outbox");
    wait_for("the watermark reaches the end", async || {
        world.number("select low from relay_watermark") >= top
    })
    .await;
    shutdown.begin();
    leader.await.unwrap();
    let records = world.published().await;
    assert_eq!(ids(&records), committed);
    assert_in_order(&records);
    world.end().await;
}

#[tokio::test]
async fn a_relay_that_dies_before_its_watermark_moved_repeats_the_same_event_ids() {
    let world = World::new().await;
    let events: Vec<NewEvent> = (1..=1500)
        .map(|n| event(&format!("k{}", n % 7), n))
        .collect();
    world.write(&events).await;
    let mut first = world.lead().await;
    first.step().await.unwrap();
    wait_for("the first relay's records are on the broker", async || {
        !world.published().await.is_empty()
    })
    .await;
    assert_eq!(first.low(), 0);
    drop(first);
    let mut second = world.lead().await;
    assert_eq!(second.low(), 0);
    drain(&world, &mut second).await;
    second.stand_down().await;
    let records = world.published().await;
    let written: HashSet<String> = events
        .iter()
        .map(|event| event.event_id.to_string())
        .collect();
    assert_eq!(ids(&records), written);
    assert!(
        records.len() > events.len(),
        "the second relay began at the watermark"
    );
    assert_in_order(&records);
    world.end().await;
}

#[tokio::test]
async fn a_leader_that_loses_its_session_stands_down_and_leads_again() {
    let world = World::new().await;
    let shutdown = Shutdown::new();
    let relays: Vec<_> = (0..2)
        .map(|_| tokio::spawn(relay::run(world.relay_config(), shutdown.clone())))
        .collect();
    let leases = "select count(*) from pg_stat_activity
                  where datname = current_database() and application_name like '%lease%'";
    for round in 1..=4 {
        let events: Vec<NewEvent> = (1..=50).map(|n| event("k", round * 100 + n)).collect();
        world.write(&events).await;
        wait_for("one leads", async || world.number(leases) >= 1).await;
        world.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity
             where datname = current_database() and application_name like '%lease%'",
        );
    }
    let top = world.number("select max(id) from outbox");
    wait_for("all is published", async || {
        world.number("select low from relay_watermark") >= top
    })
    .await;
    wait_for(
        "one leads, the other holds no session for long",
        async || world.number(leases) == 1,
    )
    .await;
    shutdown.begin();
    for relay in relays {
        relay.await.unwrap();
    }
    let records = world.published().await;
    assert_eq!(ids(&records).len(), 200);
    assert_in_order(&records);
    world.end().await;
}

/// A relay that takes fifty rows every few seconds trails by hours. 20,000 rows here.
#[tokio::test]
async fn a_backlog_is_drained_in_seconds_and_nothing_of_it_is_lost() {
    let world = World::new().await;
    world.sql(
        "insert into outbox (event_id, topic, key, type, source, aggregate_version, data)
         select gen_random_uuid(), 'payments.v1', 'k' || n % 97, 'PAYMENT_FAILED',
                '/holdfast/payment', n, '{\"n\":' || n || '}'
         from generate_series(1, 20000) n",
    );
    let mut relay = world.lead().await;
    let begun = std::time::Instant::now();
    drain(&world, &mut relay).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
    relay.stand_down().await;
    let records = world.published().await;
    assert_eq!(ids(&records).len(), 20_000);
    assert_in_order(&records);
    world.end().await;
}
