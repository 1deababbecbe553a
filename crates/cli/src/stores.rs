//! PostgreSQL and the gate, for the commands that do what the stock service does.

use reservations::{Gate, GateConfig};
use secrecy::{ExposeSecret, SecretString};
use stock::Stock;
use store::{Store, StoreOptions};

/// Where they are.
#[derive(Debug, Clone, clap::Args)]
pub struct Stores {
    /// PostgreSQL
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: SecretString,
    /// Redis
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    pub redis_url: SecretString,
    /// Prefix of all Redis keys
    #[arg(long, env = "HOLDFAST_KEY_PREFIX", default_value = "hf")]
    pub key_prefix: String,
}

impl Stores {
    /// What works on them; `name` is what PostgreSQL calls its sessions. Connects when it is used.
    ///
    /// # Errors
    /// An address can't be read.
    pub fn stock(&self, name: &str) -> anyhow::Result<Stock> {
        let options = StoreOptions::background(self.database_url.expose_secret(), name);
        Ok(Stock {
            store: Store::connect(&options)?,
            gate: Gate::new(GateConfig {
                key_prefix: self.key_prefix.clone(),
                ..GateConfig::new(self.redis_url.expose_secret())
            })?,
        })
    }
}
