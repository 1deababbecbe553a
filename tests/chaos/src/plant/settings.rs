//! The settings that all processes of the plant share.

use std::path::Path;

use super::{OPERATOR_KEY, SHOP_KEY};

pub(super) const WEBHOOK_SECRET: &str = "chaos-webhook-secret-0123456789";

/// What all services are told.
pub(super) fn shared(logs: &Path, gateway: u16, payment: u16) -> [(&'static str, String); 10] {
    [
        ("HOLDFAST_API_KEY", SHOP_KEY.to_owned()),
        ("HOLDFAST_OPERATOR_KEY", OPERATOR_KEY.to_owned()),
        ("HOLDFAST_WEBHOOK_SECRET", WEBHOOK_SECRET.to_owned()),
        (
            "HOLDFAST_WEBHOOK_URL",
            format!("http://127.0.0.1:{payment}/webhooks/gateway"),
        ),
        ("GATEWAY_URL", format!("http://127.0.0.1:{gateway}")),
        ("HOLDFAST_GATEWAY_TIMEOUT_MS", "1000".to_owned()),
        // A blocked runtime is waited for; the default is 20 s.
        ("HOLDFAST_BLOCKED_SECONDS", "10".to_owned()),
        (
            "HOLDFAST_FAILPOINTS_LOG",
            logs.join(crate::faults::crashes::FILE)
                .display()
                .to_string(),
        ),
        // Until it is told how to behave, which is after it listens: it would take money that it is to
        // decline.
        ("HOLDFAST_GATEWAY_DOWN", "true".to_owned()),
        (
            "HOLDFAST_GATEWAY_BOOK",
            logs.join("gateway.book").display().to_string(),
        ),
    ]
}
