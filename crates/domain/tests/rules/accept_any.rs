//! What holds of any batch, however it is made up.

use std::collections::BTreeMap;

use contracts::{Money, Sku};
use domain::{Buyer, BuyerView, Decision, OrderRequest, Plan, SkuView};
use proptest::prelude::*;

use crate::batch::{Shelf, after_now, buyer, money, now, request, sku, view};

const SKUS: [&str; 4] = ["A", "B", "C", "D"];
const CUSTOMERS: [&str; 3] = ["ann", "bob", "cem"];

fn any_view() -> impl Strategy<Value = SkuView> {
    (
        0_i64..12,
        prop_oneof![Just(0_i64), 1_i64..500, Just(Money::MAX / 3)],
        prop_oneof![4 => Just("KRW"), 1 => Just("USD")],
        proptest::option::of(1_i64..5),
        1_i32..1_000,
        proptest::option::weighted(0.2, -2_i64..3),
        proptest::option::weighted(0.2, -1_i64..4),
    )
        .prop_map(
            |(available, price, currency, limit, ttl_seconds, opens, closes)| SkuView {
                unit_price: money(price, currency),
                per_customer_limit: limit,
                ttl_seconds,
                opens_at: opens.map(after_now),
                closes_at: closes.map(after_now),
                ..view(available)
            },
        )
}

/// One of the four SKUs may be missing from the catalogue.
fn any_shelf() -> impl Strategy<Value = Shelf> {
    let skus = proptest::collection::vec(proptest::option::weighted(0.9, any_view()), SKUS.len());
    let owned = proptest::collection::vec(0_i64..4, SKUS.len() * CUSTOMERS.len());
    (skus, owned).prop_map(|(views, owned)| {
        let skus: BTreeMap<Sku, SkuView> = SKUS
            .into_iter()
            .zip(views)
            .filter_map(|(name, view)| view.map(|view| (sku(name), view)))
            .collect();
        let buyers: BuyerView = SKUS
            .into_iter()
            .flat_map(|name| CUSTOMERS.map(|customer| (sku(name), buyer(customer))))
            .zip(owned)
            .filter(|(_, units)| *units > 0)
            .collect();
        Shelf { skus, buyers }
    })
}

fn any_batch() -> impl Strategy<Value = Vec<OrderRequest>> {
    let lines = proptest::collection::btree_map(proptest::sample::select(&SKUS), 1_u16..4, 0..4);
    let order = (proptest::sample::select(&CUSTOMERS), lines);
    proptest::collection::vec(order, 0..24).prop_map(|orders| {
        (1..)
            .zip(orders)
            .map(|(number, (customer, lines))| {
                let lines: Vec<String> = lines
                    .iter()
                    .map(|(name, units)| format!("{name}={units}"))
                    .collect();
                request(number, customer, &lines.join(" "))
            })
            .collect()
    })
}

