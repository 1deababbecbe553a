//! Frames of a byte stream, whatever the protocol.

use super::{kafka, postgres, redis};

/// What a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// PostgreSQL's messages.
    Postgres,
    /// RESP.
    Redis,
    /// Length, then a request with its API key.
    Kafka,
    /// Anything: only the faults of links apply.
    Bytes,
}

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// PostgreSQL: a simple query that begins so.
    Commit,
    /// PostgreSQL: a simple query that begins so.
    Begin,
    /// PostgreSQL: whether the connection may be encrypted.
    Encryption,
    /// Redis: a command, in capitals.
    Command(String),
    /// Kafka: its API key.
    Api(i16),
    /// Something else that is answered.
    Other,
}

impl Kind {
    /// Kafka's Produce.
    pub const PRODUCE: Self = Self::Api(0);
    /// Kafka's Fetch.
    pub const FETCH: Self = Self::Api(1);
    /// Kafka's `OffsetCommit`.
    pub const OFFSET_COMMIT: Self = Self::Api(8);

    /// Redis: a call of a script.
    #[must_use]
    pub fn evalsha() -> Self {
        Self::Command("EVALSHA".to_owned())
    }
}

/// What is at the front of a buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Not all of it is there.
    More,
    /// A frame. A request has a kind when it will be answered; an answer has one when it ends.
    Frame { length: usize, kind: Option<Kind> },
    /// It is not this protocol, or not any more: bytes from here on.
    Unreadable,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Stream {
    buffer: Vec<u8>,
    started: bool,
    unreadable: bool,
}

impl Stream {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame of a client.
    pub(super) fn request(&mut self, protocol: Protocol) -> Option<(Vec<u8>, Option<Kind>)> {
        let cut = match protocol {
            _ if self.unreadable => Cut::Unreadable,
            Protocol::Postgres => postgres::request(&mut self.started, &self.buffer),
            Protocol::Redis => redis::request(&self.buffer),
            Protocol::Kafka => kafka::request(&self.buffer),
            Protocol::Bytes => Cut::Unreadable,
        };
        self.take(cut)
    }

    /// The next whole frame of a server; `asked` is the oldest request that is not answered.
    pub(super) fn reply(
        &mut self,
        protocol: Protocol,
        asked: Option<&Kind>,
    ) -> Option<(Vec<u8>, Option<Kind>)> {
        let cut = match protocol {
            _ if self.unreadable => Cut::Unreadable,
            Protocol::Postgres => postgres::reply(asked, &self.buffer),
            Protocol::Redis => redis::reply(&self.buffer),
            Protocol::Kafka => kafka::reply(&self.buffer),
            Protocol::Bytes => Cut::Unreadable,
        };
        self.take(cut)
    }

    fn take(&mut self, cut: Cut) -> Option<(Vec<u8>, Option<Kind>)> {
        match cut {
            Cut::More => None,
            Cut::Frame { length, kind } => Some((self.buffer.drain(..length).collect(), kind)),
            Cut::Unreadable => {
                self.unreadable = true;
                let all = std::mem::take(&mut self.buffer);
                (!all.is_empty()).then_some((all, None))
            }
        }
    }
}

/// The kinds of all frames of `bytes` that come in pieces of `size`.
#[cfg(test)]
pub(super) fn all(
    bytes: &[u8],
    size: usize,
    mut cut: impl FnMut(&[u8]) -> Cut,
) -> Vec<Option<Kind>> {
    let (mut buffer, mut kinds) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(size) {
        buffer.extend_from_slice(piece);
        while !buffer.is_empty() {
            match cut(&buffer) {
                Cut::More => break,
                Cut::Frame { length, kind } => {
                    buffer.drain(..length);
                    kinds.push(kind);
                }
                Cut::Unreadable => panic!("unreadable: {buffer:?}"),
            }
        }
    }
    assert!(buffer.is_empty(), "left over: {buffer:?}");
    kinds
}
