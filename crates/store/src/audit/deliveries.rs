//! The outbox against the inbox (I18): what was published 15 s ago and was not handled. Guarantee:
//! a page misses none of its rows; of those that are lost alone it can be asked again whether they
//! still are.

use sqlx::Row;
use uuid::Uuid;

use super::{Auditor, rules};
use crate::{Result, error::Doing};

/// An event that was published and that its consumer has not handled (I18).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undelivered {
    /// The row of the outbox.
    pub id: i64,
    /// `ce_id`.
    pub event_id: Uuid,
    /// Who should have handled it, as in the inbox.
    pub consumer: String,
    /// `TYPE KEY`, for people.
    pub about: String,
}

/// A page of the outbox, compared with the inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deliveries {
    /// The last row that was looked at; `None` when there was none old enough.
    pub last: Option<i64>,
    /// What was not handled.
    pub lost: Vec<Undelivered>,
}

impl Auditor {
    /// Looks at the next `count` rows of the outbox after `after`: those that were published 15 s
    /// ago and that one of `consumers` must handle and has not.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn deliveries(
        &self,
        after: i64,
        count: i64,
        consumers: &[&str],
    ) -> Result<Deliveries> {
        let doing = "compare outbox and inbox";
        let mut conn = self.store.conn().await?;
        let rows = sqlx::query(rules::DELIVERIES)
            .bind(after)
            .bind(count)
            .bind(consumers)
            .fetch_all(&mut *conn)
            .await
            .doing(doing)?;
        let mut seen = Deliveries {
            last: None,
            lost: Vec::new(),
        };
        for row in rows {
            seen.last = row.try_get(0).doing(doing)?;
            let Some(id) = row.try_get(1).doing(doing)? else {
                continue;
            };
            let (kind, key): (String, String) =
                (row.try_get(4).doing(doing)?, row.try_get(5).doing(doing)?);
            seen.lost.push(Undelivered {
                id,
                event_id: row.try_get(2).doing(doing)?,
                consumer: row.try_get(3).doing(doing)?,
                about: format!("{kind} {key}"),
            });
        }
        Ok(seen)
    }

    /// Which of these rows of the outbox are still not handled.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn still_lost(&self, lost: &[Undelivered]) -> Result<Vec<i64>> {
        let doing = "compare outbox and inbox again";
        let ids: Vec<i64> = lost.iter().map(|one| one.id).collect();
        let consumers: Vec<&str> = lost.iter().map(|one| one.consumer.as_str()).collect();
        let mut conn = self.store.conn().await?;
        sqlx::query_scalar(rules::STILL_LOST)
            .bind(ids)
            .bind(consumers)
            .fetch_all(&mut *conn)
            .await
            .doing(doing)
    }
}
