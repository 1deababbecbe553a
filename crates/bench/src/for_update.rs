//! The baseline: `SELECT … FOR UPDATE`, one transaction per order, as its best self. Prepared
//! statements, no ping before a connection is used, the row locked as late as can be, and all that
//! is written under the lock in one statement: five round trips, three of them under the lock.
//!
//! It writes the same rows with the same durability, behind an HTTP front of the same framework
//! that checks less than ours.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
    serve::ListenerExt,
};
use contracts::{
    Currency, CustomerId, HoldId, Money, OrderId, PaymentMethod, Quantity, Sku, Timestamp,
    envelope::source,
    events::{NewEvent, OrderEvent, OrderReserved, PricedLine},
};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use sqlx::{PgPool, Row, postgres::PgPoolOptions};

/// A thousand clients wait for ten connections.
const ACQUIRE_WITHIN: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct Asked {
    customer_id: CustomerId,
    lines: [AskedLine; 1],
    payment_method: PaymentMethod,
}

#[derive(Deserialize)]
struct AskedLine {
    sku: Sku,
    quantity: Quantity,
}

/// Puts a SKU with its units, as ours does.
pub(crate) async fn put_sku(url: &str, sku: &str, units: i64, ttl: i32) -> anyhow::Result<()> {
    let pool = PgPool::connect(url).await?;
    sqlx::query(
        "with sku as (insert into skus (sku, unit_price_minor, currency, reservation_ttl_seconds)
                      values ($1, 12900, 'KRW', $3)),
              adjustment as (
                  insert into stock_adjustments (id, request_id, fingerprint, sku, delta, reason,
                                                 on_hand, held, sold, version)
                  values ($4, $4, '', $1, $2, 'opening', $2, 0, 0, 1))
         insert into stock (sku, on_hand) values ($1, $2)",
    )
    .bind(sku)
    .bind(units)
    .bind(ttl)
    .bind(contracts::ids::generate())
    .execute(&pool)
    .await
    .context("putting the SKU of the baseline")?;
    pool.close().await;
    Ok(())
}

/// Serves until the task is aborted; where, and the task.
pub(crate) async fn serve(
    database_url: &str,
    connections: u32,
) -> anyhow::Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    let pool = PgPoolOptions::new()
        .max_connections(connections)
        .min_connections(connections)
        .acquire_timeout(ACQUIRE_WITHIN)
        .test_before_acquire(false)
        .connect(database_url)
        .await
        .context("connecting the baseline")?;
    let router = Router::new()
        .route("/v1/orders", post(place))
        .with_state(Arc::new(pool));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let listener = listener.tap_io(|stream| {
        // A delayed answer would be counted against the baseline.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::warn!(%error, "answers of the baseline may be delayed");
        }
    });
    let served = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the baseline ended");
        }
    });
    Ok((address, served))
}

async fn place(
    State(pool): State<Arc<PgPool>>,
    headers: HeaderMap,
    Json(asked): Json<Asked>,
) -> (StatusCode, Json<Value>) {
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok());
    let Some(key) = key.map(str::to_owned) else {
        return (StatusCode::BAD_REQUEST, Json(Value::Null));
    };
    // In a task of its own, as ours: who hangs up must not leave a transaction open.
    let placed = tokio::spawn(async move { accept(&pool, &key, &asked).await }).await;
    match placed.map_err(anyhow::Error::from).flatten() {
        Ok(Some(answer)) => (StatusCode::CREATED, Json(answer)),
        Ok(None) => (StatusCode::GONE, Json(Value::Null)),
        Err(error) => {
            tracing::warn!(error = format!("{error:#}"), "the baseline failed");
            (StatusCode::SERVICE_UNAVAILABLE, Json(Value::Null))
        }
    }
}

