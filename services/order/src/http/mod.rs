//! The HTTP edge: the only part that knows statuses, headers and media types.
mod auth; mod extract; pub(crate) mod problem; pub(crate) mod serve; mod trace;
pub(crate) struct App { pub(crate) keys: auth::Keys }
