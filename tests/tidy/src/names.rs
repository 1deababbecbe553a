//! Where names may be spelled: statuses, topics, keys, drivers, zones and what is not pure.

use contracts::{ConsumerName, Topic};

use crate::{
    lexer::{found, line, take_apart, without_tests},
    tree::{self, is_shipped, rust},
};

/// Clients of an HTTP API read statuses; they answer none.
const HTTP_CLIENTS: &[&str] = &[
    "services/payment/src/http_gateway.rs",
    "crates/cli/src/",
    "crates/bench/src/",
];

fn is_http_edge(path: &str) -> bool {
    let service = path
        .strip_prefix("services/")
        .and_then(|rest| rest.split_once("/src/"));
    service.is_some_and(|(name, file)| name == "gateway-sim" || file.starts_with("http/"))
        || path == "crates/platform/src/ops.rs"
        || HTTP_CLIENTS.iter().any(|client| path.starts_with(client))
}

fn statuses(path: &str, text: &str) -> Vec<String> {
    if !is_shipped(path) || is_http_edge(path) {
        return Vec::new();
    }
    found(
        text,
        &without_tests(text).code,
        "StatusCode",
        "an HTTP status outside http/",
    )
}

/// Names as whole strings, or in quotes as in SQL; prose about a topic is no spelling of it.
fn topics(path: &str, text: &str) -> Vec<String> {
    if !is_shipped(path) || path == "crates/contracts/src/topics.rs" || path == CHECKS_IN_SQL {
        return Vec::new();
    }
    let names = Topic::ALL
        .map(Topic::as_str)
        .into_iter()
        .chain(ConsumerName::ALL.map(ConsumerName::group));
    let names: Vec<&str> = names.collect();
    let is_name = |string: &str| {
        names
            .iter()
            .any(|name| string == *name || string.contains(&format!("'{name}'")))
            || string.ends_with(".dlq")
    };
    strings(
        text,
        is_name,
        "a topic or group is spelled in contracts::topics alone",
    )
}

/// The invariants as SQL that a person can paste into psql, so they spell topics out; those that
/// they spell must exist.
const CHECKS_IN_SQL: &str = "crates/store/src/verify/rules.rs";

fn stale_topics(text: &str) -> Vec<String> {
    let names = Topic::ALL.map(Topic::as_str);
    without_tests(text)
        .strings
        .iter()
        .flat_map(|(_, string)| string.split('\'').skip(1).step_by(2).collect::<Vec<_>>())
        .filter(|word| word.ends_with(".v1") && !names.contains(word))
        .map(|word| format!("{CHECKS_IN_SQL}: {word} is no topic"))
        .collect()
}

fn redis_keys(path: &str, text: &str) -> Vec<String> {
    if !is_shipped(path) || path.starts_with("crates/reservations/") {
        return Vec::new();
    }
    let parts = [":meta", ":holds", ":due", ":gate:", ":buyers:"];
    let is_key = |string: &str| parts.iter().any(|part| string.contains(part));
    strings(text, is_key, "a Redis key outside reservations")
}

/// Drivers that only the tests of a service may name: its unit tests can see them, so the manifest
/// does not hold this.
fn drivers(path: &str, text: &str) -> Vec<String> {
    if !is_shipped(path) || !path.starts_with("services/") {
        return Vec::new();
    }
    let code = take_apart(text).code;
    ["sqlx::", "redis::", "rdkafka::"]
        .into_iter()
        .flat_map(|driver| found(text, &code, driver, "a service names no driver"))
        .collect()
}

/// Times are moments: no code asks in which zone the machine stands.
fn zones(path: &str, text: &str) -> Vec<String> {
    if !is_shipped(path) {
        return Vec::new();
    }
    let code = take_apart(text).code;
    ["chrono::Local", "Local::now", "NaiveDateTime"]
        .into_iter()
        .flat_map(|name| {
            found(
                text,
                &code,
                name,
                "a time without a zone, or of one machine",
            )
        })
        .collect()
}

