//! The contract, held still: golden files, schemas, and what the types refuse.

mod envelope;
mod examples;
mod golden;
mod ids;
mod numbers;
mod schemas;
