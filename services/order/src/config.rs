//! Settings of the order service.

use std::net::{SocketAddr, TcpListener};

use clap::Args;
use contracts::Shop;
use domain::deadline::{HoldRules, TTL_SECONDS};
use platform::{
    CommonConfig, Environment,
    config::{DEFAULT_SECRETS, Unsafe},
};
use secrecy::{ExposeSecret, SecretString};

/// Settings of the order service, each a flag and an environment variable.
#[derive(Debug, Args)]
pub struct Config {
    /// What all services share.
    #[command(flatten)]
    pub common: CommonConfig,
    /// Where HTTP is served
    #[arg(
        id = "order_listen",
        long = "order-listen",
        env = "HOLDFAST_ORDER_LISTEN",
        default_value = "127.0.0.1:8080"
    )]
    pub listen: SocketAddr,
    /// A socket that was bound already, in place of `listen`: for tests.
    #[arg(skip)]
    pub listener: Option<TcpListener>,
    /// Connections that one address may have, this machine's own excepted; 0 for any number, as
    /// behind a proxy on another machine
    #[arg(
        long,
        env = "HOLDFAST_CONNECTIONS_PER_ADDRESS",
        default_value_t = 1_000
    )]
    pub connections_per_address: usize,
    /// The key of the shop that places orders
    #[arg(
        long,
        env = "HOLDFAST_API_KEY",
        default_value = "development-shop-key",
        hide_env_values = true,
        hide_default_value = true
    )]
    pub api_key: SecretString,
    /// The key of operators
    #[arg(
        long,
        env = "HOLDFAST_OPERATOR_KEY",
        default_value = "development-operator-key",
        hide_env_values = true,
        hide_default_value = true
    )]
    pub operator_key: SecretString,
    /// The name of the shop that the key belongs to, and that order requests by Kafka are for
    #[arg(long, env = "HOLDFAST_SHOP", default_value = "shop")]
    pub shop: Shop,
    /// Seconds for which units are held when the SKU does not say; 1 to 86400
    #[arg(long, env = "HOLDFAST_RESERVATION_TTL_SECONDS", default_value = "600")]
    pub reservation_ttl_seconds: String,
}

impl Config {
    /// The default time to live of a reservation in seconds; `None` when the setting is none.
    #[must_use]
    pub fn ttl_seconds(&self) -> Option<i32> {
        self.reservation_ttl_seconds
            .parse()
            .ok()
            .filter(|ttl| TTL_SECONDS.contains(ttl))
    }

    /// Adds what is wrong with the settings alone, whatever the servers say (P15).
    pub(crate) fn check(&self, unsafe_: &mut Unsafe) {
        unsafe_.check(
            self.ttl_seconds().is_none(),
            format!(
                "HOLDFAST_RESERVATION_TTL_SECONDS must be from {} to {}, not {:?}",
                TTL_SECONDS.start(),
                TTL_SECONDS.end(),
                self.reservation_ttl_seconds
            ),
        );
        let rules = self.common.holds.rules(HoldRules::parse);
        unsafe_.problems.extend(rules.err());
        let keys = [
            ("HOLDFAST_API_KEY", &self.api_key),
            ("HOLDFAST_OPERATOR_KEY", &self.operator_key),
        ];
        for (name, key) in keys {
            let key = key.expose_secret();
            unsafe_.check(key.is_empty(), format!("{name} is empty"));
            unsafe_.check(
                self.common.environment == Environment::Production
                    && (DEFAULT_SECRETS.contains(&key) || key.len() < KEY_MIN),
                format!(
                    "{name} is a default or shorter than {KEY_MIN} characters; not in production"
                ),
            );
        }
        unsafe_.check(
            self.api_key.expose_secret() == self.operator_key.expose_secret(),
            "HOLDFAST_API_KEY and HOLDFAST_OPERATOR_KEY are the same",
        );
    }
}

/// The shortest key that production accepts, in characters.
const KEY_MIN: usize = 16;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        config: Config,
    }

    fn problems(more: &[&str]) -> Vec<String> {
        let base = [
            "order",
            "--database-url",
            "postgres://x",
            "--redis-url",
            "redis://x",
            "--kafka-brokers",
            "x:1",
        ];
        let cli = Cli::parse_from(base.iter().chain(more));
        let mut found = Unsafe::default();
        cli.config.check(&mut found);
        found.problems
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        assert_eq!(problems(&[]), Vec::<String>::new());
        for ttl in ["0", "-5", "", "86401", "ten", "1.5"] {
            let flag = format!("--reservation-ttl-seconds={ttl}");
            let found = problems(&[&flag]);
            assert_eq!(found.len(), 1, "{ttl}: {found:?}");
        }
        let found = problems(&["--environment", "production", "--reservation-ttl-seconds=0"]);
        assert_eq!(found.len(), 3, "{found:?}");
        let found = problems(&["--hold-seconds-by-method", "card"]);
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