/// Purity: `domain` and `contracts` name no runtime and no driver, and `domain` reads no clock.
fn purity(path: &str, text: &str) -> Vec<String> {
    let code = without_tests(text).code;
    let in_domain = path.starts_with("crates/domain/src/");
    let mut complaints = Vec::new();
    if in_domain || path.starts_with("crates/contracts/src/") {
        for name in [
            "tokio", "sqlx", "redis", "rdkafka", "async fn", "std::fs", "std::env",
        ] {
            complaints.extend(found(text, &code, name, "pure code"));
        }
    }
    if in_domain {
        for clock in ["::now(", "now_v7", "generate(", "Instant", "SystemTime"] {
            complaints.extend(found(text, &code, clock, "domain reads no clock"));
        }
    }
    complaints
}

fn strings(text: &str, is_banned: impl Fn(&str) -> bool, why: &str) -> Vec<String> {
    let source = without_tests(text);
    let banned = source
        .strings
        .iter()
        .filter(|(_, string)| is_banned(string));
    banned
        .map(|(at, string)| format!("{}: {string:?}: {why}", line(text, *at)))
        .collect()
}

#[test]
fn http_statuses_are_named_at_the_edge_alone() {
    tree::check(&rust(), statuses);
    let planted = "fn f() -> axum::http::StatusCode { StatusCode::GONE }";
    assert_eq!(
        statuses("services/order/src/place_orders.rs", planted).len(),
        2
    );
    assert_eq!(statuses("crates/store/src/orders.rs", planted).len(), 2);
    assert_eq!(
        statuses("services/order/src/http/problem.rs", planted).len(),
        0
    );
    assert_eq!(
        statuses("services/gateway-sim/src/book.rs", planted).len(),
        0
    );
}

#[test]
fn topics_and_groups_are_spelled_in_one_module() {
    tree::check(&rust(), topics);
    let planted = r#"/// of "orders.v1"
        fn f() { g("payments.v1"); g("holdfast.stock"); g("orders.v1.holdfast.payment.dlq"); }"#;
    assert_eq!(topics("services/stock/src/lib.rs", planted).len(), 3);
    let sql = r#"const Q: &str = "select 'orders.v1' from t where topic = 'order.v1'";"#;
    assert_eq!(topics("services/stock/src/lib.rs", sql).len(), 1);
    tree::none(&stale_topics(&tree::read(CHECKS_IN_SQL)));
    assert_eq!(stale_topics(sql).len(), 1);
    assert_eq!(topics("crates/contracts/src/topics.rs", planted).len(), 0);
}

#[test]
fn redis_keys_are_spelled_in_reservations_alone() {
    tree::check(&rust(), redis_keys);
    let planted = r#"fn f() { g(format!("hf:{{{shard}}}:{epoch}:holds")); }"#;
    assert_eq!(
        redis_keys("services/stock/src/sweep_holds.rs", planted).len(),
        1
    );
    assert_eq!(
        redis_keys("crates/reservations/src/keys.rs", planted).len(),
        0
    );
}

#[test]
fn sources_of_services_name_no_driver() {
    tree::check(&rust(), drivers);
    let planted = "#[cfg(test)]\nmod tests { use sqlx::Row; }\nfn f() { redis::cmd(); }";
    assert_eq!(drivers("services/stock/src/lib.rs", planted).len(), 2);
    assert_eq!(drivers("services/stock/tests/it/main.rs", planted).len(), 0);
}

#[test]
fn no_time_depends_on_the_zone_of_a_machine() {
    tree::check(&rust(), zones);
    let planted = "fn f() { chrono::Local::now(); let n: NaiveDateTime; }";
    assert_eq!(zones("services/stock/src/lib.rs", planted).len(), 3);
}

#[test]
fn contracts_and_domain_are_pure() {
    tree::check(&rust(), purity);
    let planted = "use tokio::time; fn f() { chrono::Utc::now(); }";
    assert_eq!(purity("crates/domain/src/order.rs", planted).len(), 2);
    assert_eq!(purity("crates/contracts/src/ids.rs", planted).len(), 1);
    assert_eq!(purity("crates/store/src/lib.rs", planted).len(), 0);
}
