//! The provider's book: what was asked under which key, and what came of it. Pure; effects are
//! counted where they happen.

use std::{collections::BTreeMap, fs::File};

use contracts::{Money, OrderId, PaymentId, PaymentMethod, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    behaviour::Outcome,
    book_file::{self, Line},
};

/// The body of `POST /v1/charges`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChargeRequest {
    /// The caller's name for the payment; shown in the journal, not compared.
    #[serde(default)]
    pub(crate) reference: Option<PaymentId>,
    pub(crate) order_id: OrderId,
    pub(crate) amount: Money,
    pub(crate) method: PaymentMethod,
}

impl ChargeRequest {
    fn same_as(&self, other: &Self) -> bool {
        self.order_id == other.order_id
            && self.amount == other.amount
            && self.method == other.method
    }
}

/// The body of `POST /v1/refunds`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RefundRequest {
    pub(crate) charge_key: String,
    pub(crate) amount: Money,
}

/// Why a charge is declined, as it is answered.
const DECLINED: &str = "card-declined";

/// Where a charge stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChargeStatus {
    Pending,
    Succeeded,
    Declined,
    Canceled,
}

/// A charge as the API shows it. A key that was canceled before it was seen has no request.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Charge {
    pub(crate) key: String,
    pub(crate) status: ChargeStatus,
    #[serde(flatten)]
    pub(crate) request: Option<ChargeRequest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) captured: Option<Money>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason_code: Option<&'static str>,
    #[serde(rename = "final", skip_serializing_if = "Option::is_none")]
    pub(crate) is_final: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) executed_at: Option<Timestamp>,
}

/// A refund as the API shows it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Refund {
    pub(crate) key: String,
    /// `pending` or `succeeded`.
    pub(crate) status: &'static str,
    #[serde(flatten)]
    pub(crate) request: RefundRequest,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) executed_at: Option<Timestamp>,
}

#[derive(Debug)]
struct ChargeEntry {
    charge: Charge,
    requests: u64,
    captures: u64,
    refunds: u64,
    refunded_minor: i64,
}

/// What a request under a key meets.
#[derive(Debug)]
pub(crate) enum Begun<T> {
    /// The key is new: execute it.
    Fresh,
    /// It was executed: the first result.
    Done(T),
    /// It is being executed.
    InFlight,
    /// The key belongs to another body.
    Reused,
    /// No room for a new key.
    Full,
}

/// Why a refund is not executed; the key may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefundRefusal {
    UnknownCharge,
    NotCaptured,
    ExceedsCaptured,
}

/// One line of the journal.
#[derive(Debug, Serialize)]
pub(crate) struct JournalEntry {
    #[serde(flatten)]
    charge: Charge,
    /// Requests under this key.
    requests: u64,
    /// Times that money was taken under this key: more than 1 is a fault of this program.
    captures: u64,
    /// Refunds executed.
    refunds: u64,
    refunded_minor: i64,
}

/// How many effects there were, over all keys.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Totals {
    captures: u64,
    declines: u64,
    cancels: u64,
    refunds: u64,
}

/// The book.
#[derive(Debug)]
pub(crate) struct Book {
    charges: BTreeMap<String, ChargeEntry>,
    refunds: BTreeMap<String, Refund>,
    totals: Totals,
    max_entries: usize,
    /// Where effects are written down as well.
    file: Option<File>,
}

impl Book {
    pub(crate) fn new(max_entries: usize) -> Self {
        Self {
            charges: BTreeMap::new(),
            refunds: BTreeMap::new(),
            totals: Totals::default(),
            max_entries,
            file: None,
        }
    }

    /// A book that knows these effects, and writes further ones down.
    pub(crate) fn of(max_entries: usize, lines: Vec<Line>, file: File) -> Self {
        let mut book = Self::new(max_entries);
        for line in lines {
            book.recall(line);
        }
        book.file = Some(file);
        book
    }

