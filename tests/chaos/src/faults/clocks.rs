//! Services whose wall clock is wrong. PostgreSQL's clock decides about deadlines, so nothing may end
//! early or late by it.

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use chrono::{DateTime, Utc};
use cli::services::ServiceName;
use rand::{rngs::StdRng, seq::SliceRandom};

use super::{Bite, Site, Window, hold};

/// How wrong, in minutes: by more than twice what the payment service allows a webhook.
const MINUTES: [i32; 2] = [11, -11];

/// The library of Debian's package `faketime`, where it is installed.
#[must_use]
pub fn library() -> Option<PathBuf> {
    let kinds = std::fs::read_dir("/usr/lib").ok()?;
    kinds
        .filter_map(|kind| Some(kind.ok()?.path().join("faketime/libfaketimeMT.so.1")))
        .find(|path| path.is_file())
}

/// One replica of each of two services is started with a clock that is ahead, or behind. How long
/// anything takes (the monotonic clock) stays right: a clock that was set wrong, not one that stops.
pub(super) async fn wrong(
    site: &Site,
    random: &mut StdRng,
    window: &mut Window,
) -> anyhow::Result<Bite> {
    let library = library().context("the package faketime is not installed")?;
    let mut services = [ServiceName::Order, ServiceName::Payment, ServiceName::Stock];
    services.shuffle(random);
    let mut conn = site.plant.sql().await?;
    let since: DateTime<Utc> = sqlx::query_scalar("select clock_timestamp()")
        .fetch_one(&mut conn)
        .await?;
    let mut wrong = Vec::new();
    for (service, minutes) in services.into_iter().zip(MINUTES) {
        let replica = site.plant.replica(service, 1)?;
        replica.stop(Duration::from_secs(15)).await?;
        let variables = [
            ("LD_PRELOAD", library.display().to_string()),
            ("FAKETIME", format!("{minutes:+}m")),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        replica.start_with(&variables).await?;
        wrong.push(replica);
    }
    for replica in &wrong {
        replica.ready().await?;
    }
    hold(8.0).await;
    for replica in &wrong {
        replica.stop(Duration::from_secs(15)).await?;
        replica.start().await?;
    }
    window.heal();
    for replica in &wrong {
        replica.ready().await?;
    }
    let (ahead, behind) = events_of_another_time(site, since).await?;
    let names: Vec<&str> = wrong.iter().map(|replica| replica.name.as_str()).collect();
    let how = format!(
        "{}: events with ids of another time: ahead {ahead}, behind {behind}",
        names.join(", ")
    );
    let times = if ahead == 0 || behind == 0 {
        0
    } else {
        ahead + behind
    };
    Ok(Bite::of(times, how))
}

/// Events whose ids, which begin with the time of who made them, are minutes ahead of the moment at
/// which PostgreSQL took them, and behind it.
async fn events_of_another_time(site: &Site, since: DateTime<Utc>) -> anyhow::Result<(u64, u64)> {
    let (ahead, behind): (i64, i64) = sqlx::query_as(
        "select count(*) filter (where made > at + interval '5 minutes'),
                count(*) filter (where made < at - interval '5 minutes')
         from (select at, to_timestamp(
                   ('x' || left(replace(event_id::text, '-', ''), 12))::bit(48)::bigint
                   / 1000.0) as made
               from outbox where at >= $1) as event",
    )
    .bind(since)
    .fetch_one(&mut site.plant.sql().await?)
    .await?;
    Ok((u64::try_from(ahead)?, u64::try_from(behind)?))
}
