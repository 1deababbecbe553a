//! Races of payments: R1, R2, R3, R5, R14.

use std::time::Duration;

use contracts::{Topic, TopicNames, envelope};
use messaging::admin::Producer;
use platform::clock;
use serde_json::{Value, json};

use super::{Came, Races};
use crate::{faults::until, http::Http};

impl Races {
    /// R1, R3: the news of a payment comes after the grace, and before the deadline.
    pub(super) async fn late(&self, turn: u64) {
        let sides = [true, false].map(|paid| async move {
            // A fault in between is no verdict: another turn tries again.
            let _ = tokio::join!(self.soon(turn, paid), self.too_late(turn, paid));
        });
        futures::future::join_all(sides).await;
    }

    async fn soon(&self, turn: u64, paid: bool) -> anyhow::Result<()> {
        let (race, method, wanted) = if paid {
            ("R1", "card", "CONFIRMED")
        } else {
            ("R3", "card-declined", "CANCELED")
        };
        let key = format!("race-{race}-soon-{turn}");
        let id = self.accepted(&key, "RACE-LONG", method).await?;
        if self.ended(&id, 120).await? == wanted {
            self.saw(race, Came::First);
        }
        Ok(())
    }

    async fn too_late(&self, turn: u64, paid: bool) -> anyhow::Result<()> {
        let (race, method) = if paid {
            ("R1", "card-late")
        } else {
            ("R3", "card-late-declined")
        };
        let key = format!("race-{race}-late-{turn}");
        let id = self.accepted(&key, "RACE-LATE", method).await?;
        match self.ended(&id, 240).await?.as_str() {
            "EXPIRED" if paid => match self.refunded(&id, 240).await? {
                Some(true) => self.saw(race, Came::Second),
                Some(false) => self.wrong(race, format!("{id} expired, and its money is kept")),
                // Its payment would have begun too late, so nobody was charged.
                None => {}
            },
            "EXPIRED" => {
                if self.is_charged(&id).await? {
                    self.saw(race, Came::Second);
                }
            }
            // An outage moved the deadline beyond the news.
            other if paid == (other == "CONFIRMED") => self.saw(race, Came::First),
            other => self.wrong(race, format!("{id} is {other}")),
        }
        Ok(())
    }

    /// Whether a payment of an order was begun.
    async fn is_charged(&self, id: &str) -> anyhow::Result<bool> {
        let mut conn = self.site.plant.sql().await?;
        let statement = "select exists (select from payments where order_id = $1::uuid)";
        let begun = sqlx::query_scalar(statement).bind(id).fetch_one(&mut conn);
        Ok(begun.await?)
    }

    /// R2, R14: a buyer cancels before and after the payment is known; a webhook comes again after
    /// the refund.
    pub(super) async fn cancels(&self, turn: u64) -> anyhow::Result<()> {
        let id = self
            .accepted(&format!("race-R2-paid-{turn}"), "RACE-LONG", "card")
            .await?;
        let status = self.ended(&id, 30).await?;
        if status == "CONFIRMED" {
            match self.cancel(&id).await? {
                409 => self.saw("R2", Came::First),
                other => self.wrong("R2", format!("cancel of CONFIRMED {id}: {other}")),
            }
        }
        let id = self
            .accepted(
                &format!("race-R2-canceled-{turn}"),
                "RACE-LONG",
                "card-hang",
            )
            .await?;
        // Once it is begun its money comes, and goes back (R14).
        until(Duration::from_secs(5), || async {
            self.is_charged(&id).await.unwrap_or(false)
        })
        .await;
        if self.cancel(&id).await? == 200 {
            self.saw("R2", Came::Second);
            self.webhooks(&id).await?;
        }
        Ok(())
    }

    /// R14: the capture of a canceled order is refunded when its webhook comes; the webhook comes
    /// again after that, and nothing goes back twice.
    async fn webhooks(&self, id: &str) -> anyhow::Result<()> {
        if self.refunded(id, 20).await? != Some(true) {
            // It was canceled before it was charged.
            return Ok(());
        }
        let mut conn = self.site.plant.sql().await?;
        let key: String =
            sqlx::query_scalar("select gateway_key from payments where order_id = $1::uuid")
                .bind(id)
                .fetch_one(&mut conn)
                .await?;
        let before = self.journal(&key).await?;
        let mut gateway = Http::new(&self.site.plant.gateway_url(), "none")?;
        let charge = crate::truth::get(&mut gateway, &format!("/v1/charges/{key}")).await?;
        self.site.plant.webhook(&charge).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let after = self.journal(&key).await?;
        if after["refunds"] != before["refunds"] || after["refunds"] != 1 {
            self.wrong("R14", format!("{id}: {before} before, {after} after"));
        }
        // The first webhook was the news that made the refund; the second came after it.
        self.saw("R14", Came::Second);
        self.saw("R14", Came::First);
        Ok(())
    }

