//! A Redis that dies, forgets, is slow, full, or refuses.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use cli::services::ServiceName;

use super::{Bite, GATE_EXACT, Site, Window, count, hold, seconds, until};
use crate::{gate::exact_after, link::Mode};

/// Calls of the gate that failed, and rebuilds.
async fn gate_trouble(site: &Site) -> f64 {
    site.metrics.read(&site.plant).await;
    site.metrics.sum("gate_errors_total", &[]) + site.metrics.sum("gate_syncs_failed_total", &[])
}

/// From the logs: a process that dies beside takes its counter along.
fn rebuilds(site: &Site) -> u64 {
    crate::logs::lines(&site.plant.dir, "gate of a shard was rebuilt")
}

/// Killed, away for a while, and started again from its AOF.
pub(super) async fn killed(
    site: &Site,
    away: Duration,
    window: &mut Window,
) -> anyhow::Result<Bite> {
    let before = gate_trouble(site).await;
    let mut redis = site.plant.redis.lock().await;
    redis.kill().await;
    hold(away.as_secs_f64()).await;
    redis.restart().await?;
    drop(redis);
    let up = window.heal();
    let exact = exact_after(site, up).await?;
    let times = count(gate_trouble(site).await - before);
    Ok(Bite::of(times, "calls of the gate that failed").with(GATE_EXACT, seconds(exact)))
}

/// The newest file of the append-only log.
fn aof(home: &Path) -> anyhow::Result<PathBuf> {
    let dir = home.join("data/appendonlydir");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().ends_with(".incr.aof"))
        .collect();
    files.sort();
    files.pop().context("Redis has no append-only log")
}

/// The last writes are gone after the restart, although they were acknowledged.
pub(super) async fn tail_cut(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let mut redis = site.plant.redis.lock().await;
    redis.kill().await;
    let path = aof(redis.home())?;
    let file = std::fs::OpenOptions::new().write(true).open(&path)?;
    let length = file.metadata()?.len();
    let cut = (length / 10).clamp(1, 64 * 1024);
    file.set_len(length - cut)?;
    file.sync_all()?;
    drop(file);
    redis.restart().await?;
    drop(redis);
    let up = window.heal();
    let exact = exact_after(site, up).await?;
    Ok(
        Bite::of(cut, "bytes of acknowledged writes cut from the AOF")
            .with(GATE_EXACT, seconds(exact)),
    )
}

pub(super) async fn flush_all(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let before = rebuilds(site);
    let mut conn = site.plant.redis_connection().await?;
    let flushed = platform::clock::monotonic();
    let _: () = redis::cmd("FLUSHALL").query_async(&mut conn).await?;
    let exact = exact_after(site, flushed).await?;
    window.healed = exact.map(|took| flushed + took);
    let times = rebuilds(site) - before;
    Ok(Bite::of(times, "rebuilds of the gate").with(GATE_EXACT, seconds(exact)))
}

/// What a replica that lagged by seconds would know when it is promoted.
pub(super) async fn stale_copy(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let home = site.plant.redis.lock().await.home().to_owned();
    let (data, old) = (home.join("data/appendonlydir"), home.join("old"));
    // One that failed before may have left its copy.
    let _ = std::fs::remove_dir_all(&old);
    copy(&data, &old)?;
    hold(5.0).await;
    let mut redis = site.plant.redis.lock().await;
    let behind = size(&data)?.saturating_sub(size(&old)?);
    redis.kill().await;
    std::fs::remove_dir_all(&data)?;
    copy(&old, &data)?;
    redis.restart().await?;
    drop(redis);
    let up = window.heal();
    let exact = exact_after(site, up).await?;
    std::fs::remove_dir_all(&old)?;
    Ok(
        Bite::of(behind, "bytes of writes that the copy did not have")
            .with(GATE_EXACT, seconds(exact)),
    )
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

fn size(dir: &Path) -> anyhow::Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(dir)? {
        sum += entry?.metadata()?.len();
    }
    Ok(sum)
}

