//! Every option of the gate's client, explicit.

use std::{fmt, time::Duration};

/// How the gate is reached and how long it is waited for.
#[derive(Clone)]
pub struct GateConfig {
    /// `redis://[user:password@]host:port[/db]`.
    pub url: String,
    /// The first part of every key: 1 to 32 of `a-z 0-9 _ -`.
    pub key_prefix: String,
    /// How long one call of `reserve` may take before its orders go on without the gate.
    pub reserve_timeout: Duration,
    /// How long any other call may take.
    pub call_timeout: Duration,
    /// How long a new connection may take, its greeting included.
    pub connect_timeout: Duration,
    /// How often an absent server is tried again; `reserve` waits for none of these tries.
    pub probe_interval: Duration,
    /// When the sweep first asks about a hold. Must exceed the 2 s in which an accept may start.
    pub due_after: Duration,
    /// When the sweep asks again about a hold that `sync` kept.
    pub next_check: Duration,
}

impl GateConfig {
    /// The protocol's values, for a server at `url`.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            key_prefix: "hf".to_owned(),
            reserve_timeout: Duration::from_millis(50),
            call_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(1),
            probe_interval: Duration::from_millis(250),
            due_after: Duration::from_secs(5),
            next_check: Duration::from_secs(30),
        }
    }
}

/// Without the URL: it may hold a password.
impl fmt::Debug for GateConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateConfig")
            .field("key_prefix", &self.key_prefix)
            .field("reserve_timeout", &self.reserve_timeout)
            .field("call_timeout", &self.call_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("probe_interval", &self.probe_interval)
            .field("due_after", &self.due_after)
            .field("next_check", &self.next_check)
            .finish_non_exhaustive()
    }
}
