//! What must hold of a world: how an order ends, and every invariant.

use serde_json::Value;
use store::verify::{Check, Payments};

use super::World;
use crate::{
    wait::{BOUND, ask_within},
    wait_for,
};

impl World {
    /// Waits until the order has this status; gives the order.
    pub async fn until(&self, order: &str, status: &str) -> Value {
        let shop = self.shop();
        let path = format!("/v1/orders/{order}");
        wait_for(&format!("order {order} to be {status}"), || async {
            let order = shop.get(&path).await;
            (order["status"] == status).then_some(order)
        })
        .await
    }

    /// Waits until no order is RESERVED and all is quiet, then until every invariant holds.
    ///
    /// # Panics
    /// One is still broken at the bound; its offenders are named.
    pub async fn settled(&self) {
        wait_for("every order to end", || async {
            (self
                .count("select count(*) from orders where status = 'RESERVED'")
                .await
                == 0)
                .then_some(())
        })
        .await;
        self.consistent().await;
    }

    /// Waits until every invariant holds, with orders open or not.
    ///
    /// # Panics
    /// One is still broken at the bound; its offenders are named.
    pub async fn consistent(&self) {
        let asked = ask_within(BOUND, || async {
            let red: Vec<Check> = self.checks().await.into_iter().filter(|c| !c.ok).collect();
            if red.is_empty() { Ok(()) } else { Err(red) }
        });
        if let Err(red) = asked.await {
            panic!("invariants broken: {red:#?}");
        }
    }

    /// Waits until no session of the order service is inside a transaction, and none of them is silent in
    /// one for longer than anybody works in it. (The server would end such a one after 5 s, and nobody
    /// would see that it was there.)
    ///
    /// # Panics
    /// One is.
    pub async fn no_session_left_in_a_transaction(&self) {
        const LEFT_MS: i64 = 3_000;
        let silent =
            "select coalesce(max(extract(epoch from clock_timestamp() - state_change) * 1000),
                                      -1)::bigint
                      from pg_stat_activity where datname = current_database()
                      and application_name in ('holdfast order', 'holdfast order accept')
                      and state like 'idle in transaction%'";
        wait_for("no session inside a transaction", || async {
            let silent_ms = self.count(silent).await;
            assert!(
                silent_ms < LEFT_MS,
                "a session is left inside a transaction, silent for {silent_ms} ms"
            );
            (silent_ms < 0).then_some(())
        })
        .await;
    }

    /// `holdfast verify` of this world.
    ///
    /// # Panics
    /// A server can't be reached.
    pub async fn verify(&self) -> cli::verify::Report {
        match cli::verify::verify(&self.target()).await {
            Ok(report) => report,
            Err(error) => panic!("the invariants can't be checked: {error:#}"),
        }
    }

    fn target(&self) -> cli::verify::Target {
        cli::verify::Target {
            store: self.store.clone(),
            redis_url: self.redis_url.clone(),
            key_prefix: self.key_prefix.clone(),
            brokers: self.brokers.clone(),
            names: self.names.clone(),
            gateway_url: self.gateway.as_ref().map(|g| g.url.clone()),
            payments: if self.options.upstream {
                Payments::Upstream
            } else {
                Payments::Internal
            },
        }
    }

    /// Every invariant, once: a look that a server cuts short, because the machine has too much to
    /// do, is no look.
    ///
    /// # Panics
    /// A server can't be reached.
    pub async fn checks(&self) -> Vec<Check> {
        let target = self.target();
        let mut checks = wait_for("a look at the invariants", || async {
            let looked = cli::verify::once(&target).await;
            looked
                .inspect_err(|error| tracing::warn!("the invariants can't be checked: {error:#}"))
                .ok()
        })
        .await;
        // A service that the test left out lags for ever, and rightly.
        for (running, group) in [
            (self.payment.is_some(), "holdfast.payment "),
            (self.stock.is_some(), "holdfast.stock "),
        ] {
            for check in checks.iter_mut().filter(|_| !running) {
                check
                    .offenders
                    .retain(|offender| !offender.starts_with(group));
                check.ok = check.ok || check.offenders.is_empty();
            }
        }
        checks
    }
}
