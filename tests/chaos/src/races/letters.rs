//! R13: a dead letter is redriven before a newer event of its order, and after it.

use std::time::Duration;

use clap::Parser;
use cli::{
    args::{Cli, Command},
    dlq::{Ask, redrive, report::Report},
};
use platform::clock;
use serde_json::json;

use super::{Came, Races};

impl Races {
    /// Money comes with a broken body and is set aside; the body is mended. Then it is redriven, and
    /// the news comes that another attempt to pay has failed for good: whichever is first decides
    /// whether the order is CONFIRMED or CANCELED, and in the latter case the money goes back.
    pub(super) async fn redrives(&self, turn: u64) -> anyhow::Result<()> {
        let newer_first = self.lacking("R13") == Came::First;
        let key = format!("race-R13-{turn}");
        let id = self.accepted(&key, "RACE-LONG", "card-abandoned").await?;
        let payment = format!("other-R13-{turn}");
        let amount = json!({ "amount_minor": 12_900, "currency": "KRW" });
        let right = json!({ "payment_id": payment, "order_id": id, "amount": amount,
            "method": "card", "completed_at": clock::now().to_rfc3339() });
        self.tell_body("PAYMENT_COMPLETED", &payment, &id, "{\"payment_id\":")
            .await?;
        let letter = self.mended(&payment, &right.to_string()).await?;

        let newer = format!("{payment}-newer");
        let failed = json!({ "payment_id": newer, "order_id": id, "reason_code": "declined",
            "final": true });
        if newer_first {
            self.tell("PAYMENT_FAILED", &newer, &id, &failed).await?;
            self.ended(&id, 30).await?;
            self.redriven(&letter).await?;
        } else {
            self.redriven(&letter).await?;
            self.tell("PAYMENT_FAILED", &newer, &id, &failed).await?;
        }
        match self.ended(&id, 30).await?.as_str() {
            "CANCELED" => {
                let key = self.refund_key(&payment).await?;
                let back = json!({ "refund_key": key, "payment_id": payment, "order_id": id,
                    "amount": amount });
                let event = format!("{payment}-back");
                self.tell("PAYMENT_REFUNDED", &event, &id, &back).await?;
                self.saw("R13", Came::First);
            }
            "CONFIRMED" => self.saw("R13", Came::Second),
            // An outage of ours was longer than the order's time.
            other => anyhow::bail!("{id} is {other}"),
        }
        Ok(())
    }

    /// Waits for the dead letter of an event and mends its body; gives its id.
    async fn mended(&self, event: &str, body: &str) -> anyhow::Result<String> {
        let mut conn = self.site.plant.sql().await?;
        for _ in 0..60 {
            let letter: Option<String> = sqlx::query_scalar(
                "update dead_letters set payload = convert_to($2, 'UTF8')
                 where consumer = 'stock' and event_id = $1 returning id::text",
            )
            .bind(event)
            .bind(body)
            .fetch_optional(&mut conn)
            .await?;
            if let Some(letter) = letter {
                return Ok(letter);
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        anyhow::bail!("{event} is not set aside")
    }

    /// Redrives a dead letter as an operator does, twice: the second time there is nothing to do.
    async fn redriven(&self, letter: &str) -> anyhow::Result<()> {
        let first = self.redrive(letter).await?;
        let again = self.redrive(letter).await?;
        // An error in between may have been an unknown commit, so the first may be done already.
        if first.failed_again > 0 || again.already_done != 1 {
            self.wrong("R13", format!("{letter}: {first:?}, then {again:?}"));
        }
        Ok(())
    }

    async fn redrive(&self, letter: &str) -> anyhow::Result<Report> {
        let plant = &self.site.plant;
        let cli = Cli::try_parse_from([
            "holdfast",
            "dlq",
            "redrive",
            letter,
            "--database-url",
            &plant.database_url,
            "--redis-url",
            &plant.redis_url,
        ])?;
        let Command::Dlq(Ask::Redrive(args)) = cli.command else {
            anyhow::bail!("another command");
        };
        let mut tries = 0;
        loop {
            tries += 1;
            match redrive::redrive(&args).await {
                Err(_) if tries < 20 => tokio::time::sleep(Duration::from_millis(500)).await,
                done => return done,
            }
        }
    }
}
