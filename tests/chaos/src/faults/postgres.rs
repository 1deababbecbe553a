//! A PostgreSQL that restarts, crashes, is full, locked or read-only.

use std::time::Duration;

use anyhow::Context;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use platform::clock;
use rand::{RngExt, rngs::StdRng};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{Bite, Site, Window, count, hold, seconds, until};

/// Tries that were told to come again, or got nothing.
fn turned_away(site: &Site) -> u64 {
    let inner = site.ledger.inner();
    [0, 503]
        .iter()
        .map(|status| inner.statuses.get(status).copied().unwrap_or(0))
        .sum()
}

/// Restarted in order, or killed and recovered.
pub(super) async fn restart(site: &Site, crash: bool, window: &mut Window) -> anyhow::Result<Bite> {
    let before = turned_away(site);
    let mut postgres = site.plant.postgres.lock().await;
    let away = clock::monotonic();
    if crash {
        postgres.kill().await;
    } else {
        postgres.stop().await;
    }
    let refused = until(Duration::from_secs(5), || async {
        turned_away(site) > before
    })
    .await;
    hold(1.0).await;
    postgres.restart().await?;
    drop(postgres);
    let (up, out) = (clock::monotonic(), away.elapsed());
    window.heal();
    until(Duration::from_secs(20), || async {
        site.ledger.first_accepted_after(up, None).is_some()
    })
    .await;
    let first = site.ledger.first_accepted_after(up, None);
    let times = turned_away(site) - before;
    Ok(Bite::of(times, "tries told to come again, or cut off")
        .with("out_s", out.as_secs_f64())
        .with("first_refusal_s", seconds(refused))
        .with("first_201_after_up_s", seconds(first)))
}

/// The postmaster ends every session when one dies by a signal.
pub(super) async fn backend(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let mut conn = site.plant.sql().await?;
    let pid: i32 = sqlx::query_scalar(
        "select pid from pg_stat_activity where application_name like 'holdfast order%' limit 1",
    )
    .fetch_one(&mut conn)
    .await
    .context("no session of an order service")?;
    let log = site.plant.dir.join("postgres/log");
    let said = || {
        let text = std::fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.matches("terminating any other active server processes")
            .count()
    };
    let before = said();
    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    let back = until(Duration::from_secs(20), || async {
        said() > before && site.plant.sql().await.is_ok()
    })
    .await;
    window.heal();
    let times = u64::try_from(said() - before)?;
    Ok(Bite::of(times, "resets that the postmaster logged").with("back_s", seconds(back)))
}

/// Every connection is taken, and the services have to make theirs again.
pub(super) async fn exhausted(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let mut admin = site.plant.sql().await?;
    let mut taken: Vec<PgConnection> = Vec::new();
    let mut refused = 0;
    let begun = clock::monotonic();
    let mut full: Option<std::time::Instant> = None;
    // A busy machine takes its time to make a hundred connections.
    while taken.len() < 400
        && match full {
            None => begun.elapsed() < Duration::from_secs(30),
            Some(since) => since.elapsed() < Duration::from_secs(4),
        }
    {
        let connects = (0..20).map(|_| PgConnection::connect(&site.plant.database_url));
        for made in futures::future::join_all(connects).await {
            match made {
                Ok(conn) => taken.push(conn),
                Err(_) => refused += 1,
            }
        }
        if full.is_none() && refused > 0 {
            full = Some(clock::monotonic());
            // The services have to make theirs again, and can't.
            sqlx::query(
                "select pg_terminate_backend(pid) from pg_stat_activity
                 where application_name like 'holdfast order%'",
            )
            .execute(&mut admin)
            .await?;
        }
        if full.is_some() {
            hold(0.2).await;
        }
    }
    drop(taken);
    window.heal();
    Ok(Bite::of(refused, "connections that PostgreSQL refused"))
}

/// Somebody holds the hot rows for longer than the accept waits for a lock.
pub(super) async fn locked(
    site: &Site,
    random: &mut StdRng,
    window: &mut Window,
) -> anyhow::Result<Bite> {
    let reruns = || async {
        site.metrics.read(&site.plant).await;
        site.metrics.sum("accept_reruns_total", &[])
            + site.metrics.sum("accept_failures_total", &[])
            + site.metrics.sum("consumer_retries_total", &[])
    };
    let before = reruns().await;
    for _ in 0..4 {
        let mut conn = site.plant.sql().await?;
        let mut tx = conn.begin().await?;
        sqlx::query("select sku from stock order by sku for update")
            .execute(&mut *tx)
            .await?;
        hold(random.random_range(0.3..1.2)).await;
        tx.rollback().await?;
        hold(0.3).await;
    }
    window.heal();
    let times = count(reruns().await - before);
    Ok(Bite::of(times, "batches that ran again"))
}

pub(super) async fn read_only(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let before = turned_away(site);
    let mut conn = site.plant.sql().await?;
    run(&mut conn, "set default_transaction_read_only = off").await?;
    run(
        &mut conn,
        "alter system set default_transaction_read_only = on",
    )
    .await?;
    run(&mut conn, "select pg_reload_conf()").await?;
    hold(3.0).await;
    run(
        &mut conn,
        "alter system reset default_transaction_read_only",
    )
    .await?;
    run(&mut conn, "select pg_reload_conf()").await?;
    window.heal();
    hold(0.5).await;
    let times = turned_away(site) - before;
    Ok(Bite::of(times, "tries told to come again"))
}

async fn run(conn: &mut PgConnection, statement: &str) -> anyhow::Result<()> {
    sqlx::query(AssertSqlSafe(statement.to_owned()))
        .execute(conn)
        .await?;
    Ok(())
}
