//! The accept: a batch of requests, some of them under keys that were used, some too late.

use std::{collections::BTreeSet, time::Duration};

use contracts::{OrderId, PaymentMethod};
use domain::{OrderRequest, Refusal as RealRefusal};
use model::protocol::{
    BUYERS, Hold, Key, OrderNo, SKUS,
    pg::{Refusal, Request, Verdict},
};
use order::accept_batch::{self, Batch, Verdict as Real};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::{RULES, Walk};
use crate::{
    agreement::{Agreed, same},
    names,
};

/// The same body each time.
pub(super) fn hold_of(key: Key, body: u8) -> Hold {
    let mut rng = StdRng::seed_from_u64(u64::from(key) * 7 + u64::from(body));
    let mut lines = [0; SKUS];
    for (sku, units) in lines.iter_mut().enumerate() {
        if rng.random_bool([0.5, 0.5, 0.08][sku]) {
            *units = rng.random_range(1..=3);
        }
    }
    if lines == [0; SKUS] {
        lines[0] = 1;
    }
    Hold {
        buyer: rng.random_range(0..u8::try_from(BUYERS).unwrap()),
        lines,
    }
}

fn refusal(real: &RealRefusal) -> Verdict {
    let (why, sku) = match real {
        RealRefusal::SoldOut { sku } => (Refusal::SoldOut, sku),
        RealRefusal::PurchaseLimit { sku } => (Refusal::Limit, sku),
        RealRefusal::NotOpen { sku, .. } => (Refusal::NotOpen, sku),
        RealRefusal::SaleOver { sku } => (Refusal::Over, sku),
        RealRefusal::UnknownSku { sku } => (Refusal::UnknownSku, sku),
        RealRefusal::Total => panic!("no total is too large here"),
    };
    Verdict::Refused(why, names::sku_number(sku))
}

fn word(verdict: Verdict) -> String {
    match verdict {
        Verdict::Refused(why, _) => format!("{why:?}"),
        Verdict::Accepted(_) => "Accepted".to_owned(),
        Verdict::Before(_) => "Before".to_owned(),
        Verdict::KeyReused | Verdict::Late => format!("{verdict:?}"),
    }
}

impl Walk {
    /// A key that is new, was used lately, or has an order.
    pub(super) fn key(&mut self) -> Key {
        let count = self.holds.count();
        match self.percent() {
            0..=17 if count > 0 => {
                let oldest = count.saturating_sub(60);
                self.rng.random_range(oldest..count)
            }
            18..=34 => {
                let order = self.order_of_some_status();
                let order = self.pg.orders.get(&order);
                order.map_or_else(|| self.holds.add(), |order| order.key)
            }
            _ => self.holds.add(),
        }
    }

    fn requests(&mut self) -> Vec<Request> {
        let mut keys = BTreeSet::new();
        for _ in 0..self.rng.random_range(1..=10) {
            keys.insert(self.key());
        }
        let mut requests = Vec::new();
        for key in keys {
            let body = u8::from(self.rng.random_bool(0.1));
            let order = OrderNo::try_from(self.ids.len()).unwrap();
            let id = OrderId::generate();
            self.ids.insert(order, id);
            self.numbers.insert(id, order);
            requests.push(Request {
                key,
                body,
                hold: hold_of(key, body),
                order,
                late: self.rng.random_bool(0.1),
            });
        }
        requests
    }

    fn real_request(&self, request: &Request) -> OrderRequest {
        let hold = self.holds.real(request.key, &request.hold);
        OrderRequest {
            hold_id: hold.hold_id,
            fingerprint: [request.body; 32],
            order_id: self.ids[&request.order],
            buyer: hold.buyer,
            lines: hold.lines,
            payment_method: PaymentMethod::parse("card").unwrap(),
        }
    }

    fn verdict(&self, real: &Real) -> Verdict {
        match real {
            Real::Accepted(order) => Verdict::Accepted(self.numbers[&order.id]),
            Real::Before(order) => Verdict::Before(self.numbers[&order.id]),
            Real::Rejected { .. } => panic!("only requests by Kafka are rejected"),
            Real::KeyReused => Verdict::KeyReused,
            Real::Refused(why) => refusal(why),
            Real::Late => Verdict::Late,
        }
    }

    pub(super) async fn accept(&mut self) -> Agreed {
        let requests = self.requests();
        // Now and then the process dies before the commit.
        let dies = self.rng.random_bool(0.05);
        self.history
            .tell(format!("accept {requests:?}, dies {dies}"));
        let now = self.stock.store.clock().await.unwrap();
        let far = Duration::from_secs(3_600);
        let asked = requests.iter().map(|request| {
            let deadline = if request.late { now - far } else { now + far };
            (self.real_request(request), deadline)
        });
        let batch = Batch::of(asked.collect());
        let (tx, decided) = loop {
            let mut tx = self.stock.store.begin().await.unwrap();
            match accept_batch::decide(&mut tx, &batch, &self.catalogue).await {
                Ok(decided) => break (tx, decided),
                // It has learnt that a SKU has a limit.
                Err(error) if error.must_rerun() => tx.rollback().await.unwrap(),
                Err(error) => panic!("{error}"),
            }
        };
        let mut pg = self.pg.clone();
        let model = pg.accept(0, &requests, RULES);
        for (request, verdict) in requests.iter().zip(&model) {
            let state = self.key_is(request);
            self.coverage.note("accept", state, &word(*verdict));
        }
        if dies {
            tx.rollback().await.unwrap();
        } else {
            tx.commit().await.unwrap();
            self.pg = pg;
        }
        let real: Vec<Verdict> = decided
            .verdicts
            .iter()
            .map(|one| self.verdict(one))
            .collect();
        same("accept", &real, &model)
    }

    fn key_is(&self, request: &Request) -> String {
        let order = self.pg.order_of(request.key).map(|(number, _)| number);
        let key = order.map_or_else(
            || "new key".to_owned(),
            |number| format!("key of {}", self.status_of(number)),
        );
        let row = self.pg.keys.get(&request.key);
        let other = row.is_some_and(|row| row.body != request.body);
        let other = if other { ", other body" } else { "" };
        let late = if request.late { ", late" } else { "" };
        format!("{key}{other}{late}")
    }
}
