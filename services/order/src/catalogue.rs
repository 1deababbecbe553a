//! What the accepts of this process have seen of SKUs: enough to route an order, never to answer
//! one. A SKU that is not known yet goes to shard 0; if it lives elsewhere the gate there knows
//! nothing of it, the order goes on without the gate, and its accept teaches the right place.

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use contracts::{Line, Sku};
use domain::{Shard, SkuView, deadline::HoldRules};

/// What routing needs to know of a SKU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) shard: Shard,
    /// Whether it has a per-customer limit, so that its buyers are locked before its stock.
    pub(crate) limited: bool,
    pub(crate) ttl_seconds: i32,
}

/// Shared by all stages.
#[derive(Debug, Default)]
pub struct Catalogue {
    seen: RwLock<HashMap<Sku, Seen>>,
    /// How long holds last.
    rules: HoldRules,
}

/// Where an order's gate lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// All its SKUs are there.
    Shard(Shard),
    /// Several shards: no compensation across slots, so the gate is left out.
    Several,
}

impl Catalogue {
    /// Nothing seen yet.
    pub(crate) fn new(rules: HoldRules) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }

    pub(crate) fn rules(&self) -> &HoldRules {
        &self.rules
    }

    /// Takes what a locked view says.
    pub(crate) fn learn<'a>(&self, views: impl Iterator<Item = (&'a Sku, &'a SkuView)>) {
        for (sku, view) in views {
            self.learn_one(
                sku,
                Seen {
                    shard: view.shard,
                    limited: view.per_customer_limit.is_some(),
                    ttl_seconds: view.ttl_seconds,
                },
            );
        }
    }

    pub(crate) fn learn_one(&self, sku: &Sku, seen: Seen) {
        if self.get(sku) != Some(seen) {
            let mut all = self.seen.write().unwrap_or_else(PoisonError::into_inner);
            all.insert(sku.clone(), seen);
        }
    }

    pub(crate) fn get(&self, sku: &Sku) -> Option<Seen> {
        self.seen
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(sku)
            .copied()
    }

    pub(crate) fn is_limited(&self, sku: &Sku) -> bool {
        self.get(sku).is_some_and(|seen| seen.limited)
    }

    /// Where to ask for an order, and the shortest ttl among its SKUs in seconds.
    pub(crate) fn route(&self, lines: &[Line], default_ttl: i32) -> (Route, i32) {
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        let mut ttl = i32::MAX;
        let mut route: Option<Shard> = None;
        let mut several = false;
        for line in lines {
            let known = seen.get(&line.sku);
            ttl = ttl.min(known.map_or(default_ttl, |known| known.ttl_seconds));
            let shard = known.map_or_else(Shard::default, |known| known.shard);
            several |= route.is_some_and(|before| before != shard);
            route = Some(shard);
        }
        let route = if several {
            Route::Several
        } else {
            Route::Shard(route.unwrap_or_default())
        };
        (route, ttl)
    }
}

#[cfg(test)]
mod tests {
    use contracts::Quantity;

    use super::*;

    #[test]
    fn orders_over_several_shards_leave_the_gate_out() {
        let line = |sku: &str| Line {
            sku: Sku::parse(sku).unwrap(),
            quantity: Quantity::new(1).unwrap(),
        };
        let catalogue = Catalogue::default();
        let lines = [line("A"), line("B")];
        assert_eq!(catalogue.route(&lines, 600), (Route::Shard(Shard(0)), 600));
        let seen = Seen {
            shard: Shard(3),
            limited: true,
            ttl_seconds: 30,
        };
        catalogue.learn_one(&lines[0].sku, seen);
        assert_eq!(catalogue.route(&lines, 600), (Route::Several, 30));
        catalogue.learn_one(
            &lines[1].sku,
            Seen {
                ttl_seconds: 20,
                ..seen
            },
        );
        assert_eq!(catalogue.route(&lines, 600), (Route::Shard(Shard(3)), 20));
        assert!(catalogue.is_limited(&lines[0].sku));
    }
}
