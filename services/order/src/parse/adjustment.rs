//! The body of `POST /v1/skus/{sku}/adjustments`.

use contracts::Sku;
use sha2::{Digest, Sha256};

use super::{
    BodyError,
    fields::{self, Errors, Fields},
    json,
};

/// More units than any SKU can have.
pub(crate) const MAX_UNITS: i64 = 1_000_000_000_000;

/// Units received (positive) or written off (negative).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AdjustmentDraft {
    pub(crate) delta: i64,
    pub(crate) reason: String,
}

impl AdjustmentDraft {
    /// Reads a body.
    ///
    /// # Errors
    /// [`BodyError`] with every field that is wrong.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, BodyError> {
        let value = json::parse(body)?;
        let mut errors = Errors::default();
        let draft = Fields::of(value, "body", "", &mut errors).and_then(|mut body| {
            let delta = body.required("delta", &mut errors, |value| {
                match fields::integer(value, -MAX_UNITS, MAX_UNITS)? {
                    0 => Err("must not be 0".into()),
                    delta => Ok(delta),
                }
            });
            let reason = body.required("reason", &mut errors, fields::reason);
            body.refuse_unknown(&mut errors);
            Some(Self {
                delta: delta?,
                reason: reason?,
            })
        });
        errors.finish(draft)
    }

    /// SHA-256 of what was asked for, and of which SKU.
    pub(crate) fn fingerprint(&self, sku: &Sku) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update((sku.as_str().len() as u64).to_be_bytes());
        hash.update(sku.as_str().as_bytes());
        hash.update(self.delta.to_be_bytes());
        hash.update(self.reason.as_bytes());
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bad_adjustment_names_its_field() {
        let table: [(&str, &[&str]); 8] = [
            (r#"{"delta":0,"reason":"x"}"#, &["delta"]),
            (r#"{"delta":1.0,"reason":"x"}"#, &["delta"]),
            (r#"{"delta":1e3,"reason":"x"}"#, &["delta"]),
            (r#"{"delta":"1","reason":"x"}"#, &["delta"]),
            (r#"{"delta":1000000000001,"reason":"x"}"#, &["delta"]),
            (r#"{"delta":1}"#, &["reason"]),
            (r#"{"delta":1,"reason":""}"#, &["reason"]),
            (r#"{"delta":1,"reason":"x","sku":"A"}"#, &["sku"]),
        ];
        for (body, wanted) in table {
            let Err(BodyError::Invalid(errors)) = AdjustmentDraft::parse(body.as_bytes()) else {
                panic!("{body}");
            };
            let found: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(found, wanted, "{body}");
        }
        assert_eq!(
            AdjustmentDraft::parse(br#"{"delta":-5,"reason":"broken"}"#).unwrap(),
            AdjustmentDraft {
                delta: -5,
                reason: "broken".to_owned()
            }
        );
    }
}
