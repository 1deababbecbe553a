//! The servers that all worlds share, and what a test needs to run servers of its own.

use std::path::{Path, PathBuf};

use cli::servers::{self, StateDir};
use tokio::sync::OnceCell;

/// Addresses of the shared servers.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// PostgreSQL, as a user that may create databases.
    pub database_url: String,
    /// Redis.
    pub redis_url: String,
    /// Kafka.
    pub brokers: String,
}

static ADDRESSES: OnceCell<Addresses> = OnceCell::const_new();

/// The shared servers; started when nobody gave addresses. They stay up for the next run, in the
/// state directory `target/test-state`; `holdfast down --state-dir target/test-state` ends them.
///
/// # Panics
/// They can't be started.
pub async fn addresses() -> Addresses {
    ADDRESSES
        .get_or_init(|| async {
            platform::telemetry::init();
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-state");
            let started = async {
                let dir = StateDir::lock(&dir)?;
                servers::ensure(&dir, &servers::Addresses::from_env(), true).await
            };
            match started.await {
                Ok(servers) => Addresses {
                    database_url: servers.database_url,
                    redis_url: servers.redis_url,
                    brokers: servers.kafka_brokers,
                },
                Err(error) => panic!("a test needs its servers: {error}"),
            }
        })
        .await
        .clone()
}

/// `host:port` of a URL.
#[must_use]
pub fn authority(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let server = rest.split_once('/').map_or(rest, |(server, _)| server);
    server
        .rsplit_once('@')
        .map_or(server, |(_, host)| host)
        .to_owned()
}

/// The URL with another `host:port`.
#[must_use]
pub fn through(url: &str, address: &str) -> String {
    url.replace(&authority(url), address)
}

/// A directory for a private server of a test.
///
/// # Panics
/// It can't be made.
#[must_use]
pub fn private_dir(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/test-private")
        .join(format!("{name}-{}", contracts::ids::generate().simple()));
    match std::fs::create_dir_all(&dir) {
        Ok(()) => dir,
        Err(error) => panic!("{}: {error}", dir.display()),
    }
}
