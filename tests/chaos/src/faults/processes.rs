//! Services that die, stand still, or are asked to end.

use std::time::Duration;

use anyhow::Context;
use cli::services::ServiceName;
use nix::sys::signal::Signal;
use rand::{RngExt, rngs::StdRng};

use super::{Bite, Site, Window, count, hold, seconds, until};
use crate::service::Replica;

const LEADS: &str = "relay_is_leader";
const BACK_WITHIN: Duration = Duration::from_secs(20);

/// Kills one replica, under load, and starts it again.
pub(super) async fn kill(
    site: &Site,
    service: ServiceName,
    random: &mut StdRng,
    window: &mut Window,
) -> anyhow::Result<Bite> {
    let replicas = site.plant.of(service).count().max(1);
    let number = random.random_range(0..replicas);
    let replica = site.plant.replica(service, number)?;
    let killed = replica.kill().await?;
    hold(random.random_range(0.0..2.0)).await;
    let began = replica.start().await?;
    window.heal();
    replica.ready().await?;
    let ready = began.elapsed();
    let mut bite = Bite::of(
        u64::from(killed),
        format!("{} ended by SIGKILL", replica.name),
    )
    .with("ready_after_start_s", ready.as_secs_f64());
    if service == ServiceName::GatewaySim {
        site.plant.gateway_as_usual().await?;
    }
    if service == ServiceName::Order {
        let served = || async {
            site.ledger
                .first_accepted_after(began, Some(number))
                .is_some()
        };
        until(BACK_WITHIN, served).await;
        let first = site.ledger.first_accepted_after(began, Some(number));
        bite = bite.with("served_after_start_s", seconds(first));
    }
    Ok(bite)
}

/// The process that leads the relay now.
async fn leader(site: &Site) -> anyhow::Result<&Replica> {
    for _ in 0..100 {
        site.metrics.read(&site.plant).await;
        if let Some(name) = site.metrics.at_one(LEADS).first()
            && let Some(replica) = site.plant.replicas.iter().find(|one| one.name == *name)
        {
            return Ok(replica);
        }
        hold(0.1).await;
    }
    anyhow::bail!("nobody leads the relay")
}

async fn another_leads(site: &Site, than: &str) -> bool {
    site.metrics.read(&site.plant).await;
    site.metrics.at_one(LEADS).iter().any(|name| name != than)
}

pub(super) async fn kill_leader(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let leader = leader(site).await?;
    let killed = leader.kill().await?;
    let taken = until(BACK_WITHIN, || another_leads(site, &leader.name)).await;
    leader.start().await?;
    window.heal();
    leader.ready().await?;
    let times = u64::from(killed && taken.is_some());
    let how = format!("{} ended by SIGKILL, another leads", leader.name);
    Ok(Bite::of(times, how).with("another_leads_s", seconds(taken)))
}

pub(super) async fn kill_all(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let kills = site.plant.replicas.iter().map(Replica::kill);
    let killed = futures::future::join_all(kills).await;
    let killed = killed.into_iter().filter(|one| matches!(one, Ok(true)));
    let times = u64::try_from(killed.count())?;
    for replica in &site.plant.replicas {
        replica.start().await?;
    }
    let began = platform::clock::monotonic();
    window.heal();
    for replica in &site.plant.replicas {
        replica.ready().await?;
    }
    site.plant.gateway_as_usual().await?;
    until(BACK_WITHIN, || async {
        site.ledger.first_accepted_after(began, None).is_some()
    })
    .await;
    let first = site.ledger.first_accepted_after(began, None);
    Ok(Bite::of(times, "processes ended by SIGKILL").with("served_after_start_s", seconds(first)))
}

/// A consumer that stands still for longer than its session: its partitions move, and what it was
/// doing must not count when it goes on.
pub(super) async fn zombie(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let stopped = site.plant.replica(ServiceName::Stock, 0)?;
    let other = site.plant.replica(ServiceName::Stock, 1)?;
    let handled = || {
        site.metrics
            .sum_of(&other.name, "events_handled_total", &["\"handled\""])
    };
    anyhow::ensure!(stopped.signal(Signal::SIGSTOP).await, "nothing to stop");
    hold(8.0).await;
    let before = handled();
    hold(6.0).await;
    site.metrics.read(&site.plant).await;
    let meanwhile = handled() - before;
    stopped.signal(Signal::SIGCONT).await;
    window.heal();
    stopped.ready().await?;
    let how = format!("events that {} handled meanwhile", other.name);
    Ok(Bite::of(count(meanwhile), how))
}

pub(super) async fn stop_leader(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let leader = leader(site).await?;
    anyhow::ensure!(leader.signal(Signal::SIGSTOP).await, "nothing to stop");
    let taken = until(Duration::from_secs(8), || another_leads(site, &leader.name)).await;
    hold(1.0).await;
    leader.signal(Signal::SIGCONT).await;
    window.heal();
    leader.ready().await?;
    let how = format!("{} stood still, another leads", leader.name);
    Ok(Bite::of(u64::from(taken.is_some()), how).with("another_leads_s", seconds(taken)))
}

/// Every service in turn: asked to end, started again, ready, then the next.
pub(super) async fn rolling(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let unanswered = || site.ledger.inner().statuses.get(&0).copied().unwrap_or(0);
    let before = unanswered();
    let mut ended = 0;
    let mut slowest = Duration::ZERO;
    for replica in &site.plant.replicas {
        if replica.service == ServiceName::GatewaySim {
            continue;
        }
        let stopped = replica.stop(Duration::from_secs(10)).await?;
        let (took, well) = stopped
            .with_context(|| format!("{} did not end within 10 s of SIGTERM", replica.name))?;
        anyhow::ensure!(well, "{} did not end with 0", replica.name);
        ended += 1;
        slowest = slowest.max(took);
        replica.start().await?;
        replica.ready().await?;
    }
    window.heal();
    let lost = unanswered() - before;
    Ok(Bite::of(ended, "services ended with 0 after SIGTERM")
        .with("slowest_end_s", slowest.as_secs_f64())
        .with("tries_without_answer", f64::from(u32::try_from(lost)?)))
}
