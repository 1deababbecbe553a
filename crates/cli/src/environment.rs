//! The variables that services and tools share, and the file that hands them on.

use std::{collections::BTreeMap, path::Path};

use crate::servers::{ServerError, Servers, write_private};

/// The file in a state directory that a shell sources.
pub const FILE: &str = "holdfast.env";

/// Where a shop places orders.
pub const HOLDFAST_URL: &str = "HOLDFAST_URL";
/// Where the payment service finds its provider.
pub const GATEWAY_URL: &str = "GATEWAY_URL";
/// A shop's key.
pub const API_KEY: &str = "HOLDFAST_API_KEY";
/// The operator's key.
pub const OPERATOR_KEY: &str = "HOLDFAST_OPERATOR_KEY";
/// What the provider signs its webhooks with.
pub const WEBHOOK_SECRET: &str = "HOLDFAST_WEBHOOK_SECRET";
/// Where the provider sends them.
pub const WEBHOOK_URL: &str = "HOLDFAST_WEBHOOK_URL";
/// Who writes `payments.v1`.
pub const PAYMENTS: &str = "HOLDFAST_PAYMENTS";

/// Variables by name.
pub type Variables = BTreeMap<String, String>;

/// The addresses of the servers, under the names that everything reads.
#[must_use]
pub fn of_servers(servers: &Servers) -> Variables {
    [
        ("DATABASE_URL", &servers.database_url),
        ("REDIS_URL", &servers.redis_url),
        ("KAFKA_BROKERS", &servers.kafka_brokers),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.clone()))
    .collect()
}

/// Writes the variables for a shell, for its owner's eyes only.
///
/// # Errors
/// The file can't be written.
pub fn write(dir: &Path, variables: &Variables) -> Result<(), ServerError> {
    let mut text = String::from("# Written by `holdfast up`. Use:  . ");
    text.push_str(&format!("{}\n", dir.join(FILE).display()));
    for (name, value) in variables {
        text.push_str(&format!("export {name}={}\n", quoted(value)));
    }
    write_private(&dir.join(FILE), &text)
}

/// The value as one word of a shell.
fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@,=+%".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_one_word_of_a_shell_whatever_is_in_it() {
        assert_eq!(quoted("redis://127.0.0.1:1"), "redis://127.0.0.1:1");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("a b;$(c)"), "'a b;$(c)'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
