//! What a proxy does to requests and links, and how often it has.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::frame::Kind;

/// What happens to a request, or to its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It never reaches the server; the connection is cut.
    DropRequest,
    /// It is forwarded and carried out; its answer is lost with the connection.
    SwallowReply,
    /// It is forwarded and carried out; no answer to it or to anything later ever comes, and the
    /// connection stays open.
    HangReply,
    /// It reaches the server later.
    DelayRequest(Duration),
}

/// One fault of requests of one kind. Counts its bites.
#[derive(Debug)]
pub struct Rule {
    kind: Kind,
    fault: Fault,
    /// Requests of the kind that pass first, and then between two bites.
    every: u64,
    left: AtomicU64,
    seen: AtomicU64,
    bites: AtomicU64,
}

impl Rule {
    /// A rule that bites each request of `kind`, for ever.
    #[must_use]
    pub fn new(kind: Kind, fault: Fault) -> Self {
        Self {
            kind,
            fault,
            every: 1,
            left: AtomicU64::new(u64::MAX),
            seen: AtomicU64::new(0),
            bites: AtomicU64::new(0),
        }
    }

    /// It bites so often and no more.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        self.left.store(times, Ordering::SeqCst);
        self
    }

    /// It bites each n-th request of its kind only.
    #[must_use]
    pub fn every(mut self, nth: u64) -> Self {
        self.every = nth.max(1);
        self
    }

    /// Adds to how often it will bite.
    pub fn again(&self, times: u64) {
        let more = |left: u64| Some(left.saturating_add(times));
        // The closure always gives a value.
        let _ = self
            .left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
    }

    /// How often it bit: for answers, when the server has given them.
    #[must_use]
    pub fn bites(&self) -> u64 {
        self.bites.load(Ordering::SeqCst)
    }

    /// What it does to this request.
    pub(super) fn strikes(&self, kind: &Kind) -> Option<Fault> {
        if self.kind != *kind {
            return None;
        }
        let seen = self.seen.fetch_add(1, Ordering::SeqCst) + 1;
        if !seen.is_multiple_of(self.every) {
            return None;
        }
        let one = |left: u64| match left {
            u64::MAX => Some(left),
            left => left.checked_sub(1),
        };
        self.left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one)
            .ok()
            .map(|_| self.fault)
    }

    pub(super) fn bite(&self) {
        self.bites.fetch_add(1, Ordering::SeqCst);
    }
}

/// Which direction a fault of a link concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Towards {
    /// From the client to the server.
    Server,
    /// From the server to the client.
    Client,
    /// Both.
    Both,
}

impl Towards {
    pub(super) fn includes(self, other: Self) -> bool {
        self == other || self == Self::Both
    }
}

/// How all connections of a proxy are, old and new.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Link {
    /// Before what arrives at once, each way.
    pub delay: Duration,
    /// At most so many bytes a second, each way.
    pub bytes_per_second: Option<u64>,
    /// Frames come in pieces of so many bytes.
    pub slice: Option<usize>,
    /// What arrives is read and goes nowhere.
    pub silent: Option<Towards>,
    /// New connections are closed at once.
    pub refusing: bool,
}

impl Link {
    /// What arrives in this direction is read and goes nowhere.
    #[must_use]
    pub fn silent(towards: Towards) -> Self {
        Self {
            silent: Some(towards),
            ..Self::default()
        }
    }
}

/// How often each fault of the link has bitten.
#[derive(Debug, Default)]
pub struct LinkBites {
    /// Reads that were delayed.
    pub delayed: AtomicU64,
    /// Frames that were throttled or sliced.
    pub slowed: AtomicU64,
    /// Frames that went nowhere.
    pub silenced: AtomicU64,
    /// Connections that were refused.
    pub refused: AtomicU64,
    /// Connections that were cut or reset.
    pub cut: AtomicU64,
    /// Connections that clients gave up while they were silent.
    pub given_up: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::SeqCst);
}
