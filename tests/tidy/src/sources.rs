//! How sources are written: lints, names, texts and lengths.

use crate::{
    lexer::{found, line, take_apart, without_tests},
    tree::{self, is_shipped, rust},
};

/// Longer files and the reason of each. There is none now.
const LONG: &[(&str, &str)] = &[];

/// The greatest number of lines without a reason.
const LINES_MAX: usize = 500;

fn allows(_: &str, text: &str) -> Vec<String> {
    let code = take_apart(text).code;
    [concat!("#[", "allow("), concat!("#![", "allow(")]
        .into_iter()
        .flat_map(|attribute| found(text, &code, attribute, "write #[expect(.., reason = ..)]"))
        .collect()
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
