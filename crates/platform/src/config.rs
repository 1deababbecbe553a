//! Settings that every service shares. Each is a flag and an environment variable; `--help` is the
//! reference.

use std::{fmt::Display, net::SocketAddr};

use clap::{Args, ValueEnum};
use secrecy::SecretString;

/// Where the process runs: production refuses what development forgives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Environment {
    /// One broker, default secrets and plain text are accepted.
    Development,
    /// They are not.
    Production,
}

/// Who writes `payments.v1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PaymentsMode {
    /// Our payment service.
    Internal,
    /// An upstream payment system; our payment service is left out.
    Upstream,
}

/// The stores and names that every service shares.
#[derive(Debug, Clone, Args)]
pub struct CommonConfig {
    /// PostgreSQL, as a URL
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
    /// Redis, as a URL
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    pub redis_url: SecretString,
    /// Kafka's bootstrap servers, comma-separated
    #[arg(long, env = "KAFKA_BROKERS")]
    pub kafka_brokers: String,
    /// Development or production
    #[arg(long, env = "HOLDFAST_ENV", value_enum, default_value = "development")]
    pub environment: Environment,
    /// Who writes payments.v1
    #[arg(
        long,
        env = "HOLDFAST_PAYMENTS",
        value_enum,
        default_value = "internal"
    )]
    pub payments: PaymentsMode,
    /// Prefix of all Redis keys
    #[arg(long, env = "HOLDFAST_KEY_PREFIX", default_value = "hf")]
    pub key_prefix: String,
    /// Suffix of all topics and groups; empty in production
    #[arg(long, env = "HOLDFAST_TOPIC_SUFFIX", default_value = "")]
    pub topic_suffix: String,
    /// Connections of the main pool to PostgreSQL
    #[arg(long, env = "HOLDFAST_DB_CONNECTIONS", default_value_t = 8)]
    pub db_connections: u32,
    /// Milliseconds within which the gate must answer a reserve; beyond it the accept goes on without
    #[arg(long, env = "HOLDFAST_GATE_TIMEOUT_MS", default_value_t = 50)]
    pub gate_timeout_ms: u64,
    /// How long holds last
    #[command(flatten)]
    pub holds: HoldConfig,
    /// Seconds of lag without progress after which a consumer is not ready; after twice as many its
    /// process ends
    #[arg(long, env = "HOLDFAST_STALL_SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub stall_seconds: u64,
    /// Seconds for which the runtime may be blocked before the process aborts itself
    #[arg(long, env = "HOLDFAST_BLOCKED_SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(2..=86_400))]
    pub blocked_seconds: u64,
    /// Whether this process stands by to lead the relay
    #[arg(long, env = "HOLDFAST_RELAY", default_value_t = true, action = clap::ArgAction::Set)]
    pub relay: bool,
}

/// How long holds last and how they are renewed, as it is written (P5).
#[derive(Debug, Clone, Args)]
pub struct HoldConfig {
    /// Seconds for which units are held by payment method, in place of the SKU's time:
    /// `transfer=86400,cash=3600`
    #[arg(long, env = "HOLDFAST_HOLD_SECONDS_BY_METHOD", default_value = "")]
    pub hold_seconds_by_method: String,
    /// Seconds that a hold has at least left when a payment begins; 0 renews nothing
    #[arg(long, env = "HOLDFAST_HOLD_PAYMENT_SECONDS", default_value_t = 0)]
    pub hold_payment_seconds: u32,
    /// Seconds that a hold has at least left after an attempt to pay failed and was not final; 0
    /// renews nothing
    #[arg(long, env = "HOLDFAST_HOLD_RETRY_SECONDS", default_value_t = 0)]
    pub hold_retry_seconds: u32,
    /// Seconds after which a hold ends whatever renews it, but for outages of ours; at most 604800
    #[arg(long, env = "HOLDFAST_HOLD_CAP_SECONDS", default_value_t = 86_400)]
    pub hold_cap_seconds: u32,
}

impl HoldConfig {
    /// The rules that these settings are, read by `parse`: `HoldRules::parse` of `domain`, which this
    /// package does not know.
    ///
    /// # Errors
    /// A sentence that names the settings and says what is wrong with them.
    pub fn rules<Rules, Wrong: Display>(
        &self,
        parse: impl FnOnce(&str, u32, u32, u32) -> Result<Rules, Wrong>,
    ) -> Result<Rules, String> {
        parse(
            &self.hold_seconds_by_method,
            self.hold_payment_seconds,
            self.hold_retry_seconds,
            self.hold_cap_seconds,
        )
        .map_err(|wrong| format!("HOLDFAST_HOLD_*: {wrong}"))
    }
}

/// The secrets that `holdfast up` never uses and that production refuses.
pub const DEFAULT_SECRETS: [&str; 3] = [
    "development-shop-key",
    "development-operator-key",
    "development-webhook-secret",
];

/// A service that is about to listen: an address, or a socket that a test has bound already.
#[derive(Debug)]
pub enum Listen {
    /// Bind this.
    Address(SocketAddr),
    /// Use this.
    Bound(std::net::TcpListener),
}

/// All that is wrong with a configuration, said at once (P15).
#[derive(Debug, Default, thiserror::Error)]
#[error("refusing to start:\n{}", .problems.iter().map(|p| format!("  - {p}")).collect::<Vec<_>>().join("\n"))]
pub struct Unsafe {
    /// One sentence each, with the name of the setting.
    pub problems: Vec<String>,
}

impl Unsafe {
    /// Adds a problem when `wrong` is true.
    pub fn check(&mut self, wrong: bool, problem: impl Into<String>) {
        if wrong {
            self.problems.push(problem.into());
        }
    }

    /// `Ok` when nothing is wrong.
    ///
    /// # Errors
    /// Itself, when something is.
    pub fn into_result(self) -> Result<(), Self> {
        if self.problems.is_empty() {
            Ok(())
        } else {
            Err(self)
        }
    }
}
