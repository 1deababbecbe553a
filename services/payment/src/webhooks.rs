//! Webhooks are hints from a stranger until their signature says otherwise. What they tell goes the
//! same way as every other answer ([`crate::record_results`]), so that repeats and late ones change
//! nothing; one that is lost is made good by the sweep.
//!
//! `Holdfast-Signature: t=UNIX_SECONDS,v1=HEX[,v1=HEX]`: HMAC-SHA256 over `t`, a full stop and the
//! body. Several `v1` let the secret be rotated. A signature is good for five minutes around `t`.

use contracts::Timestamp;
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use sha2::Sha256;

use crate::{
    record_results::News,
    wire::{WireCharge, WireRefund},
};

/// The header that carries the signature.
pub const SIGNATURE: &str = "holdfast-signature";

/// How far from now `t` may be, in seconds.
pub const TOLERANCE_SECONDS: i64 = 300;

/// Why a webhook is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Disbelief {
    /// No signature, or not of the form above.
    #[error("the signature is missing or malformed")]
    Malformed,
    /// Signed too long ago, or in the future.
    #[error("the signature is too old or in the future")]
    Stale,
    /// Not signed by whoever has the secret.
    #[error("the signature does not match")]
    Mismatch,
}

/// What a believed webhook says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// News to be recorded.
    News(News),
    /// A type that is not ours.
    Ignored,
    /// It breaks the contract.
    Malformed,
}

#[derive(Deserialize)]
struct Wire {
    #[serde(rename = "type")]
    notice_type: String,
    data: serde_json::Value,
}

/// Checks a signature in constant time.
///
/// # Errors
/// [`Disbelief`]: see its variants.
pub fn verify(
    secret: &str,
    signature: Option<&str>,
    body: &[u8],
    now: Timestamp,
) -> Result<(), Disbelief> {
    let (signed_at, candidates) = parse(signature.ok_or(Disbelief::Malformed)?)?;
    if (now.timestamp().saturating_sub(signed_at)).unsigned_abs() > TOLERANCE_SECONDS.unsigned_abs()
    {
        return Err(Disbelief::Stale);
    }
    let mut mac =
        Hmac::<Sha256>::new_from_slice(secret.as_bytes()).map_err(|_| Disbelief::Mismatch)?;
    mac.update(signed_at.to_string().as_bytes());
    mac.update(b".");
    mac.update(body);
    let matches = candidates
        .iter()
        .any(|candidate| mac.clone().verify_slice(candidate).is_ok());
    if matches {
        Ok(())
    } else {
        Err(Disbelief::Mismatch)
    }
}

fn parse(signature: &str) -> Result<(i64, Vec<Vec<u8>>), Disbelief> {
    let mut signed_at = None;
    let mut candidates = Vec::new();
    for part in signature.split(',').take(8) {
        match part.split_once('=') {
            Some(("t", seconds)) => signed_at = seconds.parse().ok(),
            Some(("v1", hex)) => {
                candidates.push(hex::decode(hex).map_err(|_| Disbelief::Malformed)?);
            }
            Some(_) => {}
            None => return Err(Disbelief::Malformed),
        }
    }
    match signed_at {
        Some(signed_at) if !candidates.is_empty() => Ok((signed_at, candidates)),
        _ => Err(Disbelief::Malformed),
    }
}

/// Reads a webhook whose signature was verified.
#[must_use]
pub fn read(body: &[u8]) -> Notice {
    let Ok(wire) = serde_json::from_slice::<Wire>(body) else {
        return Notice::Malformed;
    };
    match &*wire.notice_type {
        "charge.succeeded" | "charge.failed" => charge(wire.data),
        "refund.succeeded" => refund(wire.data),
        _ => Notice::Ignored,
    }
}

fn charge(data: serde_json::Value) -> Notice {
    match serde_json::from_value::<WireCharge>(data)
        .ok()
        .and_then(|wire| wire.check().ok())
    {
        Some(charge) => Notice::News(News::Charge(charge)),
        None => Notice::Malformed,
    }
}

