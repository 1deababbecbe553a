//! Settings of the payment service, and what is refused at the start (P15).

use std::{net::SocketAddr, time::Duration};

use domain::deadline::HoldRules;
use platform::{
    CommonConfig, Environment, PaymentsMode,
    config::{DEFAULT_SECRETS, Unsafe},
};
use secrecy::{ExposeSecret, SecretString};

use crate::LEASE;

/// Settings of the payment service.
#[derive(Debug, clap::Args)]
pub struct Config {
    /// What all services share
    #[command(flatten)]
    pub common: CommonConfig,
    /// Address of webhooks and of the operations port
    #[arg(
        long,
        env = "HOLDFAST_PAYMENT_LISTEN",
        default_value = "127.0.0.1:8081"
    )]
    pub payment_listen: SocketAddr,
    /// A socket that a test has bound already; wins over the address.
    #[arg(skip)]
    pub payment_listener: Option<std::net::TcpListener>,
    /// The payment provider, as an http address
    #[arg(long, env = "GATEWAY_URL", default_value = "http://127.0.0.1:8090")]
    pub gateway_url: String,
    /// Milliseconds within which the provider must answer; beyond it the outcome is unknown
    #[arg(long, env = "HOLDFAST_GATEWAY_TIMEOUT_MS", default_value_t = 5_000)]
    pub gateway_timeout_ms: u64,
    /// Secret that signs webhooks
    #[arg(
        long,
        env = "HOLDFAST_WEBHOOK_SECRET",
        hide_env_values = true,
        default_value = "development-webhook-secret"
    )]
    pub webhook_secret: SecretString,
    /// Calls to the provider at a time
    #[arg(long, env = "HOLDFAST_PAYMENT_CONCURRENCY", default_value_t = 64)]
    pub payment_concurrency: usize,
}

impl Config {
    pub(crate) fn gateway_timeout(&self) -> Duration {
        Duration::from_millis(self.gateway_timeout_ms)
    }

    /// Adds what is wrong with these settings.
    pub(crate) fn check(&self, problems: &mut Unsafe) {
        problems.check(
            self.common.payments == PaymentsMode::Upstream,
            "HOLDFAST_PAYMENTS=upstream: someone else writes payments.v1, so the payment service must not run",
        );
        let secret = self.webhook_secret.expose_secret();
        problems.check(secret.is_empty(), "HOLDFAST_WEBHOOK_SECRET is empty");
        problems.check(
            self.common.environment == Environment::Production && DEFAULT_SECRETS.contains(&secret),
            "HOLDFAST_WEBHOOK_SECRET is the default that everybody knows",
        );
        let rules = self.common.holds.rules(HoldRules::parse);
        problems.problems.extend(rules.err());
        let half = LEASE / 2;
        problems.check(
            self.gateway_timeout().is_zero() || self.gateway_timeout() > half,
            format!(
                "HOLDFAST_GATEWAY_TIMEOUT_MS must be from 1 to {}",
                half.as_millis()
            ),
        );
        problems.check(
            !(1..=1_024).contains(&self.payment_concurrency),
            "HOLDFAST_PAYMENT_CONCURRENCY must be from 1 to 1024",
        );
    }
}
