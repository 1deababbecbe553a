//! `confirmed`: real servers and four service processes, orders over HTTP until each is CONFIRMED.

use std::{collections::BTreeMap, path::Path};

use ::bench::{Line, Spread, counters::Work, number};
use anyhow::Context;
use http::{Method, StatusCode};
use platform::{PaymentsMode, Shutdown};
use serde_json::json;

use super::Args;
use crate::{
    environment::{self, Variables},
    http_client::HttpClient,
    load::{self, FlashArgs, Target, Verdict},
    output,
    servers::{self, Role, State, StateDir},
    up,
    verify::{self, VerifyArgs},
};

/// The first aim and the release's, in orders a second.
const RATE: (f64, f64) = (800.0, 2_500.0);

/// What no service may need, in MiB.
const MEMORY: f64 = 150.0;

/// One run of the whole system.
struct Run {
    verdict: Verdict,
    wal_bytes: f64,
    commits: f64,
    wal_syncs: Option<f64>,
}

/// Measures what the whole system confirms a second, and what an order costs.
pub(super) async fn measure(
    args: &Args,
    dir: &StateDir,
    shutdown: &Shutdown,
) -> anyhow::Result<Vec<Line>> {
    let up_args = up::Args::in_dir(&args.state_dir)?;
    let variables = up::bring_up(dir, &up_args, shutdown).await?.variables;
    make_gateway_instant(of(&variables, environment::GATEWAY_URL)?).await?;
    // What is slow once: connections, prepared statements, groups that find their partitions.
    sale(args, &variables, args.orders / 10).await?;
    let mut runs = Vec::new();
    for _ in 0..args.runs.max(1) {
        runs.push(sale(args, &variables, args.orders).await?);
    }
    let report = verify::at_rest(&verify_args(&variables)?.target().await?).await?;
    if !report.ok {
        verify::command::print(output::Format::Table, &report)?;
        anyhow::bail!("an invariant is red");
    }
    let memory = peak_memory(&args.state_dir)?;
    lines(args, &runs, &memory)
}

async fn sale(args: &Args, variables: &Variables, orders: u32) -> anyhow::Result<Run> {
    let database_url = of(variables, "DATABASE_URL")?;
    let before = Work::read(database_url).await?;
    let verdict = load::flash(&flash_args(args, variables, orders)?).await?;
    let after = Work::read(database_url).await?;
    anyhow::ensure!(
        verdict.ok && u32::try_from(verdict.confirmed).ok() == Some(orders),
        "of {orders} orders {} were confirmed: {verdict:?}",
        verdict.confirmed
    );
    eprintln!(
        "{orders} orders: {:.0} confirmed a second",
        verdict.confirmed_per_second
    );
    let per_order = |count: i64| number(count) / f64::from(orders);
    let syncs = after.wal_syncs.zip(before.wal_syncs);
    Ok(Run {
        verdict,
        wal_bytes: per_order(after.wal_bytes - before.wal_bytes),
        commits: per_order(after.commits - before.commits),
        wal_syncs: syncs.map(|(after, before)| per_order(after - before)),
    })
}

