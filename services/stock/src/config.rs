//! Settings, and what is unsafe about them and about the servers behind them (P15).

use std::net::SocketAddr;

use clap::Args;
use domain::deadline::HoldRules;
use platform::{CommonConfig, Environment, PaymentsMode, config::Unsafe};
use secrecy::ExposeSecret;

/// Settings of the stock service.
#[derive(Debug, Args)]
pub struct Config {
    /// Stores and names that every service shares.
    #[command(flatten)]
    pub common: CommonConfig,
    /// Where the operations port of the stock service listens
    #[arg(
        long = "stock-listen",
        env = "HOLDFAST_STOCK_LISTEN",
        default_value = "127.0.0.1:8082"
    )]
    pub listen: SocketAddr,
    /// A socket that is bound already, instead of `listen`: for tests.
    #[arg(skip)]
    pub listener: Option<std::net::TcpListener>,
}

impl Config {
    /// What is wrong with the settings themselves.
    pub(crate) fn check(&self) -> Unsafe {
        let mut found = Unsafe::default();
        let common = &self.common;
        found.check(
            common.kafka_brokers.trim().is_empty(),
            "KAFKA_BROKERS is empty",
        );
        found.check(
            common.db_connections < 3,
            "HOLDFAST_DB_CONNECTIONS must be at least 3",
        );
        found.check(
            common.gate_timeout_ms == 0,
            "HOLDFAST_GATE_TIMEOUT_MS must not be 0",
        );
        let rules = common.holds.rules(HoldRules::parse);
        found.problems.extend(rules.err());
        if common.environment == Environment::Production {
            let plain = |url: &str| {
                url.contains("://postgres:postgres@") || url.contains("password=postgres")
            };
            found.check(
                plain(common.database_url.expose_secret()),
                "DATABASE_URL has a default password",
            );
            found.check(
                !common.topic_suffix.is_empty(),
                "HOLDFAST_TOPIC_SUFFIX is for tests and must be empty in production",
            );
        }
        found
    }

    /// Consumers without which nobody's order expires: those that this mode runs and that decide
    /// whether an order is paid.
    #[must_use]
    pub fn required_consumers(&self) -> Vec<&'static str> {
        use contracts::ConsumerName::{Payment, Stock};
        match self.common.payments {
            PaymentsMode::Internal => vec![Payment.as_str(), Stock.as_str()],
            PaymentsMode::Upstream => vec![Stock.as_str()],
        }
    }
}
