//! Puts right what the gate counts per buyer of a limited SKU (P10).

use contracts::Sku;
use domain::gate::{Buyer, Shard};

use crate::{
    BuyersOutcome, Gate, GateError,
    connection::Invocation,
    script::{self, BATCH_MAX},
    wire::{PerSku, SkuTable, number},
};

/// Units of a buyer: what is at the gate, and what PostgreSQL says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuyerUnits {
    /// Who.
    pub buyer: Buyer,
    /// What the caller has seen at the gate; 0 when the buyer was not there.
    pub seen: i64,
    /// What is right.
    pub units: i64,
}

impl Gate {
    /// Sets the units of buyers of one SKU, each only while it is what the caller has seen. One
    /// outcome per buyer.
    ///
    /// # Errors
    /// [`GateError`]; the call may have been executed: read again before it is repeated.
    pub async fn correct_buyers(
        &self,
        shard: Shard,
        sku: &Sku,
        buyers: &[BuyerUnits],
    ) -> Result<Vec<BuyersOutcome>, GateError> {
        let table = SkuTable::new(&[], [sku]);
        let mut outcomes = Vec::with_capacity(buyers.len());
        for some in buyers.chunks(BATCH_MAX) {
            let mut args = vec![some.len().to_string()];
            for one in some {
                args.push(one.buyer.to_string());
                args.push(number("seen", one.seen)?);
                args.push(number("units", one.units)?);
            }
            let script = &script::CORRECT_BUYERS;
            let bound = self.inner.config.call_timeout;
            let reply = self
                .in_newest_epoch(shard, script, bound, |epoch| {
                    let keys = table.keys(&self.inner.keys, shard, epoch, PerSku::GateAndBuyers);
                    let mut call = Invocation {
                        keys,
                        args: vec![epoch.to_owned()],
                    };
                    table.push_names(&mut call);
                    call.args.extend(args.iter().cloned());
                    Ok(call)
                })
                .await?;
            match reply {
                None => outcomes.extend(some.iter().map(|_| BuyersOutcome::NoGate)),
                Some(reply) => {
                    outcomes.extend(
                        reply
                            .outcomes::<BuyersOutcome, BuyersOutcome>(0, some.len())?
                            .1,
                    );
                }
            }
        }
        Ok(outcomes)
    }
}
