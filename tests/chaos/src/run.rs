//! A whole run: start, load and faults, rest, judgement.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::Context;
use cli::services::ServiceName;
use platform::{Shutdown, clock};

use crate::{
    args::Args,
    conductor::{self, Times},
    faults::{Kind, Site, clocks, crashes},
    ledger::Ledger,
    load::Load,
    logs, measure,
    metrics::Metrics,
    plant::Plant,
    races::Races,
    reached,
    report::Report,
    schedule::schedule,
    settle, truth,
};

/// Kinds that a long run must have.
const KINDS_NEEDED: usize = 30;
/// From this many seconds on a run is a long one.
const LONG: u64 = 600;
/// How much longer a long run may go on for kinds that have not come yet: a fifth.
const OVERTIME: u32 = 5;
const RACES_END_WITHIN: Duration = Duration::from_secs(120);

/// Runs; whether all is as it should be.
///
/// # Errors
/// It could not be run.
pub async fn run(args: &Args, seed: u64, shutdown: &Shutdown) -> anyhow::Result<bool> {
    let only = kinds(&args.only)?;
    let dir = args.dir.join(format!("seed-{seed}"));
    if dir.exists() {
        std::fs::remove_dir_all(&dir)?;
    }
    std::fs::create_dir_all(&dir)?;
    let dir = dir.canonicalize()?;
    eprintln!(
        "seed {seed}, {} s of load; logs in {}",
        args.seconds,
        dir.display()
    );
    let program = args.program()?;
    let plant = tokio::select! {
        plant = Box::pin(Plant::start(&dir, &program)) => Arc::new(plant?),
        () = shutdown.begun() => anyhow::bail!("interrupted"),
    };
    let report = tokio::select! {
        report = Box::pin(on(args, seed, &only, Arc::clone(&plant))) => report,
        () = shutdown.begun() => Err(anyhow::anyhow!("interrupted")),
    };
    let bad_ends = plant.stop_services().await;
    let mut report = report?;
    report.failures.extend(bad_ends);
    report.judge(if is_long(args) { KINDS_NEEDED } else { 1 });
    report.write(&args.dir.join("report.json"))?;
    report.write(&dir.join("report.json"))?;
    report.print(&dir)?;
    let ok = report.ok;
    drop(plant);
    if !args.keep {
        for data in ["postgres", "redis", "kafka"] {
            // The logs of the servers stay.
            for part in ["data", "cluster"] {
                let _ = std::fs::remove_dir_all(dir.join(data).join(part));
            }
        }
    }
    Ok(ok)
}

fn kinds(only: &[String]) -> anyhow::Result<Vec<Kind>> {
    only.iter()
        .map(|id| Kind::of(id).with_context(|| format!("{id} is no fault")))
        .collect()
}

/// The kinds that were asked for, without those that can't be had here.
fn possible(only: &[Kind], crash_points: bool) -> Vec<Kind> {
    let mut kinds = if only.is_empty() { Kind::ALL } else { only }.to_vec();
    let missing: [(bool, &[Kind], &str); 2] = [
        (
            !crash_points,
            &[Kind::CrashPoints, Kind::Blocked],
            "this build has no crash points (feature failpoints)",
        ),
        (
            clocks::library().is_none(),
            &[Kind::WrongClock],
            "the package faketime is not installed",
        ),
    ];
    for (_, without, why) in missing.into_iter().filter(|(missing, ..)| *missing) {
        let ids: Vec<&str> = without.iter().map(|kind| kind.id()).collect();
        eprintln!("{why}: {} left out", ids.join(", "));
        kinds.retain(|kind| !without.contains(kind));
    }
    kinds
}

/// A long run of all kinds: the one that proves something.
fn is_long(args: &Args) -> bool {
    args.seconds >= LONG && args.only.is_empty()
}

