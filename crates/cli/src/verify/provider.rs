//! I5, I16: the payment provider's own journal against our tables.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use http::{Method, StatusCode};
use serde_json::Value;
use store::verify::{
    Check, Payments,
    facts::{self, Captured},
};

use super::Target;
use crate::http_client::HttpClient;

const PAGE: usize = 5_000;

pub(super) async fn checks(target: &Target, url: &str) -> anyhow::Result<Vec<Check>> {
    // The gateway serves our payment service alone.
    if target.payments == Payments::Upstream {
        return Ok(Vec::new());
    }
    // Our tables before and after: what is captured meanwhile is first there, then here.
    let before = facts::captures(&target.store).await?;
    let entries = journal(url).await?;
    let ours = facts::captures(&target.store).await?;
    let mut found = Found::default();
    for entry in &entries {
        found.take(entry, &ours);
    }
    found.missing_there(&before, &entries);
    Ok(found.checks())
}

/// The whole journal, page by page.
async fn journal(url: &str) -> anyhow::Result<Vec<Value>> {
    let mut client = HttpClient::new(url, None)?;
    let mut entries: Vec<Value> = Vec::new();
    let mut after = String::new();
    loop {
        let path = format!("/v1/journal?limit={PAGE}&after={after}");
        let answer = client.send(Method::GET, &path, None, None).await?;
        anyhow::ensure!(
            answer.status == StatusCode::OK,
            "the gateway answers {}",
            answer.status
        );
        let page = answer.json();
        let data = page["data"]
            .as_array()
            .context("the gateway's journal has no data")?;
        entries.extend(data.iter().cloned());
        match data.last().and_then(|entry| entry["key"].as_str()) {
            Some(last) if page["has_more"] == true => last.clone_into(&mut after),
            _ => return Ok(entries),
        }
    }
}

#[derive(Default)]
struct Found {
    charged_twice: Vec<String>,
    refunded_twice: Vec<String>,
    unknown: Vec<String>,
    per_order: BTreeMap<String, u64>,
}

impl Found {
    fn take(&mut self, entry: &Value, ours: &BTreeMap<String, Captured>) {
        let key = entry["key"].as_str().unwrap_or("?");
        let captures = entry["captures"].as_u64().unwrap_or(0);
        let refunds = entry["refunds"].as_u64().unwrap_or(0);
        if captures > 1 {
            self.charged_twice
                .push(format!("{key}: captured {captures} times"));
        }
        if refunds > 1 {
            self.refunded_twice
                .push(format!("{key}: refunded {refunds} times"));
        }
        if captures == 0 {
            return;
        }
        if let Some(order) = entry["order_id"].as_str() {
            *self.per_order.entry(order.to_owned()).or_insert(0) += captures;
        }
        let amount = entry["captured"]["amount_minor"].as_i64().unwrap_or(0);
        let refunded = entry["refunded_minor"].as_i64().unwrap_or(0);
        match ours.get(key) {
            Some(row) if row.captured == amount && row.refunded == refunded => {}
            Some(row) => self.unknown.push(format!(
                "{key}: captured {amount}, refunded {refunded} there; {}, {} here",
                row.captured, row.refunded
            )),
            None => self
                .unknown
                .push(format!("{key}: captured {amount} there, unknown here")),
        }
    }

    /// Captures of our tables that the provider has never made.
    fn missing_there(&mut self, ours: &BTreeMap<String, Captured>, entries: &[Value]) {
        let there: BTreeSet<&str> = entries
            .iter()
            .filter_map(|entry| entry["key"].as_str())
            .collect();
        for (key, row) in ours {
            if row.captured > 0 && !there.contains(key.as_str()) {
                self.unknown.push(format!(
                    "{key}: captured {} here, unknown there",
                    row.captured
                ));
            }
        }
    }

    fn checks(mut self) -> Vec<Check> {
        let twice = self.per_order.iter().filter(|(_, captures)| **captures > 1);
        self.charged_twice
            .extend(twice.map(|(order, n)| format!("order {order}: captured {n} times")));
        vec![
            Check::of(
                "I5",
                "the provider captured at most once per key and per order",
                "1 capture",
                self.charged_twice,
            ),
            Check::of(
                "I5",
                "the provider refunded a capture at most once",
                "1 refund",
                self.refunded_twice,
            ),
            Check::of(
                "I16",
                "what the provider captured and refunded is what our tables say",
                "provider = payments",
                self.unknown,
            ),
        ]
    }
}
