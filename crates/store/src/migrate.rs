//! The schema: brought up to date by `holdfast migrate` alone; a service refuses to start on any
//! other version than its own (P15).

use sqlx::Connection;

use crate::{
    error::{Doing, Result, StoreError},
    pool::{Store, StoreOptions},
};

static MIGRATOR: sqlx::migrate::Migrator = sqlx::migrate!("../../migrations");

/// What `migrate` did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Versions that were applied now.
    pub applied: Vec<i64>,
    /// The version of the schema now.
    pub version: i64,
    /// Outbox partitions that were made ahead.
    pub partitions: i32,
}

/// Applies what is missing and makes outbox partitions ahead. Safe to run twice and at once.
///
/// # Errors
/// [`StoreError::Migrate`], also when an applied file was changed since.
pub async fn migrate(url: &str) -> Result<Report> {
    let _ = (url, &MIGRATOR);
    todo!()
}

/// The version that this program is made for.
#[must_use]
pub fn expected_version() -> i64 {
    MIGRATOR
        .iter()
        .map(|migration| migration.version)
        .max()
        .unwrap_or(0)
}

impl Store {
    /// What is unsafe about the server (P15), one sentence each: fsync or `synchronous_commit` off,
    /// another schema version.
    ///
    /// # Errors
    /// No answer.
    pub async fn check_safety(&self) -> Result<Vec<String>> {
        todo!()
    }
}
