//! Races that crash points force: R4, R7, R12.

use std::time::Duration;

use cli::services::ServiceName;
use platform::clock;

use super::{Came, Races, body};
use crate::faults::crashes;

impl Races {
    /// R4: the accept has committed and its answer is held up; the order is found and canceled.
    pub(super) async fn accept_and_cancel(&self, turn: u64) -> anyhow::Result<()> {
        let before = self.lacking("R4") == Came::Second;
        let key = format!("race-R4-{turn}");
        let wanted = body(&key, &["RACE-LONG"], "card-hang");
        if !before {
            let id = self.accepted(&key, "RACE-LONG", "card-hang").await?;
            let status = self.cancel(&id).await?;
            anyhow::ensure!([200, 409].contains(&status), "{status}");
            self.saw("R4", Came::First);
            return Ok(());
        }
        let order = self.site.plant.replica(ServiceName::Order, 0)?;
        crashes::set(order, "cp8=delay(1500)").await?;
        let placing = self.place(0, &key, &wanted);
        let canceling = async {
            let path = format!("/v1/orders?customer_id={key}");
            for _ in 0..40 {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let Ok(found) = crate::truth::get(&mut self.shop(1)?, &path).await else {
                    continue;
                };
                if let Some(id) = found["data"][0]["order_id"].as_str() {
                    let status = self.cancel(id).await?;
                    return Ok((id.to_owned(), status, clock::monotonic()));
                }
            }
            anyhow::bail!("{key} is not found")
        };
        let (placed, canceled) = tokio::join!(placing, canceling);
        let cleared = crashes::set(order, "").await;
        let answered = clock::monotonic();
        let (placed, (id, status, at)) = (placed?, canceled?);
        cleared?;
        if placed.status != 201 || placed.id != id {
            let said = format!(
                "{key}: canceled as {id}, answered {} {}",
                placed.status, placed.id
            );
            self.wrong("R4", said);
        }
        let came = if status == 200 && at < answered {
            Came::Second
        } else {
            Came::First
        };
        self.saw("R4", came);
        Ok(())
    }

    /// R7: an accept that waits for longer than its hold is left alone, and one that does not.
    pub(super) async fn accept_and_sweep(&self, turn: u64) -> anyhow::Result<()> {
        let order = self.site.plant.replica(ServiceName::Order, 1)?;
        let key = format!("race-R7-{turn}");
        let wanted = body(&key, &["RACE-LONG"], "card");
        let swept = || {
            self.site
                .metrics
                .sum("holds_swept_total", &["\"released\""])
        };
        if self.lacking("R7") == Came::First {
            crashes::set(order, "cp3=delay(300)@1").await?;
            let placed = self.place(1, &key, &wanted).await;
            crashes::set(order, "").await?;
            anyhow::ensure!(placed?.status == 201, "refused");
            self.saw("R7", Came::First);
            return Ok(());
        }
        self.site.metrics.read(&self.site.plant).await;
        let before = swept();
        crashes::set(order, "cp3=delay(7500)@1").await?;
        let placed = self.place(1, &key, &wanted).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        crashes::set(order, "").await?;
        anyhow::ensure!(placed?.status == 201, "refused");
        self.site.metrics.read(&self.site.plant).await;
        if swept() > before {
            self.saw("R7", Came::Second);
        }
        Ok(())
    }

    /// R12: a member leaves its group while another handles a batch, and after it has.
    pub(super) async fn rebalance(&self) -> anyhow::Result<()> {
        let stock = ServiceName::Stock;
        let (busy, leaving) = (
            self.site.plant.replica(stock, 0)?,
            self.site.plant.replica(stock, 1)?,
        );
        let bit = || {
            crashes::bites(&self.site)
                .get("cp15 delay")
                .copied()
                .unwrap_or(0)
        };
        for (delay, wait, came) in [(2_000, 100, Came::Second), (50, 1_500, Came::First)] {
            let before = bit();
            crashes::set(busy, &format!("cp15=delay({delay})@1")).await?;
            for _ in 0..60 {
                if bit() > before {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let bitten = bit() > before;
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let left = leaving.stop(Duration::from_secs(10)).await;
            leaving.start().await?;
            if bitten && left?.is_some() {
                self.saw("R12", came);
            }
            crashes::set(busy, "").await?;
            leaving.ready().await?;
        }
        Ok(())
    }
}
