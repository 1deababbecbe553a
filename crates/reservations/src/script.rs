//! The scripts and what the callers rely on: each file's header is compared with this by a test.

use std::{fmt, sync::LazyLock};

use crate::outcome::{BuyersOutcome, KeepOutcome, RegisterOutcome, ReserveOutcome, SettleOutcome};

/// Orders in one call, at most.
pub(crate) const BATCH_MAX: usize = 128;
/// Lines in one call, at most, so that a call stays under a millisecond.
pub(crate) const BATCH_LINES_MAX: usize = 1_024;
/// The greatest number that the scripts take: 15 digits, which a double holds exactly.
pub(crate) const NUMBER_MAX: i64 = 999_999_999_999_999;

/// A script: its text and its contract.
pub struct Script {
    /// The verb, and the name of the file.
    pub name: &'static str,
    /// The file, without what all scripts share.
    pub body: &'static str,
    /// Its keys in order; `( )*` repeats.
    pub keys: &'static str,
    /// Its arguments in order; `( )*` repeats as often as the number before it says.
    pub argv: &'static str,
    /// Its reply in order.
    pub reply: &'static str,
    /// The words of a register; empty where the reply has none.
    pub registers: &'static [&'static str],
    /// The words of an outcome.
    pub outcomes: &'static [&'static str],
    /// The error replies, all before anything is written.
    pub refusals: &'static [&'static str],
    loaded: LazyLock<redis::Script>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What all scripts share, put in front of each.
pub(crate) const COMMON: &str = include_str!("../../../lua/common.lua");
/// The code of the error reply for malformed arguments.
pub(crate) const MALFORMED: &str = "MALFORMED";

impl Script {
    /// The whole text as the server gets it.
    #[must_use]
    pub fn text(&self) -> String {
        format!("{COMMON}\n{}", self.body)
    }

    pub(crate) fn sha(&self) -> &str {
        self.loaded.get_hash()
    }
}

macro_rules! scripts {
    ($($konst:ident $name:literal { keys: $keys:literal, argv: $argv:literal, reply: $reply:literal, registers: $registers:expr, outcomes: $outcomes:expr, })*) => {
        $(
            pub(crate) static $konst: Script = Script {
                name: $name,
                body: include_str!(concat!("../../../lua/", $name, ".lua")),
                keys: $keys,
                argv: $argv,
                reply: $reply,
                registers: $registers,
                outcomes: $outcomes,
                refusals: &[MALFORMED],
                loaded: LazyLock::new(|| redis::Script::new(&$konst.text())),
            };
        )*
        /// All scripts.
        pub static SCRIPTS: &[&Script] = &[$(&$konst),*];
    };
}

