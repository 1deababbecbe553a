//! Commands and the parts of the state that they meet, in words: for the coverage.

use model::protocol::{
    Hold, Key,
    gate::{Epoch, Gate as Modelled, GateOp, Register},
};

use crate::coverage::Pair;

pub(super) fn command(op: &GateOp) -> &'static str {
    match op {
        GateOp::Reserve { .. } => "reserve",
        GateOp::Keep { .. } => "keep",
        GateOp::Commit { .. } => "commit",
        GateOp::Release { .. } => "release",
        GateOp::Put { .. } => "put",
        GateOp::CorrectBuyer { .. } => "buyer",
        GateOp::Begin { .. } => "begin",
        GateOp::Open { .. } => "open",
        GateOp::Wipe => "wipe",
        GateOp::LoseRow { .. } => "lose",
    }
}

/// The part of the state that a command meets.
pub(super) fn state_of(gate: &Modelled, op: &GateOp) -> String {
    let epoch = match gate.epoch {
        None => "no epoch",
        Some(Epoch { open: false, .. }) => "closed",
        Some(Epoch { open: true, .. }) => "open",
    };
    let about = match op {
        // A hold that is there answers before its lines are looked at.
        GateOp::Reserve { key, hold, .. } if gate.holds.contains_key(key) => {
            hold_is(gate, *key, Some(hold))
        }
        GateOp::Reserve { now, hold, .. } => format!("no hold, {}", lines_are(gate, *now, hold)),
        GateOp::Keep { key, hold } => hold_is(gate, *key, Some(hold)),
        GateOp::Commit { key, .. } | GateOp::Release { key, .. } => hold_is(gate, *key, None),
        GateOp::Put { sku, register } => {
            let known = gate.rows[*sku].map(|row| register.version.cmp(&row.register.version));
            known.map_or_else(
                || "unknown".to_owned(),
                |order| format!("version {order:?}"),
            )
        }
        GateOp::CorrectBuyer {
            sku, buyer, seen, ..
        } => {
            let units = gate.bought[*sku][usize::from(*buyer)];
            let known = if units > 0 { "counted" } else { "not counted" };
            format!(
                "{known}, {}",
                if units == *seen {
                    "as seen"
                } else {
                    "not as seen"
                }
            )
        }
        GateOp::Begin { replaces, .. } => {
            let newest = gate.epoch.map(|epoch| epoch.id) == *replaces;
            (if newest {
                "the newest known"
            } else {
                "overtaken"
            })
            .to_owned()
        }
        GateOp::Open { epoch } => {
            let newest = gate.epoch.is_some_and(|newest| newest.id == *epoch);
            (if newest { "the newest" } else { "overtaken" }).to_owned()
        }
        GateOp::Wipe => "all keys".to_owned(),
        GateOp::LoseRow { sku } => (if gate.rows[*sku].is_some() {
            "a gate"
        } else {
            "no gate"
        })
        .to_owned(),
    };
    format!("{epoch}, {about}")
}

fn hold_is(gate: &Modelled, key: Key, hold: Option<&Hold>) -> String {
    let Some(stored) = gate.holds.get(&key) else {
        return "no hold".to_owned();
    };
    let which = match hold {
        None => "a hold",
        Some(hold) if stored.hold == *hold => "the hold",
        Some(_) => "another hold",
    };
    let whole = stored
        .hold
        .lines()
        .all(|(sku, units)| gate.rows[sku].is_some_and(|row| row.held >= units));
    let counted = stored.counted.contains(&true);
    format!(
        "{which}{}{}",
        if counted { ", counted" } else { "" },
        if whole { "" } else { ", not in held" }
    )
}

/// Every rule that the lines would break.
fn lines_are(gate: &Modelled, now: i32, hold: &Hold) -> String {
    let any = |rule: &dyn Fn(usize, i32, &Register, i32) -> bool| {
        hold.lines().any(|(sku, units)| {
            gate.rows[sku].is_some_and(|row| rule(sku, units, &row.register, row.held))
        })
    };
    let bought = |sku: usize| gate.bought[sku][usize::from(hold.buyer)];
    let rules = [
        (
            "unknown",
            hold.lines().any(|(sku, _)| gate.rows[sku].is_none()),
        ),
        (
            "early",
            any(&|_, _, row, _| row.opens.is_some_and(|at| now < at)),
        ),
        (
            "over",
            any(&|_, _, row, _| row.closes.is_some_and(|at| now >= at)),
        ),
        (
            "limit",
            any(&|sku, units, row, _| {
                row.per_customer
                    .is_some_and(|most| bought(sku) + units > most)
            }),
        ),
        (
            "short",
            any(&|_, units, row, held| row.limit - held < units),
        ),
    ];
    let broken: Vec<&str> = rules
        .into_iter()
        .filter_map(|(rule, broken)| broken.then_some(rule))
        .collect();
    match broken[..] {
        [] => "enough".to_owned(),
        ["unknown", _, ..] => "unknown+others".to_owned(),
        _ => broken.join("+"),
    }
}

/// Every pair of command and state that can be.
pub(super) fn possible() -> Vec<Pair> {
    let mut all = Vec::new();
    let mut add = |command, epoch: &str, state: &str| {
        all.push((command, format!("{epoch}, {state}")));
    };
    for epoch in ["closed", "open"] {
        for stored in ["", ", counted"] {
            for whole in ["", ", not in held"] {
                for hold in ["the hold", "another hold"] {
                    add("reserve", epoch, &format!("{hold}{stored}{whole}"));
                    add("keep", epoch, &format!("{hold}{stored}{whole}"));
                }
                add("commit", epoch, &format!("a hold{stored}{whole}"));
                add("release", epoch, &format!("a hold{stored}{whole}"));
            }
        }
        // No moment is before the opening and after the end.
        for time in ["", "early", "over"] {
            for rest in ["", "limit", "short", "limit+short"] {
                let broken = match (time, rest) {
                    ("", "") => "enough".to_owned(),
                    ("", rest) => rest.to_owned(),
                    (time, "") => time.to_owned(),
                    (time, rest) => format!("{time}+{rest}"),
                };
                add("reserve", epoch, &format!("no hold, {broken}"));
            }
        }
        add("reserve", epoch, "no hold, unknown");
        add("reserve", epoch, "no hold, unknown+others");
        for version in [
            "unknown",
            "version Less",
            "version Equal",
            "version Greater",
        ] {
            add("put", epoch, version);
        }
        for known in ["counted", "not counted"] {
            for seen in ["as seen", "not as seen"] {
                add("buyer", epoch, &format!("{known}, {seen}"));
            }
        }
        for newest in ["the newest", "overtaken"] {
            add("open", epoch, newest);
        }
        add("wipe", epoch, "all keys");
        add("lose", epoch, "a gate");
        add("lose", epoch, "no gate");
    }
    for epoch in ["no epoch", "closed", "open"] {
        for command in ["keep", "commit", "release"] {
            add(command, epoch, "no hold");
        }
        for newest in ["the newest known", "overtaken"] {
            add("begin", epoch, newest);
        }
    }
    add("reserve", "no epoch", "no hold, unknown");
    add("put", "no epoch", "unknown");
    add("buyer", "no epoch", "not counted, as seen");
    add("buyer", "no epoch", "not counted, not as seen");
    add("open", "no epoch", "overtaken");
    add("wipe", "no epoch", "all keys");
    all
}
