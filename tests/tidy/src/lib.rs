//! Rules of the code base, held by tests: who may import whom, where names may be spelled, which
//! headers and documents exist. `cargo test -p tidy` needs no server and builds none of the crates
//! with drivers.
//!
//! Each rule is a function from a text to its complaints, and each is shown a planted offence, so
//! that a rule that has gone blind fails too.

#[cfg(test)]
mod asyncapi;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod crash_points;
#[cfg(test)]
mod documents;
#[cfg(test)]
mod edges;
#[cfg(test)]
mod headers;
#[cfg(test)]
mod lexer;
#[cfg(test)]
mod migrations;
#[cfg(test)]
mod sources;
#[cfg(test)]
mod tree;
