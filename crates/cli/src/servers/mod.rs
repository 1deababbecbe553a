//! Where PostgreSQL, Redis and Kafka come from: addresses in the environment, else `docker compose`
//! where an engine answers, else native processes on free ports in the state directory.
//!
//! Guarantees: what is started is recorded before anyone waits for it, by process id and start
//! time, so that [`stop`] ends exactly that and never a process that merely has its number; two
//! callers in one state directory start one set; a set that runs is used again; a server counts as
//! ready when it has answered a question, not when its port is open.

mod choice;
pub mod compose;
mod error;
mod files;
pub mod native;
mod ports;
mod probe;
mod process;
pub mod settings;
mod state;

pub use choice::{Addresses, ServerName, Servers, Source, ensure, remove, stop, stop_since};
pub use error::ServerError;
pub use files::{locate_upwards, random_secret, read_or_create, tail, write_private};
pub use ports::{Ports, free_port};
pub use probe::{kafka_answers, redis_answers};
pub use process::{Identity, Launch, Process, Stopped};
pub use state::{Entry, Role, State, StateDir};