pub(super) async fn slow(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let link = &site.plant.links_of(ServiceName::Order)?.redis;
    let (before, opened) = (link.bites(), breakers(site).await);
    link.delay(Duration::from_millis(200));
    hold(3.0).await;
    link.delay(Duration::ZERO);
    link.set(Mode::Silent);
    hold(3.0).await;
    link.heal();
    link.cut();
    window.heal();
    let opened = breakers(site).await - opened;
    Ok(
        Bite::of(link.bites() - before, "packets late or thrown away")
            .with("breakers_opened", opened),
    )
}

async fn breakers(site: &Site) -> f64 {
    site.metrics.read(&site.plant).await;
    site.metrics.sum("gate_breaker_opened_total", &[])
}

/// Errors that Redis itself counted.
async fn errors(site: &Site, kind: &str) -> anyhow::Result<u64> {
    let mut conn = site.plant.redis_connection().await?;
    let info: String = redis::cmd("INFO")
        .arg("errorstats")
        .query_async(&mut conn)
        .await?;
    let prefix = format!("errorstat_{kind}:count=");
    let found = info.lines().find_map(|line| line.strip_prefix(&prefix));
    Ok(found.and_then(|n| n.trim().parse().ok()).unwrap_or(0))
}

async fn set(site: &Site, name: &str, value: &str) -> anyhow::Result<()> {
    let mut conn = site.plant.redis_connection().await?;
    let _: () = redis::cmd("CONFIG")
        .arg("SET")
        .arg(name)
        .arg(value)
        .query_async(&mut conn)
        .await?;
    Ok(())
}

pub(super) async fn full(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let before = errors(site, "OOM").await?;
    set(site, "maxmemory", "1mb").await?;
    hold(4.0).await;
    set(site, "maxmemory", "0").await?;
    window.heal();
    let times = errors(site, "OOM").await? - before;
    Ok(Bite::of(
        times,
        "writes that Redis refused for want of memory",
    ))
}

/// A stock service that starts beside a Redis that evicts must refuse or raise an alarm.
pub(super) async fn evicting(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let stock = site.plant.replica(ServiceName::Stock, 1)?;
    let alarms = || {
        site.metrics.sum("alarms_total", &["redis-evicts"])
            + f64::from(u32::try_from(stock.ended_by_itself().len()).unwrap_or(0))
    };
    let before = alarms();
    set(site, "maxmemory-policy", "allkeys-lru").await?;
    stock.kill().await?;
    stock.start().await?;
    let seen = until(Duration::from_secs(15), || async {
        site.metrics.read(&site.plant).await;
        alarms() > before || crate::logs::holds(site, stock, "evict").await
    })
    .await;
    set(site, "maxmemory-policy", "noeviction").await?;
    window.heal();
    stock.start().await?;
    stock.ready().await?;
    let times = u64::from(seen.is_some());
    Ok(Bite::of(
        times,
        "the stock service refused or raised its alarm",
    ))
}

/// NOSCRIPT, then READONLY.
pub(super) async fn refuses(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let (scripts, writes) = (
        errors(site, "NOSCRIPT").await?,
        errors(site, "READONLY").await?,
    );
    let mut conn = site.plant.redis_connection().await?;
    let _: () = redis::cmd("SCRIPT")
        .arg("FLUSH")
        .query_async(&mut conn)
        .await?;
    hold(1.5).await;
    let _: () = redis::cmd("REPLICAOF")
        .arg("127.0.0.1")
        .arg("1")
        .query_async(&mut conn)
        .await?;
    hold(3.0).await;
    let _: () = redis::cmd("REPLICAOF")
        .arg("NO")
        .arg("ONE")
        .query_async(&mut conn)
        .await?;
    window.heal();
    let scripts = errors(site, "NOSCRIPT").await? - scripts;
    let writes = errors(site, "READONLY").await? - writes;
    let times = if scripts == 0 || writes == 0 {
        0
    } else {
        scripts + writes
    };
    let how = format!("NOSCRIPT {scripts}, READONLY {writes}");
    Ok(Bite::of(times, how))
}
