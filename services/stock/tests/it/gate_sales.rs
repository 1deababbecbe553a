//! What is sold leaves the gate's limit when its hold leaves: until then it counts once, as held.

use reservations::GateRead;
use stock::sync_gate::sync_orders;

use crate::support::{SHARD, World, completed, sku};

#[tokio::test]
async fn a_live_order_tells_the_gate_of_no_sale_whose_hold_is_still_there() {
    let world = World::with_gate().await;
    let sold = world.place_with_hold("c-1", &[("A", 2)]).await;
    let live = world.place_with_hold("c-2", &[("A", 1)]).await;
    world
        .deliver_and_die(&[completed("p", sold.order, sold.total)])
        .await;
    let report = sync_orders(&world.stock, &[live.order]).await.unwrap();
    assert_eq!(report.kept, 1);
    let (on_hand, held, sold_units) = world.stock_of("A").await;
    assert_eq!((held, sold_units), (1, 2));
    let read = world.stock.gate.read_gates(SHARD, &[sku("A")]).await;
    let GateRead::Row(row) = read.unwrap()[0] else {
        panic!("no gate")
    };
    assert_eq!(
        row.limit - row.held,
        on_hand - held - sold_units,
        "what the gate promises is what there is"
    );
    sync_orders(&world.stock, &[sold.order]).await.unwrap();
    world.assert_gate_agrees().await;
}