fn accepted<'a>(
    batch: &'a [OrderRequest],
    plan: &'a Plan,
) -> impl Iterator<Item = (&'a OrderRequest, &'a domain::Accepted)> {
    batch
        .iter()
        .zip(&plan.decisions)
        .filter_map(|(request, decision)| match decision {
            Decision::Accept(accepted) => Some((request, accepted)),
            Decision::Refuse(_) => None,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn nothing_is_oversold_and_what_is_taken_is_what_was_accepted(
        shelf in any_shelf(), batch in any_batch(),
    ) {
        let plan = shelf.plan(&batch);
        let mut sums: BTreeMap<Sku, i64> = BTreeMap::new();
        for line in accepted(&batch, &plan).flat_map(|(request, _)| &request.lines) {
            *sums.entry(line.sku.clone()).or_default() += i64::from(line.quantity.get());
        }
        prop_assert_eq!(&plan.taken, &sums);
        for (sku, taken) in &plan.taken {
            prop_assert!(*taken <= shelf.skus[sku].available, "{}: {} taken", sku, taken);
        }
    }

    #[test]
    fn an_accepted_order_has_every_line_as_it_was_asked_for(
        shelf in any_shelf(), batch in any_batch(),
    ) {
        let plan = shelf.plan(&batch);
        prop_assert_eq!(plan.decisions.len(), batch.len());
        for (request, accepted) in accepted(&batch, &plan) {
            let asked: Vec<_> = request.lines.iter().map(|l| (&l.sku, l.quantity)).collect();
            let given: Vec<_> = accepted.lines.iter().map(|l| (&l.sku, l.quantity)).collect();
            prop_assert_eq!(asked, given);
        }
    }

    #[test]
    fn price_and_deadline_are_those_of_the_catalogue(shelf in any_shelf(), batch in any_batch()) {
        let plan = shelf.plan(&batch);
        for (_, accepted) in accepted(&batch, &plan) {
            let views = || accepted.lines.iter().map(|line| (line, &shelf.skus[&line.sku]));
            let total: i128 = views()
                .map(|(line, view)| {
                    i128::from(view.unit_price.amount_minor) * i128::from(line.quantity.get())
                })
                .sum();
            prop_assert_eq!(i128::from(accepted.total.amount_minor), total);
            for (line, view) in views() {
                prop_assert_eq!(line.unit_price, view.unit_price);
                prop_assert_eq!(view.unit_price.currency, accepted.total.currency);
                prop_assert!(view.opens_at.is_none_or(|opens_at| opens_at <= now()));
                prop_assert!(view.closes_at.is_none_or(|closes_at| now() < closes_at));
            }
            let shortest = views().map(|(_, view)| view.ttl_seconds).min();
            prop_assert_eq!(Some(accepted.ttl_seconds), shortest);
        }
    }

    #[test]
    fn no_buyer_passes_a_limit_and_what_was_bought_is_counted(
        shelf in any_shelf(), batch in any_batch(),
    ) {
        let plan = shelf.plan(&batch);
        let mut bought: BTreeMap<(Sku, Buyer), i64> = BTreeMap::new();
        for (request, _) in accepted(&batch, &plan) {
            for line in &request.lines {
                if shelf.skus[&line.sku].per_customer_limit.is_some() {
                    *bought.entry((line.sku.clone(), request.buyer.clone())).or_default() +=
                        i64::from(line.quantity.get());
                }
            }
        }
        prop_assert_eq!(&plan.bought, &bought);
        for (key, units) in &bought {
            let before = shelf.buyers.get(key).copied().unwrap_or(0);
            prop_assert!(Some(before + units) <= shelf.skus[&key.0].per_customer_limit);
        }
    }

    #[test]
    fn a_refused_request_changes_nothing_for_the_others(
        shelf in any_shelf(), batch in any_batch(),
    ) {
        let plan = shelf.plan(&batch);
        let winners: Vec<OrderRequest> =
            accepted(&batch, &plan).map(|(request, _)| request.clone()).collect();
        let again = shelf.plan(&winners);
        prop_assert!(again.decisions.iter().all(|one| matches!(one, Decision::Accept(_))));
        prop_assert_eq!(again.taken, plan.taken);
        prop_assert_eq!(again.bought, plan.bought);
    }

    #[test]
    fn who_comes_later_changes_nothing_for_who_came_first(
        shelf in any_shelf(), batch in any_batch(), cut in 0_usize..24,
    ) {
        let whole = shelf.plan(&batch);
        let first = &batch[..cut.min(batch.len())];
        prop_assert_eq!(&shelf.plan(first).decisions[..], &whole.decisions[..first.len()]);
    }

    #[test]
    fn one_batch_decides_as_its_halves_would_one_after_the_other(
        shelf in any_shelf(), batch in any_batch(), cut in 0_usize..24,
    ) {
        let whole = shelf.plan(&batch);
        let (first, second) = batch.split_at(cut.min(batch.len()));
        let mut shelf = shelf;
        let mut decisions = Vec::new();
        for half in [first, second] {
            let plan = shelf.plan(half);
            for (sku, taken) in plan.taken {
                if let Some(view) = shelf.skus.get_mut(&sku) {
                    view.available -= taken;
                }
            }
            for (key, units) in plan.bought {
                *shelf.buyers.entry(key).or_default() += units;
            }
            decisions.extend(plan.decisions);
        }
        prop_assert_eq!(decisions, whole.decisions);
    }

    #[test]
    fn the_same_batch_is_decided_the_same_way_again(shelf in any_shelf(), batch in any_batch()) {
        prop_assert_eq!(shelf.plan(&batch), shelf.plan(&batch));
    }

    #[test]
    fn a_refusal_for_want_of_units_is_true(shelf in any_shelf(), batch in any_batch()) {
        let plan = shelf.plan(&batch);
        let mut left: BTreeMap<&Sku, i64> =
            shelf.skus.iter().map(|(sku, view)| (sku, view.available)).collect();
        for (request, decision) in batch.iter().zip(&plan.decisions) {
            match decision {
                Decision::Accept(_) => {
                    for line in &request.lines {
                        *left.entry(&line.sku).or_default() -= i64::from(line.quantity.get());
                    }
                }
                Decision::Refuse(domain::Refusal::SoldOut { sku }) => {
                    let line = request.lines.iter().find(|line| line.sku == *sku);
                    let wanted = line.map(|line| i64::from(line.quantity.get()));
                    prop_assert!(wanted > left.get(sku).copied());
                }
                Decision::Refuse(_) => {}
            }
        }
    }
}