fn refund(data: serde_json::Value) -> Notice {
    let Ok(wire) = serde_json::from_value::<WireRefund>(data) else {
        return Notice::Malformed;
    };
    let key = wire.key.clone();
    match wire.check() {
        Ok(outcome) => Notice::News(News::Refund { key, outcome }),
        Err(_) => Notice::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = br#"{"id":"evt_1"}"#;
    // printf '1700000000.{"id":"evt_1"}' | openssl dgst -sha256 -hmac whsec
    const GOOD: &str = "e7e846cdb96220c3674ade89e534304fc91f6f15064facee1e7a7096f5f57f62";

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_timestamp(seconds, 0).unwrap()
    }

    fn check(secret: &str, header: &str, body: &[u8], now: i64) -> Result<(), Disbelief> {
        verify(secret, Some(header), body, at(now))
    }

    #[test]
    fn the_signature_is_the_one_that_every_other_implementation_makes() {
        let header = format!("t=1700000000,v1={GOOD}");
        assert_eq!(check("whsec", &header, BODY, 1_700_000_000), Ok(()));
        let rotated = format!("t=1700000000,v1={},v1={GOOD}", "00".repeat(32));
        assert_eq!(check("whsec", &rotated, BODY, 1_700_000_300), Ok(()));
    }

    #[test]
    fn another_secret_body_or_moment_is_not_believed() {
        let header = format!("t=1700000000,v1={GOOD}");
        assert_eq!(
            check("other", &header, BODY, 1_700_000_000),
            Err(Disbelief::Mismatch)
        );
        assert_eq!(
            check("whsec", &header, b"{}", 1_700_000_000),
            Err(Disbelief::Mismatch)
        );
        assert_eq!(
            check("whsec", &header, BODY, 1_700_000_301),
            Err(Disbelief::Stale)
        );
        assert_eq!(
            check("whsec", &header, BODY, 1_699_999_699),
            Err(Disbelief::Stale)
        );
        let moved = format!("t=1700000001,v1={GOOD}");
        assert_eq!(
            check("whsec", &moved, BODY, 1_700_000_001),
            Err(Disbelief::Mismatch)
        );
        let cut = format!("t=1700000000,v1={}", &GOOD[..62]);
        assert_eq!(
            check("whsec", &cut, BODY, 1_700_000_000),
            Err(Disbelief::Mismatch)
        );
    }

    #[test]
    fn what_is_no_signature_is_malformed() {
        for header in ["", "t=1", "v1=00", "t=x,v1=00", "t=1,v1=zz", "t=1;v1=00"] {
            assert_eq!(
                check("whsec", header, BODY, 1),
                Err(Disbelief::Malformed),
                "{header}"
            );
        }
        assert_eq!(
            verify("whsec", None, BODY, at(1)),
            Err(Disbelief::Malformed)
        );
        let last = format!("t={},v1=00", i64::MIN);
        assert_eq!(check("whsec", &last, BODY, 1), Err(Disbelief::Stale));
    }

    #[test]
    fn garbage_is_never_news() {
        for body in [
            "",
            "{}",
            r#"{"type":"charge.succeeded","data":{}}"#,
            r#"{"type":"charge.succeeded","data":{"key":"k","status":"succeeded"}}"#,
            r#"{"type":"charge.succeeded","data":{"key":"k","status":"succeeded",
                "captured":{"amount_minor":-1,"currency":"KRW"},"executed_at":"2026-01-01T00:00:00Z"}}"#,
            r#"{"type":"refund.succeeded","data":{"key":"r r","status":"succeeded"}}"#,
        ] {
            assert_eq!(read(body.as_bytes()), Notice::Malformed, "{body}");
        }
        assert_eq!(
            read(br#"{"type":"payout.paid","data":null}"#),
            Notice::Ignored
        );
    }
}
