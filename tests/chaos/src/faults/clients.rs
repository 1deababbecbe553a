//! Clients that nobody wants.

use std::time::Duration;

use http::Method;
use rand::{RngExt, rngs::StdRng};
use serde_json::json;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use super::{Bite, Site, hold};
use crate::{http::Http, plant::SHOP_KEY};

/// Connections that send a part of a request and wait.
const DAWDLERS: usize = 300;
/// Connections that hang up in the middle.
const QUITTERS: usize = 100;
/// Copies of one request at once.
const STORM: usize = 10;

pub(super) async fn bad(site: &Site, random: &mut StdRng) -> anyhow::Result<Bite> {
    let url = &site.load.urls[random.random_range(0..site.load.urls.len())];
    let address = url.trim_start_matches("http://").to_owned();
    let mut open = Vec::new();
    for _ in 0..DAWDLERS {
        let mut stream = TcpStream::connect(&address).await?;
        stream
            .write_all(b"POST /v1/orders HTTP/1.1\r\nhost: x\r\nx-slow: ")
            .await?;
        open.push(stream);
    }
    let mut quit = 0;
    for number in 0..QUITTERS {
        let body = json!({ "customer_id": "c-quit", "payment_method": "card",
            "lines": [{ "sku": "LONG-1", "quantity": 1 }] })
        .to_string();
        let request = format!(
            "POST /v1/orders HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {SHOP_KEY}\r\n\
             content-type: application/json\r\nidempotency-key: quit-{number}-{}\r\n\
             content-length: {}\r\n\r\n{body}",
            random.random_range(0..u32::MAX),
            body.len()
        );
        let mut stream = TcpStream::connect(&address).await?;
        stream.write_all(request.as_bytes()).await?;
        drop(stream);
        quit += 1;
    }
    let answered = storm(site, random).await?;
    hold(2.0).await;
    let times = u64::try_from(open.len())? + quit + answered;
    drop(open);
    Ok(Bite::of(
        times,
        format!(
            "{DAWDLERS} dawdled, {quit} hung up, {answered} of {STORM} copies were answered alike"
        ),
    ))
}

/// Ten copies of one request at once: one order.
async fn storm(site: &Site, random: &mut StdRng) -> anyhow::Result<u64> {
    let key = format!("storm-{}", random.random_range(0..u32::MAX));
    let body = json!({ "customer_id": "c-storm", "payment_method": "card",
        "lines": [{ "sku": "LONG-1", "quantity": 1 }] });
    let sends = (0..STORM).map(|number| {
        let (key, body) = (key.clone(), body.clone());
        let url = site.load.urls[number % site.load.urls.len()].clone();
        async move {
            let mut http = Http::new(&url, SHOP_KEY).ok()?;
            for _ in 0..20 {
                let sent = http.send(Method::POST, "/v1/orders", Some(&key), Some(&body));
                if let Ok(answer) = sent.await
                    && answer.status == 201
                {
                    return Some(answer.json()["order_id"].as_str()?.to_owned());
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            None
        }
    });
    let orders: Vec<String> = futures::future::join_all(sends)
        .await
        .into_iter()
        .flatten()
        .collect();
    if orders.windows(2).any(|two| two[0] != two[1]) {
        let said = format!("{key}: several orders {orders:?}");
        site.ledger.inner().broken.push(said);
    }
    Ok(u64::try_from(orders.len())?)
}