/// One order; `None` when it is sold out or the key was used.
async fn accept(pool: &PgPool, key: &str, asked: &Asked) -> anyhow::Result<Option<Value>> {
    let (id, hold) = (
        OrderId::generate(),
        HoldId::derive("shop", "POST /v1/orders", key),
    );
    let [line] = &asked.lines;
    let units = i64::from(line.quantity.get());
    let body = format!("{}{}{units}", asked.customer_id, line.sku);
    let mut tx = pool.begin().await?;
    let claimed = sqlx::query(
        "insert into idempotency (hold_id, fingerprint, order_id) values ($1, $2, $3)
         on conflict do nothing",
    )
    .bind(hold.0)
    .bind(Sha256::digest(body).to_vec())
    .bind(id.0)
    .execute(&mut *tx)
    .await?;
    let row = sqlx::query(
        "select s.on_hand - s.held - s.sold, k.unit_price_minor, k.currency, clock_timestamp(),
                clock_timestamp() + make_interval(secs => k.reservation_ttl_seconds)
         from stock s join skus k using (sku) where s.sku = $1 for update of s",
    )
    .bind(line.sku.as_str())
    .fetch_one(&mut *tx)
    .await?;
    if claimed.rows_affected() == 0 || row.try_get::<i64, _>(0)? < units {
        tx.rollback().await?;
        return Ok(None);
    }
    let now: Timestamp = row.try_get(3)?;
    let reserved = reserved(id, asked, &row)?;
    write(&mut tx, hold, &reserved, units, now).await?;
    tx.commit().await?;
    Ok(Some(json!({
        "order_id": id, "status": "RESERVED", "version": 1, "customer_id": reserved.customer_id,
        "lines": reserved.lines, "total": reserved.total,
        "reserved_until": reserved.reserved_until, "created_at": now,
    })))
}

fn reserved(
    order_id: OrderId,
    asked: &Asked,
    row: &sqlx::postgres::PgRow,
) -> anyhow::Result<OrderReserved> {
    let [line] = &asked.lines;
    let currency = Currency::parse(row.try_get(2)?)?;
    let price: i64 = row.try_get(1)?;
    let money = |amount| Money::new(amount, currency);
    Ok(OrderReserved {
        order_id,
        customer_id: asked.customer_id.clone(),
        lines: vec![PricedLine {
            sku: line.sku.clone(),
            quantity: line.quantity,
            unit_price: money(price)?,
        }],
        total: money(price * i64::from(line.quantity.get()))?,
        payment_method: asked.payment_method.clone(),
        reserved_until: row.try_get(4)?,
        version: 1,
    })
}

/// Stock, order, line, history and event.
async fn write(
    tx: &mut sqlx::PgTransaction<'_>,
    hold: HoldId,
    order: &OrderReserved,
    units: i64,
    now: Timestamp,
) -> anyhow::Result<()> {
    let event = OrderEvent::Reserved(order.clone());
    let event = NewEvent::order(source::ORDER, order.order_id, order.version, &event);
    let [line] = &order.lines[..] else {
        anyhow::bail!("an order of the baseline has one line")
    };
    sqlx::query(
        "with taken as (update stock set held = held + $12 where sku = $11),
              accepted as (
                  insert into orders (id, hold_id, shop, customer_id, status, total_minor, currency,
                                      payment_method, reserved_until, created_at)
                  values ($1, $2, 'shop', $3, 'RESERVED', $4, $5, $6, $7, $8)),
              line as (
                  insert into order_lines (order_id, sku, quantity, unit_price_minor)
                  values ($1, $11, $12, $13)),
              history as (
                  insert into order_history (order_id, version, to_status, cause, at)
                  values ($1, 1, 'RESERVED', 'accept', $8))
         insert into outbox (event_id, topic, key, type, source, aggregate_version, data)
         values ($9, $14, $15, $16, $17, 1, $10)",
    )
    .bind(order.order_id.0)
    .bind(hold.0)
    .bind(order.customer_id.as_str())
    .bind(order.total.amount_minor)
    .bind(order.total.currency.as_str())
    .bind(order.payment_method.as_str())
    .bind(order.reserved_until)
    .bind(now)
    .bind(event.event_id)
    .bind(&event.data)
    .bind(line.sku.as_str())
    .bind(i32::try_from(units)?)
    .bind(line.unit_price.amount_minor)
    .bind(&event.topic)
    .bind(&event.key)
    .bind(&event.event_type)
    .bind(event.source)
    .execute(&mut **tx)
    .await?;
    Ok(())
}