    fn recall(&mut self, line: Line) {
        match line {
            Line::Charge {
                key,
                status,
                request,
                captured,
                is_final,
                executed_at,
            } => {
                self.insert(&key, status, request);
                let Some(entry) = self.charges.get_mut(&key) else {
                    return;
                };
                entry.captures = u64::from(captured.is_some());
                self.totals.captures += entry.captures;
                self.totals.cancels += u64::from(status == ChargeStatus::Canceled);
                if status == ChargeStatus::Declined {
                    entry.charge.reason_code = Some(DECLINED);
                    self.totals.declines += 1;
                }
                entry.charge.captured = captured;
                entry.charge.is_final = is_final;
                entry.charge.executed_at = executed_at;
            }
            Line::Refund {
                key,
                request,
                executed_at,
            } => {
                if let Some(charge) = self.charges.get_mut(&request.charge_key) {
                    charge.refunded_minor += request.amount.amount_minor;
                    charge.refunds += 1;
                    self.totals.refunds += 1;
                }
                let refund = Refund {
                    key: key.clone(),
                    status: "succeeded",
                    request,
                    executed_at: Some(executed_at),
                };
                self.refunds.insert(key, refund);
            }
        }
    }

    fn write_charge(&mut self, key: &str) {
        let (Some(file), Some(entry)) = (&mut self.file, self.charges.get(key)) else {
            return;
        };
        let charge = entry.charge.clone();
        let line = Line::Charge {
            key: charge.key,
            status: charge.status,
            request: charge.request,
            captured: charge.captured,
            is_final: charge.is_final,
            executed_at: charge.executed_at,
        };
        book_file::append(file, &line);
    }

    fn is_full(&self) -> bool {
        self.charges.len() + self.refunds.len() >= self.max_entries
    }

    pub(crate) fn begin_charge(&mut self, key: &str, request: &ChargeRequest) -> Begun<Charge> {
        if let Some(entry) = self.charges.get_mut(key) {
            entry.requests += 1;
            return match (&entry.charge.request, entry.charge.status) {
                (Some(first), _) if !first.same_as(request) => Begun::Reused,
                (_, ChargeStatus::Pending) => Begun::InFlight,
                _ => Begun::Done(entry.charge.clone()),
            };
        }
        if self.is_full() {
            return Begun::Full;
        }
        self.insert(key, ChargeStatus::Pending, Some(request.clone()));
        Begun::Fresh
    }

    fn insert(&mut self, key: &str, status: ChargeStatus, request: Option<ChargeRequest>) {
        let charge = Charge {
            key: key.to_owned(),
            status,
            request,
            captured: None,
            reason_code: None,
            is_final: None,
            executed_at: None,
        };
        let entry = ChargeEntry {
            charge,
            requests: 1,
            captures: 0,
            refunds: 0,
            refunded_minor: 0,
        };
        self.charges.insert(key.to_owned(), entry);
    }

    /// Executes a charge that was begun; one that was canceled meanwhile stays canceled.
    pub(crate) fn execute_charge(
        &mut self,
        key: &str,
        fate: Outcome,
        now: Timestamp,
    ) -> Option<Charge> {
        let entry = self.charges.get_mut(key)?;
        let mut executed = false;
        if let (ChargeStatus::Pending, Some(request)) = (entry.charge.status, &entry.charge.request)
        {
            executed = true;
            let asked = request.amount;
            let captured = match fate {
                Outcome::Approve | Outcome::Hang | Outcome::Late => Some(asked),
                Outcome::WrongAmount => Some(Money {
                    amount_minor: asked.amount_minor + 1,
                    ..asked
                }),
                Outcome::Decline | Outcome::DeclineNotFinal | Outcome::LateDecline => None,
            };
            entry.charge.executed_at = Some(now);
            entry.charge.captured = captured;
            if captured.is_some() {
                entry.charge.status = ChargeStatus::Succeeded;
                entry.captures += 1;
                self.totals.captures += 1;
            } else {
                entry.charge.status = ChargeStatus::Declined;
                entry.charge.reason_code = Some(DECLINED);
                entry.charge.is_final =
                    Some(matches!(fate, Outcome::Decline | Outcome::LateDecline));
                self.totals.declines += 1;
            }
        }
        let charge = entry.charge.clone();
        if executed {
            self.write_charge(key);
        }
        Some(charge)
    }

