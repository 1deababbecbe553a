//! Who is alive (P5): one row per name, renewed by whichever process runs it.

use std::time::Duration;

use crate::{Conn, error::Result};

/// A name and how long ago it was heard of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// Which consumer.
    pub name: String,
    /// By PostgreSQL's clock.
    pub age: Duration,
}

/// Renews a heartbeat.
///
/// # Errors
/// No answer.
pub async fn beat(conn: &mut Conn, name: &str) -> Result<()> {
    let _ = (conn, name);
    todo!()
}

/// All heartbeats, by name.
///
/// # Errors
/// No answer.
pub async fn all(conn: &mut Conn) -> Result<Vec<Heartbeat>> {
    let _ = conn;
    todo!()
}
