//! CP7, CP25 and CP26: stock dies while it looks after what others left: holds that are due, orders
//! that are overdue, a gate that lost its keys.

use std::time::Duration;

use http::Method;
use serde_json::json;
use tests::{
    Told,
    processes::{Processes, Wanted},
};

use super::{put, start};

pub(crate) const POINTS: [&str; 3] = ["cp7", "cp25", "cp26"];

/// Fails once, then dies; comes back.
async fn strike(processes: &Processes, point: &str) {
    let victim = &processes.stock[0];
    processes.bitten(point, "kill", 0).await;
    victim.gone(Duration::from_secs(30)).await;
    processes.revive().await;
    assert_eq!(processes.bites(point, "err"), 1, "{point}");
}

async fn forget_gate(processes: &Processes) {
    let forget = async {
        let client = redis::Client::open(processes.world.redis_url.as_str())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg(format!("{}:*", processes.world.key_prefix))
            .query_async(&mut connection)
            .await?;
        redis::cmd("DEL")
            .arg(keys)
            .query_async::<i64>(&mut connection)
            .await
    };
    match forget.await {
        Ok(keys) => assert!(keys > 0, "there was nothing to forget"),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_left_behind_is_looked_after_wherever_stock_dies() {
    let processes = start(&Wanted::default()).await;
    // Declines that are not final: orders wait for their deadline.
    let change = json!({ "decline_rate": 1.0, "not_final_rate": 1.0 });
    let gateway = processes.world.gateway();
    let answer = gateway
        .send(Method::PUT, "/v1/behaviour", None, Some(&change))
        .await;
    assert_eq!(answer.status, 200);
    put(&processes, "LIVE", 600).await;
    put(&processes, "SHORT", 3).await;
    let (client, stock) = (processes.client(), &processes.stock[0]);
    let mut told = Told::default();

    stock.arm("cp7=err@1;cp7=kill@2").await;
    told.place(&client, 0, "LIVE", "cp7", 8).await;
    strike(&processes, "cp7").await;
    eprintln!("cp7: failed once, died once; 8 holds were due");

    stock.arm("cp26=err@1;cp26=kill@2").await;
    forget_gate(&processes).await;
    told.place(&client, 0, "LIVE", "cp26", 4).await;
    strike(&processes, "cp26").await;
    processes.world.gate_open().await;
    processes.world.consistent().await;
    eprintln!("cp26: failed once, died once; 12 holds are back at the gate");

    stock.arm("cp25=err@1;cp25=kill@2").await;
    told.place(&client, 0, "SHORT", "cp25", 8).await;
    strike(&processes, "cp25").await;
    let early =
        "select count(*) from orders where status = 'EXPIRED' and ended_at < reserved_until";
    assert_eq!(processes.world.count(early).await, 0);
    eprintln!("cp25: failed once, died once; 8 orders expired, none early");

    for (key, (_, order)) in &told.orders {
        if !key.starts_with("cp25") {
            let path = format!("/v1/orders/{order}/cancel");
            let body = json!({ "reason": "enough" });
            let answer = processes.world.shop();
            let answer = answer.ask(Method::POST, &path, None, Some(&body)).await;
            assert_eq!(answer.status, 200, "{}", answer.json());
        }
    }
    processes.world.settled().await;
    told.holds(&client, &processes.world).await;
    processes.end().await;
}
