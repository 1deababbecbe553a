//! The holdfast binary and what it is made of: servers, load, verify.
//!
//! Data goes to standard output, talk to standard error. A new command is a module with `Args` and
//! `run`, and one line in [`args::Command`] and one in its `run`.

pub mod args;
pub mod bench;
pub mod demo;
pub mod dlq;
pub mod doctor;
pub mod down;
pub mod environment;
pub mod exit;
pub mod http_client;
pub mod load;
pub mod open_files;
pub mod order;
pub mod output;
pub mod prepare;
pub mod reconcile;
pub mod seed;
pub mod serve;
pub mod servers;
pub mod services;
pub mod stores;
pub mod up;
pub mod verify;