/// Everything with a system that runs.
async fn on(args: &Args, seed: u64, only: &[Kind], plant: Arc<Plant>) -> anyhow::Result<Report> {
    let begun = clock::monotonic();
    let seconds = i64::try_from(args.seconds)?;
    let ledger = Arc::new(Ledger::new(begun));
    let site = site(args, seed, seconds, Arc::clone(&plant), ledger);
    plant.gateway_as_usual().await?;
    site.load.open().await?;
    let watching = watch(&site);
    let loading = tokio::spawn(Arc::clone(&site.load).run());
    let until = begun + Duration::from_secs(args.seconds);
    let crash_points = match plant.of(ServiceName::Order).next() {
        Some(order) => crashes::are_there(order).await,
        None => false,
    };
    let races = Races::new(&site, crash_points, until);
    let racing = tokio::spawn(races.clone().run());
    let kinds = possible(only, crash_points);
    let schedule = schedule(seed, args.seconds, site.outage, &kinds);
    let times = Times {
        begun,
        until,
        latest: if is_long(args) {
            until + (until - begun) / OVERTIME
        } else {
            until
        },
    };
    let rows = conductor::run(&site, seed, &schedule, times).await;
    tokio::time::sleep_until(until.into()).await;
    site.load.over.store(true, Ordering::SeqCst);
    loading.await?;
    // What it still waits for is bounded; its orders end without it, too.
    let raced = tokio::time::timeout(RACES_END_WITHIN, racing);
    let report = Box::pin(judge(args, seed, &site, &races, rows, raced)).await;
    for task in watching {
        task.abort();
    }
    report
}

/// Supervises and reads counters, for ever.
fn watch(site: &Site) -> [tokio::task::JoinHandle<()>; 2] {
    let (plant, metrics) = (Arc::clone(&site.plant), Arc::clone(&site.metrics));
    let supervised = Arc::clone(&site.plant);
    [
        tokio::spawn(async move { supervised.supervise().await }),
        tokio::spawn(async move { metrics.run(&plant).await }),
    ]
}

/// After the load: heals, waits, and holds everything against everything.
async fn judge(
    args: &Args,
    seed: u64,
    site: &Site,
    races: &Races,
    rows: Vec<conductor::Row>,
    raced: tokio::time::Timeout<tokio::task::JoinHandle<()>>,
) -> anyhow::Result<Report> {
    let plant = &site.plant;
    eprintln!("the load is over; waiting for everything to come to rest");
    plant.heal().await?;
    plant.gateway_as_usual().await?;
    let mut conn = plant.sql().await?;
    let asked = truth::ask_again(&site.load, &mut conn).await?;
    eprintln!("{asked} keys were asked again");
    if let Ok(Err(error)) = raced.await {
        anyhow::bail!("the races: {error}");
    }
    let open = settle::at_rest(site, races).await?;
    let checks = settle::verify(site).await?;
    site.metrics.read(plant).await;
    site.ledger.write(&plant.dir.join("clients.jsonl"))?;
    let told = truth::judge(&site.ledger, &mut conn).await?;
    let reached = reached::list(site, &mut conn, &rows).await?;
    let measures = measure::all(site, &mut conn, &rows).await?;
    let (keys, statuses) = {
        let inner = site.ledger.inner();
        (inner.requests.len(), inner.statuses.clone())
    };
    let load_average = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    Ok(Report {
        ok: false,
        failures: Vec::new(),
        seed,
        seconds: args.seconds,
        load_average: load_average.trim().to_owned(),
        keys,
        statuses,
        faults: rows,
        races: races.result(),
        reached,
        told,
        checks,
        measures,
        open,
        ended_by_themselves: plant.ended_by_themselves(),
        panics: logs::lines(&plant.dir, "panicked at"),
    })
}

fn site(args: &Args, seed: u64, seconds: i64, plant: Arc<Plant>, ledger: Arc<Ledger>) -> Site {
    let load = Load {
        seed,
        rate: args.rate,
        urls: plant.order_urls(),
        brokers: plant.brokers.clone(),
        ledger: Arc::clone(&ledger),
        long_ttl: (seconds / 2).clamp(60, 260),
        short_ttl: 8,
        next: std::sync::atomic::AtomicU64::new(0),
        over: std::sync::atomic::AtomicBool::new(false),
    };
    Site {
        plant,
        load: Arc::new(load),
        ledger,
        metrics: Arc::new(Metrics::default()),
        outage: Duration::from_secs((args.seconds / 10).clamp(10, 60)),
    }
}
