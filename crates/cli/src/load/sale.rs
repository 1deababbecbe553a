//! The sale around the requests: stock and gateway before, a line a second meanwhile, the wait for
//! the last order after.

use std::{
    io::IsTerminal,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use contracts::OrderId;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use store::{Store, verify::sale};

use super::{FlashArgs, clients::Tally};
use crate::{http_client::HttpClient, seed};

/// The simulated gateway, and how it behaved before the sale.
pub(super) struct Gateway {
    client: Option<HttpClient>,
    before: Value,
}

impl Gateway {
    /// Puts the gateway back as it was.
    pub(super) async fn restore(mut self) {
        let Some(client) = &mut self.client else {
            return;
        };
        let body = Some(Bytes::from(self.before.to_string()));
        if let Err(error) = client.send(Method::PUT, "/v1/behaviour", None, body).await {
            tracing::warn!(%error, "the gateway keeps failing payments: it could not be put back");
        }
    }
}

/// Puts exactly `--stock` units of each SKU on sale and sets how payments fail.
pub(super) async fn prepare(args: &FlashArgs, skus: &[String]) -> anyhow::Result<Gateway> {
    let mut operator = HttpClient::new(&args.target.url, Some(args.target.operator()))?;
    let ttl = args.ttl_seconds;
    for sku in skus {
        seed::put_sku(&mut operator, sku, i64::from(args.stock), ttl).await?;
        seed::set_available(&mut operator, sku, i64::from(args.stock)).await?;
    }
    let fails = args.payment_failures > 0.0 || args.abandoned > 0.0;
    let Some(url) = &args.target.gateway_url else {
        anyhow::ensure!(
            !fails,
            "failing payments need the simulated gateway: set GATEWAY_URL"
        );
        return Ok(Gateway {
            client: None,
            before: Value::Null,
        });
    };
    let mut client = HttpClient::new(url, None)?;
    let before = client
        .send(Method::GET, "/v1/behaviour", None, None)
        .await?
        .json();
    let declined = args.payment_failures + args.abandoned;
    let wanted = json!({
        "decline_rate": declined,
        // A decline that is not final leaves the order to its deadline.
        "not_final_rate": if fails { args.abandoned / declined } else { 0.0 },
        "seed": args.seed,
    });
    let body = Some(Bytes::from(wanted.to_string()));
    let set = client
        .send(Method::PUT, "/v1/behaviour", None, body)
        .await?;
    anyhow::ensure!(
        set.status == StatusCode::OK,
        "the gateway refuses its settings: {}",
        String::from_utf8_lossy(&set.body)
    );
    Ok(Gateway {
        client: Some(client),
        before,
    })
}

/// The progress line, written to standard error.
pub(super) struct Progress {
    tally: Arc<Tally>,
    stop: tokio_util::sync::CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Progress {
    pub(super) fn start(store: Store, skus: Vec<String>, since: OrderId, requests: usize) -> Self {
        let tally = Arc::new(Tally::default());
        let stop = tokio_util::sync::CancellationToken::new();
        let task = tokio::spawn(lines(
            store,
            skus,
            since,
            requests,
            Arc::clone(&tally),
            stop.clone(),
        ));
        Self { tally, stop, task }
    }

    pub(super) fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.tally)
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::debug!(%error, "the progress line ended early");
        }
    }
}

async fn lines(
    store: Store,
    skus: Vec<String>,
    since: OrderId,
    requests: usize,
    tally: Arc<Tally>,
    stop: tokio_util::sync::CancellationToken,
) {
    let terminal = std::io::stderr().is_terminal();
    let mut p99 = Duration::ZERO;
    loop {
        let stopped = tokio::select! {
            () = stop.cancelled() => true,
            () = tokio::time::sleep(Duration::from_secs(1)) => false,
        };
        let mut recent =
            std::mem::take(&mut *tally.recent.lock().unwrap_or_else(PoisonError::into_inner));
        recent.sort_unstable();
        if let Some(micros) = recent.get(recent.len() * 99 / 100) {
            p99 = Duration::from_micros(*micros);
        }
        let Ok(sale) = sale::progress(&store, &skus, since).await else {
            if stopped {
                break;
            }
            continue;
        };
        let line = format!(
            "sent {}/{requests} | 201 {} | 410 {} | p99 {} ms | stock left {} | confirmed {} | open {}",
            tally.sent.load(Ordering::Relaxed),
            tally.accepted.load(Ordering::Relaxed),
            tally.sold_out.load(Ordering::Relaxed),
            p99.as_millis(),
            sale.available,
            sale.confirmed,
            sale.open,
        );
        if terminal {
            eprint!("\r\x1b[K{line}");
        } else {
            eprintln!("{line}");
        }
        if stopped {
            break;
        }
    }
    if terminal {
        eprintln!();
    }
}

/// Waits until no order of the sale is open and no event of it is on its way; `false` when the
/// bound passed first.
pub(super) async fn wait_for_ends(
    store: &Store,
    skus: &[String],
    since: OrderId,
    bound: Duration,
) -> anyhow::Result<bool> {
    let begun = Instant::now();
    loop {
        let progress = sale::progress(store, skus, since)
            .await
            .context("PostgreSQL can't be reached")?;
        // Over all payments of the sale: asked only when it can be the last question, since the
        // server that answers is the one that is measured.
        if progress.open == 0
            && sale::unrefunded(store, since)
                .await
                .context("PostgreSQL can't be reached")?
                == 0
        {
            return Ok(true);
        }
        if begun.elapsed() > bound {
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
