//! A broker that is away, slow, or gives the same again.

use std::time::Duration;

use cli::{servers::native, services::ServiceName};
use contracts::{ConsumerName, Topic, TopicNames};
use messaging::admin::{self, Producer, RawRecord};
use platform::clock;
use rand::{RngExt, rngs::StdRng, seq::SliceRandom};
use rdkafka::{ClientConfig, admin::AdminClient, client::DefaultClientContext};

use super::{Bite, Site, Window, count, hold, seconds, until};

/// Beyond the 90 s that every server has.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
const DRAINED_WITHIN: Duration = Duration::from_secs(60);
/// Records that a storm repeats.
const STORM: usize = 3_000;

/// How old the oldest event is that the relay has not published, in seconds.
async fn backlog(site: &Site) -> anyhow::Result<f64> {
    let mut conn = site.plant.sql().await?;
    let age: Option<f64> = sqlx::query_scalar(
        "select extract(epoch from clock_timestamp() - min(at))::float8 from outbox
         where id > (select greatest(low, sent) from relay_watermark where name = 'outbox')",
    )
    .fetch_one(&mut conn)
    .await?;
    Ok(age.unwrap_or(0.0))
}

pub(super) async fn down(site: &Site, away: Duration, window: &mut Window) -> anyhow::Result<Bite> {
    let (turned, accepted) = answers(site);
    let mut kafka = site.plant.kafka.lock().await;
    kafka.kill().await;
    hold(away.as_secs_f64()).await;
    let waited = backlog(site).await?;
    let (turned_then, accepted_then) = answers(site);
    start_again(&mut kafka).await?;
    drop(kafka);
    window.heal();
    let drained = until(DRAINED_WITHIN, || async {
        backlog(site).await.is_ok_and(|age| age < 1.0)
    })
    .await;
    let times = u64::from(waited > away.as_secs_f64() / 2.0);
    let how = format!("the oldest event waited {waited:.1} s");
    Ok(Bite::of(times, how)
        .with("down_s", away.as_secs_f64())
        .with("tries_turned_away", turned_then - turned)
        .with("accepted_meanwhile", accepted_then - accepted)
        .with("backlog_drained_s", seconds(drained)))
}

/// Starts the broker again. On a machine that does much else it may take longer than any other
/// server, as it reads the ends of all its logs first; while it runs it is waited for.
async fn start_again(kafka: &mut native::Kafka) -> anyhow::Result<()> {
    let Err(error) = kafka.restart().await else {
        return Ok(());
    };
    if !kafka.identity().is_running() {
        return Err(error.into());
    }
    eprintln!("the broker takes its time: {error}");
    Ok(admin::wait_ready(&kafka.url(), STARTS_WITHIN).await?)
}

/// Tries told to come again, and orders accepted.
fn answers(site: &Site) -> (f64, f64) {
    let inner = site.ledger.inner();
    let of = |status: u16| inner.statuses.get(&status).copied().unwrap_or(0);
    let number = |n: u64| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
    (number(of(503)), number(of(201)))
}

/// Longer than a quarter of the short orders' time: those are told to come again.
pub(super) async fn down_short(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let (before, _) = answers(site);
    let bite = down(site, Duration::from_secs(9), window).await?;
    let (after, _) = answers(site);
    let times = count(after - before);
    Ok(Bite {
        times,
        how: format!("tries told to come again; {}", bite.how),
        ..bite
    })
}

pub(super) async fn restart_loop(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let mut kafka = site.plant.kafka.lock().await;
    let mut times = 0;
    for _ in 0..3 {
        let identity = kafka.identity();
        kafka.kill().await;
        times += u64::from(!identity.is_running());
        start_again(&mut kafka).await?;
        hold(2.0).await;
    }
    drop(kafka);
    window.heal();
    Ok(Bite::of(times, "lives of the broker that were ended"))
}

