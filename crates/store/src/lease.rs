//! Who leads: a session advisory lock on a connection of its own. A stopped process loses it after
//! two seconds of silence, because the server ends the session (P8).

use crate::{Conn, error::Result, pool::StoreOptions};

/// How often the holder must speak.
pub const HEARTBEAT_EVERY: std::time::Duration = std::time::Duration::from_millis(500);

/// A lock that is held as long as its connection lives. Dropped, it is released.
#[derive(Debug)]
pub struct Lease {
    conn: Conn,
}

impl Lease {
    /// Takes the lock of this name on a new connection; `None` when another holds it.
    ///
    /// # Errors
    /// No connection.
    pub async fn try_acquire(options: &StoreOptions, key: &str) -> Result<Option<Self>> {
        let _ = (options, key);
        todo!()
    }

    /// The connection that holds the lock: what is written on it is written by the leader.
    pub fn conn(&mut self) -> &mut Conn {
        &mut self.conn
    }

    /// Speaks, so that the session is not ended; to be called every [`HEARTBEAT_EVERY`].
    ///
    /// # Errors
    /// The lock is lost: end the leadership.
    pub async fn heartbeat(&mut self) -> Result<()> {
        todo!()
    }

    /// Gives the lock back at once.
    pub async fn release(self) {
        todo!()
    }
}
