//! The signature of a webhook: `Holdfast-Signature: t=UNIX_SECONDS,v1=HEX`, where HEX is
//! HMAC-SHA256 over `t`, a full stop and the body, with the shared secret as the key.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The header that carries it.
pub const HEADER: &str = "holdfast-signature";

/// Signs a body as of a moment in seconds since 1970.
#[must_use]
pub fn sign(secret: &str, unix_seconds: i64, body: &[u8]) -> String {
    // HMAC takes keys of every length; this can't fail.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else {
        return String::new();
    };
    mac.update(unix_seconds.to_string().as_bytes());
    mac.update(b".");
    mac.update(body);
    format!(
        "t={unix_seconds},v1={}",
        hex::encode(mac.finalize().into_bytes())
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_signature_is_the_one_that_every_other_implementation_makes() {
        // printf '1700000000.{"id":"evt_1"}' | openssl dgst -sha256 -hmac whsec
        assert_eq!(
            super::sign("whsec", 1_700_000_000, br#"{"id":"evt_1"}"#),
            "t=1700000000,v1=e7e846cdb96220c3674ade89e534304fc91f6f15064facee1e7a7096f5f57f62"
        );
    }
}
