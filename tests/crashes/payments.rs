//! CP20 to CP24: the payment service dies around its calls of the gateway, and stock where it finds
//! dead money. Nobody is charged twice, and money without an order goes back once.

use std::time::Duration;

use http::Method;
use serde_json::json;
use tests::{
    Api, Told,
    processes::{Processes, Wanted},
    wait_for,
};

use super::{put, start};

pub(crate) const POINTS: [&str; 5] = ["cp20", "cp21", "cp22", "cp23", "cp24"];

async fn behave(processes: &Processes, change: &serde_json::Value) {
    let gateway = processes.world.gateway();
    let answer = gateway
        .send(Method::PUT, "/v1/behaviour", None, Some(change))
        .await;
    assert_eq!(answer.status, 200);
}

fn wanted() -> Wanted {
    Wanted {
        relays: Some(vec!["order-0", "order-1"]),
        ..Wanted::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn money_moves_once_wherever_the_services_die() {
    tokio::join!(charges(), refunds());
}

async fn charges() {
    let processes = start(&wanted()).await;
    put(&processes, "CHARGE", 120).await;
    let client = processes.client();
    let Some(victim) = &processes.payment else {
        panic!("no payment service")
    };
    let mut told = Told::default();
    for point in ["cp20", "cp21", "cp22"] {
        victim.arm(&format!("{point}=err@1;{point}=kill@3")).await;
        told.place(&client, 0, "CHARGE", point, 6).await;
        processes.bitten(point, "kill", 0).await;
        victim.gone(Duration::from_secs(30)).await;
        processes.revive().await;
        assert_eq!(processes.bites(point, "err"), 1, "{point}");
        eprintln!("{point}: failed once, died once; 6 orders");
    }
    told.holds(&client, &processes.world).await;
    processes.world.settled().await;
    let confirmed = "select count(*) from orders where status = 'CONFIRMED'";
    assert_eq!(processes.world.count(confirmed).await, 18);
    let journal = processes.world.gateway().get("/v1/journal").await;
    assert_eq!(journal["totals"]["captures"], 18, "{}", journal["totals"]);
    eprintln!("18 orders confirmed, 18 captures at the gateway");
    processes.end().await;
}

/// An order that its buyer cancels while the gateway takes its time.
async fn late_capture(processes: &Processes, told: &mut Told, name: &str) {
    told.place(&processes.client(), 0, "REFUND", name, 1).await;
    let Some((_, order)) = told.orders.get(&format!("{name}-0")) else {
        panic!("{name}")
    };
    let pending = format!("select count(*) from payments where order_id = '{order}'");
    wait_for("a payment in flight", || async {
        (processes.world.count(&pending).await == 1).then_some(())
    })
    .await;
    let path = format!("/v1/orders/{order}/cancel");
    let body = json!({ "reason": "changed-my-mind" });
    let shop = Api::new(&processes.order[0].url, tests::world::SHOP_KEY);
    let answer = shop.ask(Method::POST, &path, None, Some(&body)).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
}

async fn refunds() {
    let processes = start(&wanted()).await;
    put(&processes, "REFUND", 120).await;
    behave(&processes, &json!({ "latency_ms": 3500 })).await;
    let (client, mut told) = (processes.client(), Told::default());
    let Some(payment) = &processes.payment else {
        panic!("no payment service")
    };
    let back = "select count(*) from payments where captured_minor = refunded_minor \
                and captured_minor > 0";
    for (point, victim) in [("cp23", &processes.stock[0]), ("cp24", payment)] {
        victim.arm(&format!("{point}=err@1;{point}=kill@2")).await;
        let before = processes.world.count(back).await;
        // One after the other: two at once may die before the one that fails has said so. A refund
        // that failed once is asked for by key and found, so that another must come.
        for (round, action) in ["err", "kill"].into_iter().enumerate() {
            late_capture(&processes, &mut told, &format!("{point}-{round}")).await;
            processes.bitten(point, action, 0).await;
        }
        victim.gone(Duration::from_secs(30)).await;
        processes.revive().await;
        assert_eq!(processes.bites(point, "err"), 1, "{point}");
        // Else what is left of it meets the next point.
        wait_for("the money to go back", || async {
            (processes.world.count(back).await == before + 2).then_some(())
        })
        .await;
        eprintln!("{point}: failed once, died once; 2 captures of canceled orders");
    }
    processes.world.settled().await;
    assert_eq!(processes.world.count(back).await, 4);
    told.holds(&client, &processes.world).await;
    processes.end().await;
}
