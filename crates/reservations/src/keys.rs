//! The keys of the gate: the only place where they are spelled.
//!
//! All keys of a shard share the hash tag `{SHARD}`; all but `meta` carry the epoch.

use contracts::Sku;
use domain::gate::Shard;

use crate::GateError;

/// Spells keys.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: String,
}

/// What a key is, read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyKind<'a> {
    Meta,
    Holds {
        epoch: &'a str,
    },
    Due {
        epoch: &'a str,
    },
    Gate {
        epoch: &'a str,
        sku: &'a str,
    },
    Buyers {
        epoch: &'a str,
        sku: &'a str,
    },
    /// None of ours.
    Stray,
}

impl KeyKind<'_> {
    /// The epoch that the key carries.
    pub(crate) fn epoch(&self) -> Option<&str> {
        match self {
            Self::Holds { epoch }
            | Self::Due { epoch }
            | Self::Gate { epoch, .. }
            | Self::Buyers { epoch, .. } => Some(epoch),
            Self::Meta | Self::Stray => None,
        }
    }
}

impl Keys {
    /// The prefix must hold no character that a key pattern would read as a wildcard.
    pub(crate) fn new(prefix: &str) -> Result<Self, GateError> {
        let allowed =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
        if prefix.is_empty() || prefix.len() > 32 || !prefix.bytes().all(allowed) {
            return Err(GateError::Config(
                "key_prefix must be 1 to 32 of a-z 0-9 _ -",
            ));
        }
        Ok(Self {
            prefix: prefix.to_owned(),
        })
    }

    fn shard(&self, shard: Shard) -> String {
        format!("{}:{{{shard}}}:", self.prefix)
    }

    pub(crate) fn meta(&self, shard: Shard) -> String {
        self.shard(shard) + "meta"
    }

    pub(crate) fn holds(&self, shard: Shard, epoch: &str) -> String {
        format!("{}{epoch}:holds", self.shard(shard))
    }

    pub(crate) fn due(&self, shard: Shard, epoch: &str) -> String {
        format!("{}{epoch}:due", self.shard(shard))
    }

    pub(crate) fn gate(&self, shard: Shard, epoch: &str, sku: &Sku) -> String {
        format!("{}{epoch}:gate:{sku}", self.shard(shard))
    }

    pub(crate) fn buyers(&self, shard: Shard, epoch: &str, sku: &Sku) -> String {
        format!("{}{epoch}:buyers:{sku}", self.shard(shard))
    }

    /// A pattern of all keys of a shard.
    pub(crate) fn all(&self, shard: Shard) -> String {
        self.shard(shard) + "*"
    }

    /// A pattern of all keys of an epoch.
    pub(crate) fn of_epoch(&self, shard: Shard, epoch: &str) -> String {
        format!("{}{epoch}:*", self.shard(shard))
    }

    /// Reads a key of the shard back.
    pub(crate) fn read<'a>(&self, shard: Shard, key: &'a str) -> KeyKind<'a> {
        let Some(rest) = key.strip_prefix(&self.shard(shard)) else {
            return KeyKind::Stray;
        };
        let mut parts = rest.split(':');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("meta"), None, None, None) => KeyKind::Meta,
            (Some(epoch), Some("holds"), None, None) => KeyKind::Holds { epoch },
            (Some(epoch), Some("due"), None, None) => KeyKind::Due { epoch },
            (Some(epoch), Some("gate"), Some(sku), None) => KeyKind::Gate { epoch, sku },
            (Some(epoch), Some("buyers"), Some(sku), None) => KeyKind::Buyers { epoch, sku },
            _ => KeyKind::Stray,
        }
    }
}

/// Whether a text can be an epoch: the scripts ask the same.
pub(crate) fn is_epoch(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.len() <= 36 && text.bytes().all(allowed) && !text.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read_back_as_what_it_is() {
        let (keys, shard) = (Keys::new("hf").unwrap(), Shard(3));
        let sku = Sku::parse("SKU-1").unwrap();
        assert_eq!(keys.gate(shard, "e1", &sku), "hf:{3}:e1:gate:SKU-1");
        assert_eq!(keys.read(shard, &keys.meta(shard)), KeyKind::Meta);
        assert_eq!(
            keys.read(shard, &keys.holds(shard, "e1")),
            KeyKind::Holds { epoch: "e1" }
        );
        assert_eq!(
            keys.read(shard, &keys.due(shard, "e1")),
            KeyKind::Due { epoch: "e1" }
        );
        assert_eq!(
            keys.read(shard, &keys.gate(shard, "e1", &sku)),
            KeyKind::Gate {
                epoch: "e1",
                sku: "SKU-1"
            }
        );
        assert_eq!(
            keys.read(shard, &keys.buyers(shard, "e1", &sku)),
            KeyKind::Buyers {
                epoch: "e1",
                sku: "SKU-1"
            }
        );
        assert_eq!(keys.read(shard, "hf:{3}:e1:other"), KeyKind::Stray);
        assert_eq!(keys.read(Shard(4), &keys.meta(shard)), KeyKind::Stray);
    }

    #[test]
    fn a_prefix_with_wildcards_is_refused() {
        for prefix in ["", "hf*", "h[f]", "HF", "h:f", "h{f"] {
            assert!(Keys::new(prefix).is_err(), "{prefix}");
        }
    }
}
