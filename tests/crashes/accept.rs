//! CP1 to CP6, CP8 and CP9: an order service dies between receipt and answer. Its clients send the
//! same keys again, to the other service.

use std::time::Duration;

use tests::{Told, api, processes::Wanted};

use super::{put, start};

pub(crate) const POINTS: [&str; 8] = ["cp1", "cp2", "cp3", "cp4", "cp5", "cp6", "cp8", "cp9"];

/// What happens at each: dying everywhere; an error; and where something waits with a bound, a
/// hang, which that bound must end.
const FATES: [(&str, &[&str]); 7] = [
    ("cp1", &["kill", "err"]),
    ("cp2", &["kill", "err"]),
    ("cp3", &["kill", "err", "hang"]),
    ("cp4", &["kill", "err", "hang"]),
    ("cp5", &["kill", "err", "hang", "panic"]),
    ("cp6", &["kill", "err", "delay(900)"]),
    ("cp8", &["kill", "err", "hang"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_key_has_one_order_wherever_its_service_dies() {
    tokio::join!(orders(), refusals());
}

async fn orders() {
    let processes = start(&Wanted::default()).await;
    put(&processes, "ACCEPT", 60).await;
    let (client, victim) = (processes.client(), &processes.order[0]);
    let mut told = Told::default();
    for (point, actions) in FATES {
        for action in actions {
            let word = action.split('(').next().unwrap_or(action);
            let before = processes.bites(point, word);
            victim.arm(&format!("{point}={action}@1")).await;
            let (unknown, name) = (told.unknown, format!("{point}-{word}"));
            // A fresh process has no catalogue yet, so that its first orders pass some points by.
            for round in 0..10 {
                let key = format!("{name}-{round}");
                told.place(&client, 0, "ACCEPT", &key, 4).await;
                if processes.bites(point, word) > before {
                    break;
                }
            }
            assert_eq!(processes.bites(point, word), before + 1, "{name}");
            let unknown = told.unknown - unknown;
            eprintln!(
                "{point} {action}: bit once, {unknown} attempts unanswered, an order for each key"
            );
            if word == "kill" {
                let status = victim.gone(Duration::from_secs(30)).await;
                assert!(!status.success(), "{name}: {status}");
                assert!(unknown > 0, "{name}: nobody was cut off");
                victim.start();
                victim.ready().await;
            }
        }
    }
    told.holds(&client, &processes.world).await;
    processes.world.settled().await;
    processes.end().await;
}

/// A batch with refusals that dies accepts and refuses the same when it is sent again.
async fn refusals() {
    let processes = start(&Wanted::default()).await;
    put(&processes, "SPLIT", 60).await;
    let (client, victim) = (processes.client(), &processes.order[0]);
    let mut told = Told::default();
    for action in ["err", "kill"] {
        victim.arm(&format!("cp9={action}@1")).await;
        // There is no gate of it, so it comes to PostgreSQL, which refuses it.
        let unknown = api::order("c", &[("NO-SUCH-SKU", 1)]);
        // On a busy machine the one that is refused may come too late for a batch with others.
        for round in 0..10 {
            let name = format!("cp9-{action}-{round}");
            let other = format!("{name}-refused");
            let (refused, ()) = tokio::join!(
                client.place(0, &other, &unknown),
                told.place(&client, 0, "SPLIT", &name, 8),
            );
            assert_eq!(refused.body["code"], "unknown-sku", "{}", refused.body);
            if processes.bites("cp9", action) > 0 {
                break;
            }
        }
        assert_eq!(processes.bites("cp9", action), 1);
        eprintln!("cp9 {action}: bit once, 8 accepted, 1 refused and nothing stored for it");
    }
    victim.gone(Duration::from_secs(30)).await;
    processes.revive().await;
    told.holds(&client, &processes.world).await;
    let stored = "select count(*) from idempotency where rejected is not null";
    assert_eq!(processes.world.count(stored).await, 0);
    processes.world.settled().await;
    processes.end().await;
}