    pub(crate) fn charge(&self, key: &str) -> Option<Charge> {
        self.charges.get(key).map(|entry| entry.charge.clone())
    }

    /// Cancels a charge that was not executed, also one that was never asked for: its key can
    /// never capture from now on. `None`: no room for a new key.
    pub(crate) fn cancel(&mut self, key: &str) -> Option<Charge> {
        if !self.charges.contains_key(key) {
            if self.is_full() {
                return None;
            }
            self.insert(key, ChargeStatus::Pending, None);
        }
        let entry = self.charges.get_mut(key)?;
        let canceled = entry.charge.status == ChargeStatus::Pending;
        if canceled {
            entry.charge.status = ChargeStatus::Canceled;
            self.totals.cancels += 1;
        }
        let charge = entry.charge.clone();
        if canceled {
            self.write_charge(key);
        }
        Some(charge)
    }

    pub(crate) fn begin_refund(&mut self, key: &str, request: &RefundRequest) -> Begun<Refund> {
        if let Some(refund) = self.refunds.get(key) {
            return if refund.request != *request {
                Begun::Reused
            } else if refund.executed_at.is_none() {
                Begun::InFlight
            } else {
                Begun::Done(refund.clone())
            };
        }
        if self.is_full() {
            return Begun::Full;
        }
        let refund = Refund {
            key: key.to_owned(),
            status: "pending",
            request: request.clone(),
            executed_at: None,
        };
        self.refunds.insert(key.to_owned(), refund);
        Begun::Fresh
    }

    /// Executes a refund that was begun. A refused one is forgotten.
    pub(crate) fn execute_refund(
        &mut self,
        key: &str,
        now: Timestamp,
    ) -> Result<Refund, RefundRefusal> {
        let executed = self.pay_back(key, now);
        if executed.is_err() {
            self.refunds.remove(key);
        }
        executed
    }

    fn pay_back(&mut self, key: &str, now: Timestamp) -> Result<Refund, RefundRefusal> {
        let refund = self
            .refunds
            .get_mut(key)
            .ok_or(RefundRefusal::UnknownCharge)?;
        let charge = self
            .charges
            .get_mut(&refund.request.charge_key)
            .ok_or(RefundRefusal::UnknownCharge)?;
        let captured = charge.charge.captured.ok_or(RefundRefusal::NotCaptured)?;
        let amount = refund.request.amount;
        let after = charge.refunded_minor.saturating_add(amount.amount_minor);
        if amount.currency != captured.currency || after > captured.amount_minor {
            return Err(RefundRefusal::ExceedsCaptured);
        }
        charge.refunded_minor = after;
        charge.refunds += 1;
        self.totals.refunds += 1;
        refund.status = "succeeded";
        refund.executed_at = Some(now);
        let refund = refund.clone();
        if let Some(file) = &mut self.file {
            let line = Line::Refund {
                key: refund.key.clone(),
                request: refund.request.clone(),
                executed_at: now,
            };
            book_file::append(file, &line);
        }
        Ok(refund)
    }

    pub(crate) fn refund(&self, key: &str) -> Option<Refund> {
        self.refunds.get(key).cloned()
    }

    pub(crate) fn totals(&self) -> Totals {
        self.totals.clone()
    }

    /// Up to `limit` entries whose keys come after `after`, in the order of their keys.
    pub(crate) fn journal(&self, after: &str, limit: usize) -> Vec<JournalEntry> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.charges
            .range::<str, _>((Excluded(after), Unbounded))
            .take(limit)
            .map(|(_, entry)| JournalEntry {
                charge: entry.charge.clone(),
                requests: entry.requests,
                captures: entry.captures,
                refunds: entry.refunds,
                refunded_minor: entry.refunded_minor,
            })
            .collect()
    }
}
