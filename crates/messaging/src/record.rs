//! Reads what any producer may have written, without trusting it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rdkafka::{
    Message,
    message::{BorrowedMessage, Headers},
};

/// The headers of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RawHeaders {
    /// In their order; values are any bytes, or null.
    Readable(Vec<(String, Option<Vec<u8>>)>),
    /// A name is not UTF-8.
    Unreadable,
}

/// Copies the headers. rdkafka 0.39 panics on a name that is not UTF-8, which any producer can
/// write; that panic ends here.
pub(crate) fn read_headers(message: &BorrowedMessage<'_>) -> RawHeaders {
    let Some(headers) = message.headers() else {
        return RawHeaders::Readable(Vec::new());
    };
    let read = catch_unwind(AssertUnwindSafe(|| {
        headers
            .iter()
            .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
            .collect()
    }));
    read.map_or(RawHeaders::Unreadable, RawHeaders::Readable)
}
