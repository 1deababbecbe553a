//! The long fault run: real processes and servers under load, faults of every kind, and afterwards
//! the clients' log and every invariant against the database. See `docs/chaos.md`.

pub mod args;
pub mod conductor;
pub mod faults;
pub mod gate;
pub mod http;
pub mod ledger;
pub mod link;
pub mod load;
pub mod logs;
pub mod measure;
pub mod metrics;
pub mod plan;
pub mod plant;
pub mod races;
pub mod reached;
pub mod report;
pub mod run;
pub mod schedule;
pub mod service;
pub mod settle;
pub mod truth;
pub mod verdict;
