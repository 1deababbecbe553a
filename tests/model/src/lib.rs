//! The protocol as a model (`docs/model.md`): states, what may happen in them, and what must hold
//! in every one. Several small configurations are walked to the end; each rule of the protocol that
//! is broken on purpose must be found; and the functions of [`protocol`] are compared with the
//! scripts of the gate and with the code on PostgreSQL.
#![warn(missing_docs)]

#[cfg(feature = "walk")]
pub mod accept;
#[cfg(feature = "walk")]
pub mod check;
#[cfg(feature = "walk")]
pub mod configurations;
#[cfg(feature = "walk")]
pub mod locks;
mod mutation;
pub mod protocol;
#[cfg(feature = "walk")]
pub mod relay;
#[cfg(feature = "walk")]
pub mod settle;

#[cfg(feature = "walk")]
pub use crate::configurations::{CONFIGURATIONS, Configuration};
pub use crate::{mutation::Mutation, protocol::Rules};
