//! Real processes die at each of the 26 places between two stores, and what the contract says of
//! that place is true afterwards: every 201 has its order, nothing happens twice, every order ends,
//! and all invariants hold.

mod accept;
mod consumers;
mod payments;
mod relay;
mod signals;
mod sweeps;

use serde_json::json;
use tests::{
    Options, World,
    processes::{Processes, Wanted},
};

async fn start(wanted: &Wanted) -> Processes {
    Processes::start(World::without_services(Options::default()).await, wanted).await
}

/// Puts a SKU with more stock than any test sells.
async fn put(processes: &Processes, sku: &str, ttl_seconds: i64) {
    let more = json!({ "reservation_ttl_seconds": ttl_seconds });
    processes.world.operator().put_sku(sku, 10_000, &more).await;
}

#[test]
fn every_crash_point_is_driven_by_a_test() {
    let mut driven: Vec<&str> = [
        &accept::POINTS[..],
        &relay::POINTS,
        &consumers::POINTS,
        &payments::POINTS,
        &sweeps::POINTS,
    ]
    .concat();
    let mut all: Vec<&str> = platform::failpoints::POINTS
        .iter()
        .map(|point| point.name)
        .collect();
    driven.sort_unstable();
    all.sort_unstable();
    assert_eq!(driven, all);
}