scripts! {
    RESERVE "reserve" {
        keys: "meta holds due (gate buyers)*",
        argv: "epoch now_ms due_after_ms skus (sku)* holds (hold_id buyer lines (sku_index quantity)*)*",
        reply: "epoch (outcome)*",
        registers: &[],
        outcomes: ReserveOutcome::WORDS,
    }
    KEEP "keep" {
        keys: "meta holds due (gate buyers)*",
        argv: "epoch next_check_ms skus (sku version limit opens_at closes_at per_customer)* holds (hold_id buyer lines (sku_index quantity)*)*",
        reply: "epoch (register)* (outcome)*",
        registers: RegisterOutcome::WORDS,
        outcomes: KeepOutcome::WORDS,
    }
    COMMIT "commit" {
        keys: "meta holds due (gate)*",
        argv: "epoch skus (sku version limit opens_at closes_at per_customer)* holds (hold_id)*",
        reply: "epoch (register)* (outcome)*",
        registers: RegisterOutcome::WORDS,
        outcomes: SettleOutcome::WORDS,
    }
    RELEASE "release" {
        keys: "meta holds due (gate buyers)*",
        argv: "epoch skus (sku version limit opens_at closes_at per_customer)* holds (hold_id)*",
        reply: "epoch (register)* (outcome)*",
        registers: RegisterOutcome::WORDS,
        outcomes: SettleOutcome::WORDS,
    }
    CORRECT_BUYERS "correct_buyers" {
        keys: "meta holds due (gate buyers)*",
        argv: "epoch skus (sku)* buyers (buyer seen units)*",
        reply: "epoch (outcome)*",
        registers: &[],
        outcomes: BuyersOutcome::WORDS,
    }
    BEGIN_EPOCH "begin_epoch" {
        keys: "meta",
        argv: "epoch replaces",
        reply: "epoch (outcome)*",
        registers: &[],
        outcomes: &["BEGUN", "SUPERSEDED"],
    }
    OPEN_EPOCH "open_epoch" {
        keys: "meta",
        argv: "epoch",
        reply: "epoch (outcome)*",
        registers: &[],
        outcomes: &["OPENED", "SUPERSEDED"],
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::*;

    /// The value of a header line, `-- Name: value`.
    fn header<'a>(script: &'a Script, name: &str) -> Option<&'a str> {
        script
            .body
            .lines()
            .take_while(|line| line.starts_with("--"))
            .find_map(|line| line.strip_prefix(&format!("-- {name}: ")))
    }

    #[test]
    fn every_header_says_what_the_callers_rely_on() {
        for script in SCRIPTS {
            let name = script.name;
            assert!(
                script.body.starts_with(&format!("-- {name}: ")),
                "{name}: first line"
            );
            assert!(header(script, "Guarantee").is_some(), "{name}: guarantee");
            assert_eq!(header(script, "KEYS"), Some(script.keys), "{name}");
            assert_eq!(header(script, "ARGV"), Some(script.argv), "{name}");
            assert_eq!(header(script, "Reply"), Some(script.reply), "{name}");
            let registers = (!script.registers.is_empty()).then(|| script.registers.join(" "));
            assert_eq!(header(script, "Registers"), registers.as_deref(), "{name}");
            assert_eq!(
                header(script, "Outcomes"),
                Some(&*script.outcomes.join(" ")),
                "{name}"
            );
            assert_eq!(
                header(script, "Refusals"),
                Some(&*script.refusals.join(" ")),
                "{name}"
            );
        }
    }

    /// The quoted upper-case words of a text, comments left out.
    fn words(text: &str) -> BTreeSet<&str> {
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("--"));
        code.flat_map(|line| line.split('\'').skip(1).step_by(2))
            .filter(|word| word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
            .filter(|word| !word.is_empty())
            .collect()
    }

    const COMMANDS: [&str; 10] = [
        "HMGET", "HGET", "HSET", "HDEL", "DEL", "ZADD", "ZREM", "ZCARD", "TIME", "GT",
    ];

    #[test]
    fn the_words_in_the_code_are_those_of_the_headers() {
        let shared = words(COMMON);
        let mut known: BTreeSet<&str> = COMMANDS.into_iter().collect();
        for script in SCRIPTS {
            let said: BTreeSet<&str> = script
                .registers
                .iter()
                .chain(script.outcomes)
                .copied()
                .collect();
            known.extend(&said);
            for word in words(script.body) {
                assert!(
                    said.contains(word) || COMMANDS.contains(&word),
                    "{}: {word} is not in its header",
                    script.name
                );
            }
            for word in said {
                assert!(
                    words(script.body).contains(word) || shared.contains(word),
                    "{}: {word} is never said",
                    script.name
                );
            }
        }
        let unknown: Vec<_> = shared.difference(&known).collect();
        assert!(unknown.is_empty(), "common: {unknown:?} are in no header");
    }

    #[test]
    fn every_file_is_loaded_and_none_asks_for_flags() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lua");
        let mut files: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let mut names: Vec<String> = SCRIPTS
            .iter()
            .map(|script| format!("{}.lua", script.name))
            .collect();
        names.push("common.lua".to_owned());
        names.sort();
        assert_eq!(files, names);
        for script in SCRIPTS {
            // A flags header would have the server refuse the script when memory is full.
            assert!(!script.text().contains("#!lua"), "{}", script.name);
        }
    }

    /// What redis.pcall may call: a write that fails must end the script, not be overlooked.
    #[test]
    fn no_write_goes_through_pcall() {
        for script in SCRIPTS {
            let text = script.text();
            for call in text.split("redis.pcall('").skip(1) {
                let command = call.split('\'').next().unwrap();
                assert!(
                    ["HMGET", "HGET", "ZCARD"].contains(&command),
                    "{}",
                    script.name
                );
            }
            assert!(!text.contains(" pcall("), "{}", script.name);
        }
    }
}
