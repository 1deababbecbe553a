//! The model's numbers as names, ids and rows of the real system, and back.

use std::collections::BTreeMap;

use contracts::{Currency, CustomerId, HoldId, Line, Money, PaymentId, Quantity, Shop, Sku};
use domain::{Buyer, Hold, Register, Shard};
use model::protocol::{
    self, BUYERS, Key, PaymentNo, SKUS,
    gate::{Epoch, Gate, Row, Stored},
};
use reservations::GateSnapshot;

use crate::agreement::Rows;

pub(crate) const SHARD: Shard = Shard(0);

const NAMES: [&str; SKUS] = ["A", "B-1", "C_2"];
const CUSTOMERS: [&str; BUYERS] = ["c", "d:2", "E.f@g"];

/// What one unit costs.
pub(crate) const UNIT_PRICE: i64 = 1_000;

pub(crate) fn sku(n: usize) -> Sku {
    Sku::parse(NAMES[n]).unwrap()
}

pub(crate) fn sku_number(sku: &Sku) -> usize {
    let mut names = NAMES.iter();
    names.position(|name| *name == sku.as_str()).unwrap()
}

pub(crate) fn customer(n: u8) -> &'static str {
    CUSTOMERS[usize::from(n)]
}

pub(crate) fn buyer(n: u8) -> Buyer {
    Buyer {
        shop: Shop::parse("shop").unwrap(),
        customer: CustomerId::parse(customer(n)).unwrap(),
    }
}

fn buyer_number(buyer: &Buyer) -> u8 {
    let mut names = CUSTOMERS.iter();
    let place = names.position(|name| *name == buyer.customer.as_str());
    u8::try_from(place.unwrap()).unwrap()
}

/// The hold ids of keys, in both directions.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    ids: Vec<HoldId>,
    keys: BTreeMap<HoldId, Key>,
}

impl Holds {
    /// One more key.
    pub(crate) fn add(&mut self) -> Key {
        let key = Key::try_from(self.ids.len()).unwrap();
        let id = HoldId::derive("shop", "orders", &key.to_string());
        self.ids.push(id);
        self.keys.insert(id, key);
        key
    }

    pub(crate) fn count(&self) -> Key {
        Key::try_from(self.ids.len()).unwrap()
    }

    pub(crate) fn id(&self, key: Key) -> HoldId {
        self.ids[usize::try_from(key).unwrap()]
    }

    pub(crate) fn real(&self, key: Key, hold: &protocol::Hold) -> Hold {
        Hold {
            hold_id: self.id(key),
            buyer: buyer(hold.buyer),
            lines: lines(hold),
        }
    }

    /// A snapshot of the real gate as the model would have it; `epoch` gives the epoch's number.
    pub(crate) fn modelled(&self, seen: &GateSnapshot, epoch: impl Fn(&str) -> u32) -> Gate {
        let mut gate = Gate {
            epoch: seen.epoch.as_ref().map(|state| Epoch {
                id: epoch(&state.epoch),
                open: state.open,
            }),
            ..Gate::default()
        };
        for (sku, row) in &seen.gates {
            // A moment far off is any that has not come.
            let small = |number: i64| i32::try_from(number).unwrap_or(1);
            gate.rows[sku_number(sku)] = Some(Row {
                register: protocol::gate::Register {
                    limit: i32::try_from(row.limit).unwrap(),
                    version: u32::try_from(row.version).unwrap(),
                    opens: row.opens_at_ms.map(small),
                    closes: row.closes_at_ms.map(small),
                    per_customer: row.per_customer_limit.map(small),
                },
                held: i32::try_from(row.held).unwrap(),
            });
        }
        for ((sku, buyer), units) in &seen.buyers {
            let bought = &mut gate.bought[sku_number(sku)][usize::from(buyer_number(buyer))];
            *bought = i32::try_from(*units).unwrap();
        }
        for (id, stored) in &seen.holds {
            let mut hold = protocol::Hold {
                buyer: buyer_number(&stored.hold.buyer),
                lines: [0; SKUS],
            };
            let mut counted = [false; SKUS];
            for (line, was) in stored.hold.lines.iter().zip(&stored.counted) {
                let n = sku_number(&line.sku);
                hold.lines[n] = u8::try_from(line.quantity.get()).unwrap();
                counted[n] = *was;
            }
            gate.holds.insert(self.keys[id], Stored { hold, counted });
        }
        gate
    }
}

/// The model's gate, a row per fact.
pub(crate) fn rows(gate: &Gate) -> Rows {
    let mut rows = Rows::new();
    if let Some(epoch) = gate.epoch {
        rows.insert(format!("gate epoch {} open {}", epoch.id, epoch.open));
    }
    for (sku, row) in gate.rows.iter().enumerate() {
        if let Some(row) = row {
            rows.insert(format!("gate of {} {row:?}", NAMES[sku]));
        }
    }
    for (sku, buyers) in gate.bought.iter().enumerate() {
        for (buyer, units) in buyers.iter().enumerate().filter(|(_, units)| **units != 0) {
            rows.insert(format!(
                "gate buyer {} {} {units}",
                NAMES[sku], CUSTOMERS[buyer]
            ));
        }
    }
    for (key, stored) in &gate.holds {
        rows.insert(format!("gate hold {key} {stored:?}"));
    }
    rows
}

pub(crate) fn lines(hold: &protocol::Hold) -> Vec<Line> {
    hold.lines()
        .map(|(n, units)| Line {
            sku: sku(n),
            quantity: Quantity::new(i64::from(units)).unwrap(),
        })
        .collect()
}

pub(crate) fn register(n: usize, register: &protocol::gate::Register) -> Register {
    Register {
        sku: sku(n),
        limit: i64::from(register.limit),
        version: i64::from(register.version),
        opens_at_ms: register.opens.map(i64::from),
        closes_at_ms: register.closes.map(i64::from),
        per_customer_limit: register.per_customer.map(i64::from),
    }
}

pub(crate) fn payment_id(n: PaymentNo) -> PaymentId {
    PaymentId::parse(&format!("p-{n}")).unwrap()
}

pub(crate) fn money(units: i32) -> Money {
    let currency = Currency::parse("KRW").unwrap();
    Money::new(i64::from(units) * UNIT_PRICE, currency).unwrap()
}
