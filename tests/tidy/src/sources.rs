//! Where names may be spelled, and how sources are written.

use contracts::{ConsumerName, Topic};

use crate::{
    lexer::{line, take_apart, without_tests},
    tree::{self, File},
};

/// Longer files and the reason of each.
const LONG: &[(&str, &str)] = &[];

/// The greatest number of lines without a reason.
const LINES_MAX: usize = 500;

/// Clients of an HTTP API read statuses; they answer none.
const HTTP_CLIENTS: &[&str] = &[
    "services/payment/src/http_gateway.rs",
    "crates/cli/src/",
    "crates/bench/src/",
];

fn rust() -> Vec<File> {
    tree::ending(".rs")
}

/// Code that is shipped: not the suites of tests, and not these rules.
fn is_shipped(path: &str) -> bool {
    path.contains("/src/") && !path.starts_with("tests/") && !path.contains("/tests/")
}

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

fn allows(_: &str, text: &str) -> Vec<String> {
    let code = take_apart(text).code;
    [concat!("#[", "allow("), concat!("#![", "allow(")]
        .into_iter()
        .flat_map(|attribute| found(text, &code, attribute, "write #[expect(.., reason = ..)]"))
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

fn test_names(_: &str, text: &str) -> Vec<String> {
    let code = take_apart(text).code;
    let mut complaints = Vec::new();
    for attribute in ["#[test]", "#[tokio::test"] {
        for (at, _) in code.match_indices(attribute) {
            let Some(name) = code[at..].split_once("fn ").map(|(_, rest)| rest) else {
                continue;
            };
            let name = name
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
                .unwrap_or("");
            if name.starts_with("test_") {
                complaints.push(format!("{}: {name}: a test needs no test_", line(text, at)));
            } else if name.matches('_').count() < 2 {
                complaints.push(format!(
                    "{}: {name}: a test's name is a sentence",
                    line(text, at)
                ));
            }
        }
    }
    complaints
}

fn lengths(path: &str, text: &str) -> Vec<String> {
    let lines = text.lines().count();
    match LONG.iter().find(|(long, _)| *long == path) {
        Some(_) if lines <= LINES_MAX => vec!["1: no longer long: take it off the list".to_owned()],
        None if lines > LINES_MAX => {
            vec![format!(
                "1: {lines} lines; past {LINES_MAX} there must be a reason in the list"
            )]
        }
        Some(_) | None => Vec::new(),
    }
}

/// Words that name nothing.
fn empty_words(path: &str, text: &str) -> Vec<String> {
    let words = [
        "manager", "helper", "helpers", "util", "utils", "common", "misc",
    ];
    let stem = path
        .rsplit('/')
        .next()
        .unwrap_or(path)
        .trim_end_matches(".rs");
    let mut complaints: Vec<String> = stem
        .split('_')
        .filter(|word| words.contains(word))
        .map(|word| format!("1: {word}: name the file after what it does"))
        .collect();
    let code = take_apart(text).code;
    for keyword in ["fn ", "struct ", "enum ", "trait ", "mod "] {
        for (at, _) in code.match_indices(keyword) {
            let name: String = code[at + keyword.len()..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            let lower = name.to_lowercase();
            let empty = lower.split('_').any(|word| words.contains(&word))
                || ["manager", "helper", "util"]
                    .iter()
                    .any(|word| lower.ends_with(word));
            let starts_word = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            if empty && starts_word {
                complaints.push(format!("{}: {name} says nothing", line(text, at)));
            }
        }
    }
    complaints
}

/// The text of a log line begins in lower case.
fn log_texts(path: &str, text: &str) -> Vec<String> {
    if !is_shipped(path) {
        return Vec::new();
    }
    let source = without_tests(text);
    let mut complaints = Vec::new();
    for level in ["trace!(", "debug!(", "info!(", "warn!(", "error!("] {
        for (at, _) in source.code.match_indices(level) {
            let end = at + closing(&source.code[at..]);
            for (offset, string) in source.strings.iter().filter(|(o, _)| (at..end).contains(o)) {
                let message = source.code[..*offset].trim_end().ends_with(['(', ',']);
                if message && string.starts_with(|c: char| c.is_uppercase()) && !is_name(string) {
                    complaints.push(format!("{}: {string:?}: lower case", line(text, *offset)));
                }
            }
        }
    }
    complaints
}

/// A first word such as `PostgreSQL`, `Kafka` or `COMMIT` is a name.
fn is_name(text: &str) -> bool {
    let word = text
        .split(|c: char| !c.is_alphanumeric())
        .next()
        .unwrap_or("");
    word.chars().skip(1).any(char::is_uppercase) || ["Kafka", "Redis"].contains(&word)
}

/// Where the parenthesis that opens first in the code is closed.
fn closing(code: &str) -> usize {
    let mut depth = 0_i32;
    for (i, byte) in code.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' if depth == 1 => return i,
            b')' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

fn found(text: &str, code: &str, needle: &str, why: &str) -> Vec<String> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(needle)
        .filter(|(at, _)| {
            let inside = needle.starts_with(word) && code[..*at].ends_with(word);
            let longer = needle.ends_with(word) && code[at + needle.len()..].starts_with(word);
            !inside && !longer
        })
        .map(|(at, _)| format!("{}: {needle}: {why}", line(text, at)))
        .collect()
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
fn lints_are_expected_with_a_reason_and_never_allowed() {
    tree::check(&rust(), allows);
    let planted = format!(
        "// {0}(x)]\n{0}(clippy::all)]\nfn f() {{}}",
        concat!("#[", "allow")
    );
    assert_eq!(
        allows("any.rs", &planted),
        [format!(
            "2: {}: write #[expect(.., reason = ..)]",
            concat!("#[", "allow(")
        )]
    );
}

#[test]
fn contracts_and_domain_are_pure() {
    tree::check(&rust(), purity);
    let planted = "use tokio::time; fn f() { chrono::Utc::now(); }";
    assert_eq!(purity("crates/domain/src/order.rs", planted).len(), 2);
    assert_eq!(purity("crates/contracts/src/ids.rs", planted).len(), 1);
    assert_eq!(purity("crates/store/src/lib.rs", planted).len(), 0);
}

#[test]
fn names_of_tests_are_sentences() {
    tree::check(&rust(), test_names);
    let planted =
        "#[test]\nfn test_it_works() {}\n#[tokio::test(flavor = \"x\")]\nasync fn works() {}
        #[test]\nfn the_last_unit_is_sold_once() {}";
    assert_eq!(test_names("any.rs", planted).len(), 2);
}

#[test]
fn long_files_have_a_reason() {
    let ends = [".rs", ".lua", ".sql", ".sh"];
    let mut files = tree::files();
    files.retain(|file| ends.iter().any(|end| file.path.ends_with(end)));
    tree::check(&files, lengths);
    for (long, reason) in LONG {
        assert!(
            files.iter().any(|file| file.path == *long),
            "{long} is gone"
        );
        assert!(
            reason.split_whitespace().count() > 3,
            "{long}: {reason:?} is no reason"
        );
    }
    assert_eq!(lengths("new.rs", &"x\n".repeat(LINES_MAX + 1)).len(), 1);
}

#[test]
fn names_say_something() {
    tree::check(&rust(), empty_words);
    let planted = "struct OrderManager; fn do_util() {} mod helpers; fn utility() {}";
    assert_eq!(
        empty_words("services/order/src/order_utils.rs", planted).len(),
        4
    );
}

#[test]
fn log_texts_begin_in_lower_case() {
    tree::check(&rust(), log_texts);
    let planted = r#"fn f() { info!(order.id = %id, name = "Upper", "Order placed");
        warn!("PostgreSQL is away"); error!("it is gone: {}", x("Inner")); }"#;
    assert_eq!(
        log_texts("services/order/src/lib.rs", planted),
        [
            "1: \"Order placed\": lower case",
            "2: \"Inner\": lower case",
        ]
    );
}
