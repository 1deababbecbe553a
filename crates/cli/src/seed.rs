//! `holdfast seed`: SKUs with stock, over the public API.

use anyhow::Context;
use bytes::Bytes;
use http::{Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use crate::{
    exit::Exit,
    http_client::{Answer, HttpClient},
};

/// SKU-1 to SKU-N.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// How many SKUs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub skus: u32,
    /// Units of each; counts only when the SKU is new
    #[arg(long, default_value_t = 1_000)]
    pub stock: u32,
    /// How long a reservation lasts
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub ttl_seconds: u32,
    /// The order service
    #[arg(long, env = "HOLDFAST_URL")]
    pub url: String,
    /// An operator's key
    #[arg(long, env = "HOLDFAST_OPERATOR_KEY", hide_env_values = true)]
    pub operator_key: SecretString,
}

/// Puts the SKUs and says how many are new.
///
/// # Errors
/// The order service can't be reached or refuses.
pub async fn run(args: Args) -> anyhow::Result<Exit> {
    let mut operator = HttpClient::new(&args.url, Some(args.operator_key.expose_secret()))?;
    let mut created = 0;
    for number in 1..=args.skus {
        let sku = format!("SKU-{number}");
        if put_sku(&mut operator, &sku, i64::from(args.stock), args.ttl_seconds).await? {
            created += 1;
        }
    }
    eprintln!("{} SKUs, {created} of them new", args.skus);
    Ok(Exit::Done)
}

/// Puts one SKU; `true` when it is new.
pub(crate) async fn put_sku(
    operator: &mut HttpClient,
    sku: &str,
    on_hand: i64,
    ttl_seconds: u32,
) -> anyhow::Result<bool> {
    let body = json!({
        "on_hand": on_hand,
        "unit_price": { "amount_minor": 12_900, "currency": "KRW" },
        "per_customer_limit": null,
        "opens_at": null,
        "closes_at": null,
        "reservation_ttl_seconds": ttl_seconds,
        "waiting_room": "off",
    });
    let path = format!("/v1/skus/{sku}");
    let body = Some(Bytes::from(body.to_string()));
    let answer = operator.send(Method::PUT, &path, None, body).await?;
    match answer.status {
        StatusCode::CREATED => Ok(true),
        StatusCode::OK => Ok(false),
        _ => Err(refused(&answer, &path)),
    }
}

/// Adjusts a SKU so that exactly `wanted` units can be taken.
pub(crate) async fn set_available(
    operator: &mut HttpClient,
    sku: &str,
    wanted: i64,
) -> anyhow::Result<()> {
    let path = format!("/v1/skus/{sku}");
    let answer = operator.send(Method::GET, &path, None, None).await?;
    if answer.status != StatusCode::OK {
        return Err(refused(&answer, &path));
    }
    let available = answer.json()["available"]
        .as_i64()
        .context("the SKU's answer names no available units")?;
    if available == wanted {
        return Ok(());
    }
    let path = format!("/v1/skus/{sku}/adjustments");
    let key = contracts::ids::generate().to_string();
    let body = json!({ "delta": wanted - available, "reason": "load" });
    let body = Some(Bytes::from(body.to_string()));
    let answer = operator.send(Method::POST, &path, Some(&key), body).await?;
    if answer.status == StatusCode::CREATED {
        Ok(())
    } else {
        Err(refused(&answer, &path))
    }
}

fn refused(answer: &Answer, path: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{path}: {} {}",
        answer.status,
        String::from_utf8_lossy(&answer.body)
    )
}