    async fn journal(&self, key: &str) -> anyhow::Result<Value> {
        let mut gateway = Http::new(&self.site.plant.gateway_url(), "none")?;
        // The journal begins after a key: the one before it in the order of keys.
        let before = &key[..key.len().saturating_sub(1)];
        let path = format!("/v1/journal?limit=10000&after={before}");
        let journal = crate::truth::get(&mut gateway, &path).await?;
        let entries = journal["data"].as_array().cloned().unwrap_or_default();
        entries
            .into_iter()
            .find(|entry| entry["key"] == key)
            .ok_or_else(|| anyhow::anyhow!("{key} is not in the journal"))
    }

    /// R5: somebody else's payment of an order comes before ours is known, and after.
    pub(super) async fn two_payments(&self, turn: u64) -> anyhow::Result<()> {
        let ours_first = self.lacking("R5") == Came::First;
        let method = if ours_first { "card" } else { "card-late" };
        let id = self
            .accepted(&format!("race-R5-{turn}"), "RACE-LONG", method)
            .await?;
        if ours_first && self.ended(&id, 30).await? != "CONFIRMED" {
            return Ok(());
        }
        let payment = format!("other-{turn}");
        let amount = json!({ "amount_minor": 12_900, "currency": "KRW" });
        let data = json!({ "payment_id": payment, "order_id": id, "amount": amount,
            "method": "card", "completed_at": clock::now().to_rfc3339() });
        self.tell("PAYMENT_COMPLETED", &payment, &id, &data).await?;
        if ours_first {
            // Ours is applied, so the other goes back: whoever took it says so.
            let key = self.refund_key(&payment).await?;
            let data = json!({ "refund_key": key, "payment_id": payment, "order_id": id, "amount": amount });
            self.tell("PAYMENT_REFUNDED", &format!("{payment}-back"), &id, &data)
                .await?;
            self.saw("R5", Came::First);
            return Ok(());
        }
        match self.ended(&id, 30).await?.as_str() {
            "CONFIRMED" => self.saw("R5", Came::Second),
            other => anyhow::bail!("{id} is {other}"),
        }
        Ok(())
    }

    /// Whoever took the other payments says that they went back, also those whose race a fault had
    /// broken off.
    ///
    /// # Errors
    /// PostgreSQL or Kafka does not answer.
    pub async fn finish(&self) -> anyhow::Result<()> {
        let mut conn = self.site.plant.sql().await?;
        let open: Vec<(String, String, String)> = sqlx::query_as(
            "select payment_id, order_id::text, refund_key from refunds
             where state = 'REQUESTED' and payment_id like 'other-%'",
        )
        .fetch_all(&mut conn)
        .await?;
        let amount = json!({ "amount_minor": 12_900, "currency": "KRW" });
        for (payment, order, key) in open {
            let data = json!({ "refund_key": key, "payment_id": payment, "order_id": order,
                "amount": amount });
            self.tell(
                "PAYMENT_REFUNDED",
                &format!("{payment}-back"),
                &order,
                &data,
            )
            .await?;
        }
        Ok(())
    }

    pub(super) async fn refund_key(&self, payment: &str) -> anyhow::Result<String> {
        let mut conn = self.site.plant.sql().await?;
        for _ in 0..60 {
            let key: Option<String> =
                sqlx::query_scalar("select refund_key from refunds where payment_id = $1")
                    .bind(payment)
                    .fetch_optional(&mut conn)
                    .await?;
            if let Some(key) = key {
                return Ok(key);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        anyhow::bail!("no refund of {payment} is asked for")
    }

    /// An event of payments.v1 from another system; again until it is acknowledged.
    pub(super) async fn tell(
        &self,
        kind: &str,
        id: &str,
        order: &str,
        data: &Value,
    ) -> anyhow::Result<()> {
        self.tell_body(kind, id, order, &data.to_string()).await
    }

    /// The same with any body.
    pub(super) async fn tell_body(
        &self,
        kind: &str,
        id: &str,
        order: &str,
        body: &str,
    ) -> anyhow::Result<()> {
        let producer = Producer::new(&self.site.plant.brokers)?;
        let topic = TopicNames::new("").topic(Topic::Payments);
        let schema = envelope::dataschema(kind);
        let time = clock::now().to_rfc3339();
        let headers: Vec<(&str, &[u8])> = [
            (envelope::header::SPECVERSION, "1.0"),
            (envelope::header::ID, id),
            (envelope::header::SOURCE, "chaos-upstream"),
            (envelope::header::TYPE, kind),
            (envelope::header::TIME, time.as_str()),
            (envelope::header::SUBJECT, order),
            (envelope::header::DATASCHEMA, schema.as_str()),
            (envelope::header::CONTENT_TYPE, envelope::CONTENT_TYPE),
        ]
        .into_iter()
        .map(|(name, value)| (name, value.as_bytes()))
        .collect();
        for _ in 0..10 {
            let sent = producer.send(
                &topic,
                Some(order.as_bytes()),
                &headers,
                Some(body.as_bytes()),
            );
            if sent.await.is_ok() {
                return Ok(());
            }
        }
        anyhow::bail!("{kind} {id} is not acknowledged")
    }
}
