//! What orders did to stock, added up along their ids, so that a comparison with stock costs the same
//! however many orders have ended. The sums that stand are carried on to the present, and others are
//! made from the beginning meanwhile, round and round: a row of an ended order that somebody changes
//! shows when they take their place.

use std::time::Duration;

use contracts::Timestamp;
use store::audit::{Auditor, Finding, Sums};

use crate::{StockError, audit::walk::id_at};

/// Lines of one step.
const LINES: i64 = 2_000;

/// Orders younger than this are read each time: whoever has written an id has committed it by then,
/// or lost its connection.
const YOUNG: Duration = Duration::from_secs(120);

/// The sums that stand, and those that will.
#[derive(Debug, Default)]
pub(crate) struct History {
    stands: Option<Sums>,
    next: Sums,
}

impl History {
    /// Whether anything can be compared.
    pub(crate) fn stands(&self) -> bool {
        self.stands.is_some()
    }

    /// One step: the present first, then the round.
    pub(crate) async fn step(
        &mut self,
        auditor: &Auditor,
        now: Timestamp,
    ) -> Result<(), StockError> {
        let until = id_at(now - YOUNG);
        if let Some(stands) = &mut self.stands
            && auditor.extend(stands, until, LINES).await?
        {
            return Ok(());
        }
        if !auditor.extend(&mut self.next, until, LINES).await? {
            self.stands = Some(std::mem::take(&mut self.next));
        }
        Ok(())
    }

    /// I2 and I3 of all SKUs; `None` before the first round has come to its end.
    pub(crate) async fn compare(
        &mut self,
        auditor: &Auditor,
    ) -> Result<Option<Vec<Finding>>, StockError> {
        let Some(stands) = &mut self.stands else {
            return Ok(None);
        };
        auditor.settle(stands).await?;
        Ok(Some(auditor.compare(stands).await?))
    }
}
