//! The gateway of a plant: how it behaves, and the webhooks that it would send.

use cli::services::ServiceName;

use super::{Plant, settings};
use crate::http::Http;

/// How long nobody hears of a late charge: longer than the grace of a payment (60 s) and the time of
/// the order together, with room for an outage of ours, which moves the order's deadline.
const LATE_MS: u64 = 150_000;

impl Plant {
    /// The behaviour that the gateway has outside faults: payment methods choose their fate.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn gateway_as_usual(&self) -> anyhow::Result<()> {
        let rule =
            |method: &str, outcome: &str| serde_json::json!({"method": method, "outcome": outcome});
        self.gateway(&serde_json::json!({
            "latency_ms": 5, "jitter_ms": 40, "decline_rate": 0.0, "hang_rate": 0.0, "hang_ms": 3_000, "late_ms": LATE_MS,
            "down": false, "webhooks": true, "webhook_delay_ms": 0, "webhook_duplicates": 1,
            "rules": [
                rule("card-declined", "decline"), rule("card-abandoned", "decline_not_final"),
                rule("card-hang", "hang"), rule("card-wrong", "wrong_amount"),
                rule("card-late", "late"), rule("card-late-declined", "late_decline"),
            ],
        }))
        .await
    }

    /// The webhook of a capture once more, as the gateway would send it.
    ///
    /// # Errors
    /// It is not taken.
    pub async fn webhook(&self, charge: &serde_json::Value) -> anyhow::Result<()> {
        let now = platform::clock::now();
        let body = serde_json::json!({
            "id": format!("evt_{}", contracts::ids::generate().simple()),
            "type": "charge.succeeded", "created_at": now.to_rfc3339(), "data": charge,
        })
        .to_string();
        let signature = gateway_sim::signature::sign(
            settings::WEBHOOK_SECRET,
            now.timestamp(),
            body.as_bytes(),
        );
        let replica = self.replica(ServiceName::Payment, 1)?;
        let request = hyper::Request::post(format!("{}/webhooks/gateway", replica.url))
            .header("content-type", "application/json")
            .header("holdfast-signature", signature)
            .body(http_body_util::Full::new(bytes::Bytes::from(body)))?;
        let client =
            hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
                .build_http();
        let answer = client.request(request).await?;
        anyhow::ensure!(answer.status().is_success(), "webhook: {}", answer.status());
        Ok(())
    }

    /// Changes how the gateway behaves.
    ///
    /// # Errors
    /// It does not answer, or refuses.
    pub async fn gateway(&self, change: &serde_json::Value) -> anyhow::Result<()> {
        let mut http = Http::new(&self.gateway_url(), "none")?;
        let answer = http
            .send(http::Method::PUT, "/v1/behaviour", None, Some(change))
            .await?;
        anyhow::ensure!(
            answer.status == 200,
            "the gateway answers {}",
            answer.text()
        );
        Ok(())
    }
}
