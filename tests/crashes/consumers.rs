//! CP14 to CP19: the stock service fails once and then dies between reading a payment's news and
//! storing its offset. The news comes again; what it did already is told by the inbox, and told to
//! the gate once more.

use std::time::Duration;

use tests::{Told, processes::Wanted, wait_for};

use super::{put, start};

pub(crate) const POINTS: [&str; 6] = ["cp14", "cp15", "cp16", "cp17", "cp18", "cp19"];

/// Those after the commit: the news that comes again is known then.
const COMMITTED: [&str; 4] = ["cp16", "cp17", "cp18", "cp19"];

async fn settle_under(points: &[&str]) {
    let wanted = Wanted {
        relays: Some(vec!["order-0", "order-1"]),
        ..Wanted::default()
    };
    let processes = start(&wanted).await;
    put(&processes, "SETTLE", 120).await;
    let (client, victim) = (processes.client(), &processes.stock[0]);
    let mut told = Told::default();
    for point in points {
        let setting = if *point == "cp19" {
            "cp19=kill@1".to_owned()
        } else {
            format!("{point}=err@1;{point}=kill@2")
        };
        victim.arm(&setting).await;
        // One after the other, so that there is a second time.
        for round in 0..4 {
            let name = format!("{point}-{round}");
            told.place(&client, round, "SETTLE", &name, 3).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        processes.bitten(point, "kill", 0).await;
        victim.gone(Duration::from_secs(30)).await;
        processes.revive().await;
        confirmed(&processes.world, told.orders.len()).await;
        let known = async || victim.metric("events_handled_total", "duplicate").await;
        if COMMITTED.contains(point) {
            wait_for("the news to come again", || async {
                (known().await >= 1.0).then_some(())
            })
            .await;
        }
        let copies = known().await;
        let errors = processes.bites(point, "err");
        assert_eq!(errors, usize::from(*point != "cp19"), "{point}");
        eprintln!("{point} kill, {errors} err: {copies} known events came again, all confirmed");
    }
    told.holds(&client, &processes.world).await;
    processes.world.settled().await;
    let twice = "select count(*) from (select order_id from order_history group by 1 \
                 having count(*) > 2) x";
    assert_eq!(processes.world.count(twice).await, 0);
    processes.end().await;
}

async fn confirmed(world: &tests::World, orders: usize) {
    wait_for("every order to be confirmed", || async {
        let count = "select count(*) from orders where status = 'CONFIRMED'";
        (usize::try_from(world.count(count).await) == Ok(orders)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn news_takes_effect_once_wherever_its_consumer_dies() {
    tokio::join!(settle_under(&POINTS[..3]), settle_under(&POINTS[3..]));
}
