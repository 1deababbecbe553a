//! The places between two stores where a process may be told to die: the one list of their names.

/// A place in the sources, marked by [`crash_point!`](crate::crash_point) with its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// What settings call it.
    pub name: &'static str,
    /// Where it is.
    pub what: &'static str,
    /// Whether it knows an error to give, so that the action `err` means something.
    pub gives_error: bool,
}

const fn at(name: &'static str, what: &'static str) -> Point {
    Point {
        name,
        what,
        gives_error: true,
    }
}

/// All points. A test of the rules of the code base holds that each is in the sources once.
pub const POINTS: [Point; 26] = [
    at("cp1", "before the gate is asked"),
    at("cp2", "the gate has held units, its reply is lost"),
    at(
        "cp3",
        "after the gate, before the transaction of the accept",
    ),
    at("cp4", "in the transaction of the accept, before COMMIT"),
    at("cp5", "COMMIT of the accept executed, its reply is lost"),
    at("cp6", "COMMIT of the accept under way, nobody waits for it"),
    at("cp7", "after COMMIT, before the sweep asks about its hold"),
    at("cp8", "after COMMIT, before the HTTP reply"),
    at("cp9", "some orders of a batch refused, before COMMIT"),
    at("cp10", "relay: rows read, none produced"),
    at("cp11", "relay: some of the records acknowledged"),
    at(
        "cp12",
        "relay: all acknowledged, before the watermark moves",
    ),
    at("cp13", "relay: paused between reading and sending"),
    at("cp14", "consumer: records read, before BEGIN"),
    at("cp15", "consumer: after the inbox, before the effect"),
    at("cp16", "consumer: committed, before the offset is stored"),
    at("cp17", "consumer: reply to COMMIT lost"),
    at("cp18", "settlement committed, before the gate is told"),
    Point {
        name: "cp19",
        what: "the gate told of a settlement, before the offset is stored",
        gives_error: false,
    },
    at("cp20", "payment PENDING, before the gateway is called"),
    at("cp21", "the gateway charged, its reply is lost"),
    at("cp22", "the gateway's result known, before its COMMIT"),
    at("cp23", "refund of dead money noted, before COMMIT"),
    at("cp24", "the gateway refunded, before it is noted"),
    at("cp25", "overdue orders chosen, before they expire"),
    at("cp26", "rebuild: orders read, before the gate is written"),
];

/// The point of a name.
#[must_use]
pub(super) fn find(name: &str) -> Option<&'static Point> {
    POINTS.iter().find(|point| point.name == name)
}
