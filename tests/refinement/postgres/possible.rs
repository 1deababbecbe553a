//! Every pair of command and state that can be, in the words of the coverage.

use crate::coverage::Pair;

const ENDS: [&str; 3] = ["CONFIRMED", "CANCELED", "EXPIRED"];
const STATUSES: [&str; 4] = ["RESERVED", "CONFIRMED", "CANCELED", "EXPIRED"];

pub(super) fn pairs() -> Vec<Pair> {
    let mut all = orders();
    all.extend(gate());
    all.extend(news());
    all
}

fn orders() -> Vec<Pair> {
    let mut all = Vec::new();
    for late in ["", ", late"] {
        all.push(("accept", format!("new key{late}")));
        for status in STATUSES {
            for body in ["", ", other body"] {
                all.push(("accept", format!("key of {status}{body}{late}")));
            }
        }
    }
    for status in STATUSES.into_iter().chain(["no order"]) {
        all.push(("cancel", status.to_owned()));
    }
    for status in ENDS.into_iter().chain(["no order"]) {
        all.push(("begin", status.to_owned()));
    }
    for paying in ["", ", paying"] {
        for moment in ["Early", "Tight", "Due", "PastGrace"] {
            all.push(("begin", format!("RESERVED, {moment}{paying}")));
        }
        for moment in ["Due", "PastGrace"] {
            all.push(("expire", format!("{moment}{paying}")));
        }
    }
    all.push(("expire", "nothing is due".to_owned()));
    for moment in ["Early", "Tight", "Due", "PastGrace"] {
        all.push(("later", moment.to_owned()));
    }
    for status in STATUSES {
        for state in ["Pending", "Completed", "Failed"] {
            all.push(("record", format!("{state}, {status}")));
        }
    }
    all.push(("record", "no payment".to_owned()));
    for delta in ["received", "written off"] {
        all.push(("adjust", delta.to_owned()));
    }
    all
}

fn gate() -> Vec<Pair> {
    let mut all = Vec::new();
    for status in STATUSES {
        for epoch in ["open", "closed", "lost"] {
            for hold in ["a hold", "no hold"] {
                let state = format!("{epoch}, {status}, {hold}");
                if epoch == "lost" && hold == "a hold" {
                    continue;
                }
                all.push(("sync", state.clone()));
                // Expiry syncs before it returns, and a closed gate takes no hold of an order that
                // has ended: only a sync meets one whose order has expired.
                if epoch == "closed" && status == "EXPIRED" && hold == "a hold" {
                    continue;
                }
                all.push(("reserve", state.clone()));
                if hold == "a hold" {
                    all.push(("sweep", state));
                }
            }
        }
    }
    for epoch in ["open", "closed", "lost"] {
        all.push(("reserve", format!("{epoch}, no order, no hold")));
    }
    // Without an order, only an open gate has let it in.
    all.push(("reserve", "open, no order, a hold".to_owned()));
    all.push(("sweep", "open, no order, a hold".to_owned()));
    all.push(("wipe", "open".to_owned()));
    all.push(("begin epoch", "open".to_owned()));
    for epoch in ["closed", "lost"] {
        all.push(("rebuild", epoch.to_owned()));
    }
    all
}

fn news() -> Vec<Pair> {
    let mut payments = vec!["of another order".to_owned()];
    let mut add = |status: &str, of: &[&str]| {
        payments.extend(of.iter().map(|one| format!("{status}, {one}")));
    };
    // Whatever is captured for no order of ours is asked back.
    add(
        "no order",
        &[
            "new",
            "Completed, refund Requested",
            "Completed, refund Closed",
        ],
    );
    for status in STATUSES {
        add(
            status,
            &[
                "new",
                "Pending",
                "Pending, refund External",
                "Failed",
                "Failed, refund External",
                "Completed",
                "Completed, refund Requested",
                "Completed, refund Closed",
                "Completed, refund External",
            ],
        );
    }
    // What is applied is refunded by others only.
    add("CONFIRMED", &["applied", "applied, refund External"]);
    let kinds = ["completed", "failed", "failed once", "refunded"];
    let pairs = kinds.into_iter().flat_map(|kind| {
        let payments = payments.iter();
        payments.map(move |payment| ("settle", format!("{kind}, {payment}")))
    });
    pairs.collect()
}