pub(super) async fn slow(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let bites = || {
        site.plant
            .links
            .iter()
            .map(|links| links.kafka.bites())
            .sum::<u64>()
    };
    let before = bites();
    for links in &site.plant.links {
        links.kafka.delay(Duration::from_millis(500));
    }
    hold(6.0).await;
    for links in &site.plant.links {
        links.kafka.heal();
    }
    window.heal();
    Ok(Bite::of(
        bites() - before,
        "packets that the links held back",
    ))
}

/// Members come and go while events are handled.
pub(super) async fn storm(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let mut times = 0;
    for round in 0..4 {
        let service = [ServiceName::Stock, ServiceName::Payment][round % 2];
        let member = site.plant.replica(service, 1)?;
        times += u64::from(member.stop(Duration::from_secs(10)).await?.is_some());
        member.start().await?;
        hold(2.0).await;
    }
    window.heal();
    Ok(Bite::of(times, "members that left and joined"))
}

async fn duplicate_events(site: &Site) -> f64 {
    site.metrics.read(&site.plant).await;
    site.metrics.sum("events_handled_total", &["\"duplicate\""])
}

/// Nobody knows how far the group had read: everything is read again.
pub(super) async fn reset(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let before = duplicate_events(site).await;
    for replica in site.plant.of(ServiceName::Stock) {
        replica.stop(Duration::from_secs(15)).await?;
    }
    let client: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", &site.plant.brokers)
        .create()?;
    let names = TopicNames::new("");
    let group = names.group(ConsumerName::Stock);
    let deleted = client
        .delete_groups(&[group.as_str()], &rdkafka::admin::AdminOptions::new())
        .await?;
    for result in deleted {
        if let Err((group, code)) = result {
            anyhow::bail!("{group}: {code}");
        }
    }
    for replica in site.plant.of(ServiceName::Stock) {
        replica.start().await?;
    }
    window.heal();
    until(Duration::from_secs(20), || async {
        duplicate_events(site).await > before
    })
    .await;
    let times = count(duplicate_events(site).await - before);
    Ok(Bite::of(times, "events that the inbox knew"))
}

/// Records of orders.v1 and payments.v1 once more, in any order.
pub(super) async fn duplicates(site: &Site, random: &mut StdRng) -> anyhow::Result<Bite> {
    let before = duplicate_events(site).await;
    let names = TopicNames::new("");
    let producer = Producer::new(&site.plant.brokers)?;
    let begun = clock::monotonic();
    let mut sent = 0_u32;
    for topic in [Topic::Orders, Topic::Payments] {
        let name = names.topic(topic);
        let mut records = latest(&site.plant.brokers, &name).await?;
        records.shuffle(random);
        records.truncate(STORM / 2);
        let sends = records.iter().map(|record| async {
            let headers: Vec<(&str, &[u8])> = record
                .headers
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_deref().unwrap_or_default()))
                .collect();
            let place = (name.as_str(), record.partition);
            let (key, value) = (record.key.as_deref(), record.payload.as_deref());
            producer.send_to(place, key, &headers, value).await.is_ok()
        });
        let done = futures::future::join_all(sends).await;
        sent += u32::try_from(done.into_iter().filter(|ok| *ok).count())?;
    }
    hold(random.random_range(1.0..3.0)).await;
    until(Duration::from_secs(15), || async {
        duplicate_events(site).await > before
    })
    .await;
    let times = count(duplicate_events(site).await - before);
    Ok(Bite::of(times, "events that the inbox knew")
        .with("records_repeated", f64::from(sent))
        .with("seconds", begun.elapsed().as_secs_f64()))
}

async fn latest(brokers: &str, topic: &str) -> anyhow::Result<Vec<RawRecord>> {
    let (brokers, topic) = (brokers.to_owned(), topic.to_owned());
    let read = tokio::task::spawn_blocking(move || {
        let mut records = std::collections::VecDeque::new();
        admin::dump(&brokers, &topic, |record| {
            if records.len() > STORM {
                records.pop_front();
            }
            records.push_back(record);
        })
        .map(|_| records.into_iter().collect())
    });
    Ok(read.await??)
}
