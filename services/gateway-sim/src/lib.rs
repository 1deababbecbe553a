//! A stand-in payment provider with a real HTTP API.
//!
//! Guarantee: one result per idempotency key. A charge captures at most once per key, a key that
//! was canceled never captures, and refunds never exceed what was captured; the journal counts
//! each effect where it happens, so that a test can hold the services against it. Everything lives
//! in memory, at most [`Config::max_entries`] keys (about 0.5 KiB each): a full book refuses new
//! keys with 503 and forgets none. A restart forgets all, as no real provider would, unless it is
//! given a file to remember in.
//!
//! How it misbehaves is tunable at the start and while it runs: see [`Behaviour`].

mod behaviour;
mod book;
mod book_file;
mod http;
pub mod signature;
mod webhooks;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use platform::{Ops, Shutdown, config::Listen, shutdown};
use secrecy::SecretString;

pub use behaviour::{Behaviour, BehaviourChange, InvalidBehaviour, Outcome, Rule};
use book::Book;
use webhooks::Webhooks;

/// Settings of the provider.
#[derive(Debug, clap::Args)]
pub struct Config {
    /// Address of the provider's API
    #[arg(
        long,
        env = "HOLDFAST_GATEWAY_LISTEN",
        default_value = "127.0.0.1:8090"
    )]
    pub gateway_listen: SocketAddr,
    /// A socket that a test has bound already; wins over the address.
    #[arg(skip)]
    pub gateway_listener: Option<std::net::TcpListener>,
    /// Where webhooks are sent; none are sent when it is not set
    #[arg(long, env = "HOLDFAST_WEBHOOK_URL")]
    pub webhook_url: Option<String>,
    /// Secret that signs webhooks
    #[arg(
        long,
        env = "HOLDFAST_WEBHOOK_SECRET",
        hide_env_values = true,
        default_value = "development-webhook-secret"
    )]
    pub webhook_secret: SecretString,
    /// Keys of charges and refunds that are kept; beyond it new keys get 503
    #[arg(
        long,
        env = "HOLDFAST_GATEWAY_MAX_ENTRIES",
        default_value_t = 1_000_000
    )]
    pub max_entries: usize,
    /// A file that outlives the process: every effect is written to it and known after a restart
    #[arg(long, env = "HOLDFAST_GATEWAY_BOOK")]
    pub book_file: Option<std::path::PathBuf>,
    /// How the provider behaves at the start
    #[command(flatten)]
    pub behaviour: Behaviour,
}

/// Why the provider could not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A knob is out of its range.
    #[error("the behaviour at the start is not valid")]
    Behaviour(#[source] InvalidBehaviour),
    /// The webhook address can't be used.
    #[error("HOLDFAST_WEBHOOK_URL is not an http address")]
    WebhookUrl,
    /// The file of the book can't be read or written.
    #[error("opening the book on disk")]
    Book(#[source] std::io::Error),
    /// The address can't be listened on.
    #[error("serving the provider's API")]
    Serve(#[source] std::io::Error),
}

/// What the handlers share.
#[derive(Debug)]
struct Sim {
    book: Mutex<Book>,
    behaviour: RwLock<Behaviour>,
    webhooks: Option<Webhooks>,
    shutdown: Shutdown,
}

impl Sim {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn behaviour(&self) -> Behaviour {
        self.behaviour
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Serves until shutdown begins; what is being executed then is finished without its latency.
///
/// # Errors
/// [`RunError`]: see its variants.
pub async fn run(config: Config, shutdown: Shutdown) -> Result<(), RunError> {
    config.behaviour.validate().map_err(RunError::Behaviour)?;
    let own = shutdown.child();
    let webhooks = match &config.webhook_url {
        Some(url) => {
            let url = url.parse().map_err(|_| RunError::WebhookUrl)?;
            Some(Webhooks::start(url, config.webhook_secret.clone(), &own))
        }
        None => None,
    };
    let book = match &config.book_file {
        Some(path) => {
            let (lines, file) = book_file::open(path).map_err(RunError::Book)?;
            Book::of(config.max_entries, lines, file)
        }
        None => Book::new(config.max_entries),
    };
    let sim = Arc::new(Sim {
        book: Mutex::new(book),
        behaviour: RwLock::new(config.behaviour),
        webhooks,
        shutdown: own.clone(),
    });
    let router = http::router(sim).merge(Ops::new().router());
    let listen = config
        .gateway_listener
        .map_or(Listen::Address(config.gateway_listen), Listen::Bound);
    let served = platform::serve(listen, router, own.clone())
        .await
        .map_err(RunError::Serve);
    own.begin();
    if !own.finished(shutdown::GRACE).await {
        tracing::warn!("some webhooks were still being sent at the end");
    }
    served
}