fn lines(args: &Args, runs: &[Run], memory: &BTreeMap<String, f64>) -> anyhow::Result<Vec<Line>> {
    let spread = |of: fn(&Run) -> f64| Spread::of(runs.iter().map(of)).context("no run");
    let rate = spread(|run| run.verdict.confirmed_per_second)?;
    let mut cpu: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (group, seconds) in runs
        .iter()
        .flat_map(|run| &run.verdict.cpu_seconds_per_1000)
    {
        cpu.entry(group).or_default().push(*seconds);
    }
    let cpu: BTreeMap<&str, Option<Spread>> = cpu
        .into_iter()
        .map(|(group, seconds)| (group, Spread::of(seconds)))
        .collect();
    let details = json!({
        "orders": args.orders,
        "clients": args.clients,
        "skus": 1,
        "confirmed_per_second": rate,
        "cpu_seconds_per_1000_confirmed": cpu,
        "wal_bytes_per_order": spread(|run| run.wal_bytes)?,
        "transactions_per_order": spread(|run| run.commits)?,
        "wal_syncs_per_order": Spread::of(runs.iter().filter_map(|run| run.wal_syncs)),
        "accept_p99_ms": spread(|run| run.verdict.accept_ms.p99)?,
        "confirm_p50_ms": spread(|run| run.verdict.confirm_ms.p50)?,
        "confirm_p99_ms": spread(|run| run.verdict.confirm_ms.p99)?,
        "runs": runs.iter().map(|run| &run.verdict).collect::<Vec<_>>(),
    });
    let absolute = |name: &str, ours: f64, unit, details| Line {
        name: name.to_owned(),
        ours,
        other: None,
        ratio: None,
        unit,
        gate: None,
        goal: None,
        ok: true,
        details,
    };
    let peak = memory.values().copied().fold(0.0, f64::max);
    Ok(vec![
        Line {
            gate: Some(RATE.0),
            goal: Some(RATE.1),
            ok: rate.median >= RATE.0,
            ..absolute("confirmed", rate.median, "orders/s", details)
        },
        Line {
            gate: Some(MEMORY),
            ok: peak < MEMORY,
            ..absolute(
                "greatest_service_memory",
                peak,
                "MiB",
                json!({ "peak_mib": memory }),
            )
        },
    ])
}

async fn make_gateway_instant(url: &str) -> anyhow::Result<()> {
    let mut gateway = HttpClient::new(url, None)?;
    let wanted = json!({ "latency_ms": 0, "jitter_ms": 0 }).to_string();
    let answer = gateway
        .send(Method::PUT, "/v1/behaviour", None, Some(wanted.into()))
        .await?;
    anyhow::ensure!(
        answer.status == StatusCode::OK,
        "the gateway answered {}",
        answer.status
    );
    Ok(())
}

/// MiB of resident memory at its peak, per service.
fn peak_memory(state_dir: &Path) -> anyhow::Result<BTreeMap<String, f64>> {
    let entries = State::read(state_dir)?.entries;
    let services = entries
        .into_iter()
        .filter(|entry| entry.role == Role::Service);
    let read = |entry: servers::Entry| {
        let path = format!("/proc/{}/status", entry.identity.pid);
        let status = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let kib = status
            .lines()
            .find_map(|line| {
                line.strip_prefix("VmHWM:")?
                    .split_whitespace()
                    .next()?
                    .parse()
                    .ok()
            })
            .with_context(|| format!("{path} has no VmHWM"))?;
        Ok((entry.name, number(kib) / 1024.0))
    };
    services.map(read).collect()
}

fn of<'a>(variables: &'a Variables, name: &str) -> anyhow::Result<&'a str> {
    variables
        .get(name)
        .map(String::as_str)
        .with_context(|| format!("{name} is not known"))
}

fn flash_args(args: &Args, variables: &Variables, orders: u32) -> anyhow::Result<FlashArgs> {
    Ok(FlashArgs {
        skus: 1,
        stock: orders,
        requests: orders,
        clients: args.clients,
        duplicates: 0.0,
        payment_failures: 0.0,
        abandoned: 0.0,
        rate: None,
        seed: 1,
        ttl_seconds: 3_600,
        wait_seconds: 180,
        target: Target {
            url: of(variables, environment::HOLDFAST_URL)?.to_owned(),
            api_key: of(variables, environment::API_KEY)?.into(),
            operator_key: of(variables, environment::OPERATOR_KEY)?.into(),
            database_url: of(variables, "DATABASE_URL")?.into(),
            gateway_url: Some(of(variables, environment::GATEWAY_URL)?.to_owned()),
            state_dir: Some(args.state_dir.clone()),
        },
    })
}

fn verify_args(variables: &Variables) -> anyhow::Result<VerifyArgs> {
    Ok(VerifyArgs {
        database_url: of(variables, "DATABASE_URL")?.into(),
        redis_url: of(variables, "REDIS_URL")?.into(),
        kafka_brokers: of(variables, "KAFKA_BROKERS")?.to_owned(),
        gateway_url: Some(of(variables, environment::GATEWAY_URL)?.to_owned()),
        key_prefix: "hf".to_owned(),
        topic_suffix: String::new(),
        payments: PaymentsMode::Internal,
    })
}
