//! The protocol as a model (`docs/model.md`): states, what may happen in them, and what must hold
//! in every one. Several small configurations are walked to the end; each rule of the protocol that
//! is broken on purpose must be found; and the functions of [`protocol`] are compared with the
//! scripts of the gate and with the code on PostgreSQL.
#![warn(missing_docs)]

pub mod accept;
pub mod check;
pub mod configurations;
pub mod locks;
mod mutation;
pub mod protocol;
pub mod relay;
pub mod settle;

pub use crate::{
    configurations::{CONFIGURATIONS, Configuration},
    mutation::Mutation,
    protocol::Rules,
};
