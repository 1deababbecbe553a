//! For tests and invariant checks: the journal, and the knobs. These answer also while the
//! provider plays dead.

use std::sync::{Arc, PoisonError};

use axum::{
    Json,
    extract::{Query, State, rejection::JsonRejection},
    http::StatusCode,
};
use serde::{Deserialize, Serialize};

use super::Problem;
use crate::{
    Behaviour, BehaviourChange, Sim,
    book::{JournalEntry, Totals},
};

const PAGE_MAX: usize = 10_000;

/// `?after=KEY&limit=N`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Page {
    after: String,
    limit: usize,
}

impl Default for Page {
    fn default() -> Self {
        Self {
            after: String::new(),
            limit: 1_000,
        }
    }
}

/// Totals over all keys, and one page of entries in the order of their keys.
#[derive(Debug, Serialize)]
pub(crate) struct Journal {
    totals: Totals,
    data: Vec<JournalEntry>,
    has_more: bool,
}

pub(crate) async fn journal(
    State(sim): State<Arc<Sim>>,
    Query(page): Query<Page>,
) -> Json<Journal> {
    let limit = page.limit.min(PAGE_MAX);
    let (totals, mut data) = {
        let book = sim.book();
        (book.totals(), book.journal(&page.after, limit + 1))
    };
    let has_more = data.len() > limit;
    data.truncate(limit);
    Json(Journal {
        totals,
        data,
        has_more,
    })
}

pub(crate) async fn behaviour(State(sim): State<Arc<Sim>>) -> Json<Behaviour> {
    Json(sim.behaviour())
}

pub(crate) async fn change(
    State(sim): State<Arc<Sim>>,
    body: Result<Json<BehaviourChange>, JsonRejection>,
) -> Result<Json<Behaviour>, Problem> {
    let Json(change) = body?;
    let mut behaviour = sim
        .behaviour
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    let next = behaviour.changed(change).map_err(|error| {
        Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "invalid",
            error.to_string(),
        )
    })?;
    *behaviour = next.clone();
    tracing::info!(behaviour = ?next, "behaviour changed");
    Ok(Json(next))
}
