//! What a reserved order costs the server: a measurement, run by hand.

use reservations::ReserveOutcome;

use crate::{
    server::PrivateServer,
    support::{SHARD, TestGate, hold, register},
};

/// Seconds of CPU that the server has used so far.
async fn cpu_seconds(test: &mut TestGate) -> f64 {
    let info: String = redis::cmd("INFO")
        .arg("cpu")
        .query_async(&mut test.raw)
        .await
        .expect("info");
    let used = |name: &str| -> f64 {
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect("a field");
        line.trim_start_matches(':')
            .trim()
            .parse()
            .expect("a number")
    };
    used("used_cpu_user_main_thread") + used("used_cpu_sys_main_thread")
}

#[tokio::test]
#[ignore = "a measurement"]
async fn the_cost_of_an_order_in_a_batch_of_fifty() {
    const BATCHES: usize = 2_000;
    let server = PrivateServer::start().await;
    let mut test = TestGate::on(&server.url()).await;
    let gate = test.gate.clone();
    gate.put_registers(SHARD, &[register("A", 1, 10_000_000)])
        .await
        .expect("register");
    for lines in [&[("A", 1)][..], &[("A", 1), ("B", 1)]] {
        gate.put_registers(SHARD, &[register("B", 1, 10_000_000)])
            .await
            .expect("register");
        let batches: Vec<Vec<_>> = (0..BATCHES)
            .map(|batch| {
                let key = |n: usize| format!("{}-{batch}-{n}", lines.len());
                (0..50)
                    .map(|n| hold(&key(n), &format!("c{n}"), lines))
                    .collect()
            })
            .collect();
        let mut spent = Vec::new();
        for verb in ["reserve", "keep", "release"] {
            let before = cpu_seconds(&mut test).await;
            let start = std::time::Instant::now();
            for batch in &batches {
                match verb {
                    "reserve" => {
                        let outcomes = gate.reserve(SHARD, 0, batch).await;
                        assert!(outcomes.iter().all(|one| *one == ReserveOutcome::Ok));
                    }
                    "keep" => {
                        let next = std::time::Duration::from_secs(30);
                        gate.keep(SHARD, batch, &[], next).await.expect("keep");
                    }
                    _ => {
                        gate.release(SHARD, batch, &[]).await.expect("release");
                    }
                }
            }
            let cpu = cpu_seconds(&mut test).await - before;
            #[expect(clippy::cast_precision_loss, reason = "a count of orders")]
            let orders = (BATCHES * 50) as f64;
            let wall = start.elapsed().as_secs_f64();
            spent.push(format!(
                "{verb} {:.2} us (server cpu), {:.2} us (wall)",
                cpu * 1e6 / orders,
                wall * 1e6 / orders
            ));
        }
        eprintln!(
            "an order of {} line(s) in a batch of 50: {}",
            lines.len(),
            spent.join("; ")
        );
    }
}
