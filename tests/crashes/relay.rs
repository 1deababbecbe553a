//! CP10 to CP13: the leading relay dies between reading and moving the watermark, or is paused until
//! its lease is gone. Events come at least once and in order per key; consumers drop the copies.

use std::time::Duration;

use tests::{
    Told,
    processes::{Processes, Service, Wanted},
    wait::wait_within,
    wait_for,
};

use super::{put, start};

pub(crate) const POINTS: [&str; 4] = ["cp10", "cp11", "cp12", "cp13"];

async fn leads(service: &Service) -> bool {
    service.metric("relay_is_leader", "").await > 0.5
}

async fn leader(processes: &Processes) -> usize {
    wait_for("a relay to lead", || async {
        for (number, service) in processes.order.iter().enumerate() {
            if leads(service).await {
                return Some(number);
            }
        }
        None
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn events_reach_everybody_wherever_the_relay_dies() {
    let wanted = Wanted {
        relays: Some(vec!["order-0", "order-1"]),
        ..Wanted::default()
    };
    let processes = start(&wanted).await;
    put(&processes, "RELAY", 60).await;
    let client = processes.client();
    let mut told = Told::default();
    for point in POINTS {
        for action in ["err", "kill"] {
            let number = leader(&processes).await;
            let victim = &processes.order[number];
            victim.arm(&format!("{point}={action}@1")).await;
            let name = format!("{point}-{action}");
            // Some of the records of a burst are acknowledged before the others: not of each burst.
            for burst in 0..20 {
                let name = format!("{name}-{burst}");
                told.place(&client, number + 1, "RELAY", &name, 40).await;
                if processes.bites(point, action) > 0 {
                    break;
                }
            }
            processes.bitten(point, action, 0).await;
            if action == "kill" {
                victim.gone(Duration::from_secs(30)).await;
                processes.revive().await;
            } else {
                victim.arm("").await;
            }
            eprintln!("{point} {action}: bit at {}", victim.name);
        }
    }
    pause(&processes, &mut told).await;
    told.holds(&client, &processes.world).await;
    processes.world.settled().await;
    processes.end().await;
}

/// CP13 as it is meant: a leader that stands still loses its lease, and what it does when it wakes
/// moves nothing.
async fn pause(processes: &Processes, told: &mut Told) {
    let number = leader(processes).await;
    let (victim, other) = (&processes.order[number], &processes.order[1 - number]);
    victim.arm("cp13=delay(10000)@1").await;
    let client = processes.client();
    told.place(&client, number + 1, "RELAY", "cp13-delay", 20)
        .await;
    processes.bitten("cp13", "delay", 0).await;
    wait_within(Duration::from_secs(8), "the other to lead", || async {
        leads(other).await.then_some(())
    })
    .await;
    wait_for("the sleeper to see that it does not lead", || async {
        (!leads(victim).await).then_some(())
    })
    .await;
    // Two relays in turn would be one too many.
    wait_for("the other to lead on", || async {
        leads(other).await.then_some(())
    })
    .await;
    eprintln!(
        "cp13 delay: {} led within 8 s, {} stood down",
        other.name, victim.name
    );
}
