//! Rules of the code base, held by tests: who may import whom, where names may be spelled, which
//! headers and documents exist. `cargo test -p tidy` needs no server and builds none of the crates
//! with drivers.
//!
//! A test target, and no library with tests in it, so that `make check` can name it and build it from
//! what the whole workspace is built from.
//!
//! Each rule is a function from a text to its complaints, and each is shown a planted offence, so
//! that a rule that has gone blind fails too.
#![expect(
    clippy::unwrap_used,
    reason = "a rule that can't be checked should say where"
)]

mod asyncapi;
mod cases;
mod crash_points;
mod documents;
mod edges;
mod headers;
mod lexer;
mod migrations;
mod names;
mod sources;
mod tree;
