//! A payment provider in trouble.

use serde_json::{Value, json};

use super::{Bite, Site, Window, count, hold};

const SERIES: &str = "gateway_calls_total";

pub(super) async fn trouble(site: &Site, window: &mut Window) -> anyhow::Result<Bite> {
    let troubles: [(&str, Value); 4] = [
        ("down", json!({ "down": true })),
        ("slow", json!({ "down": false, "latency_ms": 2_500 })),
        (
            "silent",
            json!({ "latency_ms": 5, "hang_rate": 0.5, "hang_ms": 3_000 }),
        ),
        (
            "repeating",
            json!({ "hang_rate": 0.0, "webhook_delay_ms": 1_500, "webhook_duplicates": 5 }),
        ),
    ];
    let mut bitten = Vec::new();
    for (name, change) in troubles {
        let before = bites(site, name).await;
        site.plant.gateway(&change).await?;
        hold(3.5).await;
        let times = bites(site, name).await - before;
        bitten.push((name, count(times)));
    }
    site.plant.gateway_as_usual().await?;
    window.heal();
    let least = bitten.iter().map(|(_, times)| *times).min().unwrap_or(0);
    let sum: u64 = bitten.iter().map(|(_, times)| times).sum();
    let list: Vec<String> = bitten
        .iter()
        .map(|(name, n)| format!("{name} {n}"))
        .collect();
    let times = if least == 0 { 0 } else { sum };
    Ok(Bite::of(
        times,
        format!("calls and webhooks: {}", list.join(", ")),
    ))
}

/// Calls that did not go well; for webhooks, those that were received.
async fn bites(site: &Site, trouble: &str) -> f64 {
    site.metrics.read(&site.plant).await;
    if trouble == "repeating" {
        return site.metrics.sum("webhooks_received_total", &[]);
    }
    site.metrics.sum(SERIES, &[]) - site.metrics.sum(SERIES, &["\"ok\""])
}
