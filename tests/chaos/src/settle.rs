//! After the load: everything comes to rest, within a bound, and what does not is named.

use std::time::Duration;

use contracts::TopicNames;
use platform::clock;
use sqlx::Connection;
use store::{
    Store, StoreOptions,
    verify::{Check, Payments},
};

use crate::{faults::Site, http::Http, plant::SHOP_KEY, races::Races};

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// After which whoever still has an open order cancels it, as a buyer would.
const BUYERS_WAIT: Duration = Duration::from_secs(90);
const AT_REST_WITHIN: Duration = Duration::from_secs(400);
const GREEN_WITHIN: Duration = Duration::from_secs(90);

/// What is still open.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Open {
    /// Orders that are RESERVED.
    pub orders: i64,
    /// Payments that are PENDING.
    pub payments: i64,
    /// Refunds that are asked for.
    pub refunds: i64,
    /// Outbox rows above the watermark.
    pub outbox: i64,
    /// Orders that their buyers had to cancel at the end.
    pub canceled_at_the_end: usize,
    /// How long it took, in seconds.
    pub seconds: f64,
}

impl Open {
    fn is_empty(&self) -> bool {
        self.orders + self.payments + self.refunds + self.outbox == 0
    }
}

/// Waits until nothing is open.
///
/// # Errors
/// The database can't be read.
pub async fn at_rest(site: &Site, races: &Races) -> anyhow::Result<Open> {
    let begun = clock::monotonic();
    let mut canceled = None;
    loop {
        let mut open = read(site).await?;
        open.seconds = begun.elapsed().as_secs_f64();
        open.canceled_at_the_end = canceled.unwrap_or(0);
        if open.is_empty() || begun.elapsed() > AT_REST_WITHIN {
            return Ok(open);
        }
        races.finish().await?;
        if begun.elapsed() > BUYERS_WAIT && canceled.is_none() {
            canceled = Some(cancel_rest(site).await?);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn read(site: &Site) -> anyhow::Result<Open> {
    let mut conn = site.plant.sql().await?;
    let row: (i64, i64, i64, i64) = sqlx::query_as(
        "select (select count(*) from orders where status = 'RESERVED'),
                (select count(*) from payments where state = 'PENDING'),
                (select count(*) from refunds where state = 'REQUESTED'),
                (select count(*) from outbox
                 where id > (select low from relay_watermark where name = 'outbox'))",
    )
    .fetch_one(&mut conn)
    .await?;
    conn.close().await?;
    Ok(Open {
        orders: row.0,
        payments: row.1,
        refunds: row.2,
        outbox: row.3,
        ..Open::default()
    })
}

async fn cancel_rest(site: &Site) -> anyhow::Result<usize> {
    let mut conn = site.plant.sql().await?;
    let orders: Vec<String> =
        sqlx::query_scalar("select id::text from orders where status = 'RESERVED'")
            .fetch_all(&mut conn)
            .await?;
    let mut http = Http::new(&site.load.urls[0], SHOP_KEY)?;
    for order in &orders {
        site.load.cancel(&mut http, order).await;
    }
    Ok(orders.len())
}

/// Every invariant, twice when once is not clean; again for a while, since refunds and the gate
/// have their deadlines.
///
/// # Errors
/// A server can't be reached.
pub async fn verify(site: &Site) -> anyhow::Result<Vec<Check>> {
    let options = StoreOptions::background(&site.plant.database_url, "chaos verify");
    let target = cli::verify::Target {
        store: Store::connect(&options)?,
        redis_url: site.plant.redis_url.clone(),
        key_prefix: "hf".to_owned(),
        brokers: site.plant.brokers.clone(),
        names: TopicNames::new(""),
        gateway_url: Some(site.plant.gateway_url()),
        payments: Payments::Internal,
    };
    let begun = clock::monotonic();
    loop {
        let report = cli::verify::verify(&target).await?;
        if report.ok || begun.elapsed() > GREEN_WITHIN {
            return Ok(report.checks);
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}
