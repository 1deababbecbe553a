//! `/v1/skus/{sku}` and its adjustments.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use contracts::Code;
use store::{adjustments::Adjusted, skus};

use super::{
    App,
    answers::{AdjustmentBody, SkuBody, json, replayed},
    auth::{Caller, OperatorCaller},
    extract::{BODY_MAX, IdempotencyKey, JsonBytes, SkuPath},
    problem::{Problem, ProblemBody},
    schema,
};
use crate::{
    adjust_stock,
    parse::{adjustment::AdjustmentDraft, sku::SkuDraft},
    put_sku::{self, SkuPlaced},
};

/// Create or change a SKU
///
/// `on_hand` counts only when the SKU is new; later the stock changes by adjustments.
#[utoipa::path(put, path = "/v1/skus/{sku}", tag = "skus",
    security(("operator" = [])),
    params(("sku" = String, Path, description = "1 to 32 of A-Z 0-9 _ -")),
    request_body(content = schema::PutSku, content_type = "application/json"),
    responses(
        (status = 200, description = "It was changed", body = SkuBody),
        (status = 201, description = "It is new", body = SkuBody),
        (status = 400, description = "`malformed`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 401, description = "`unauthorized`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 403, description = "`forbidden`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 413, description = "`too-large`: more than 1 KiB", body = ProblemBody, content_type = "application/problem+json"),
        (status = 415, description = "`unsupported-media-type`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 422, description = "`invalid`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`unavailable`; the request may be repeated", body = ProblemBody, content_type = "application/problem+json")))]
pub(super) async fn put(
    State(app): State<Arc<App>>,
    _: OperatorCaller,
    SkuPath(sku): SkuPath,
    JsonBytes(body): JsonBytes<BODY_MAX>,
) -> Result<Response, Problem> {
    let sku = sku.map_err(|error| Problem::invalid("sku", error.to_string()))?;
    let draft = SkuDraft::parse(&body, app.ttl_seconds)?;
    // The unit of work outlives a client that hangs up (P14).
    let work = tokio::spawn(async move {
        put_sku::put(&app.store, &app.sync, &app.catalogue, &sku, &draft).await
    });
    match work.await.map_err(|_| Problem::internal())?? {
        SkuPlaced::Created(row) => Ok(json(StatusCode::CREATED, &SkuBody::from(&row))),
        SkuPlaced::Updated(row) => Ok(json(StatusCode::OK, &SkuBody::from(&row))),
        SkuPlaced::OnHandRequired => Err(Problem::invalid(
            "on_hand",
            "is required when the SKU is new",
        )),
    }
}

/// Read a SKU and its stock
#[utoipa::path(get, path = "/v1/skus/{sku}", tag = "skus",
    security(("shop" = []), ("operator" = [])),
    params(("sku" = String, Path, description = "1 to 32 of A-Z 0-9 _ -")),
    responses(
        (status = 200, description = "The SKU", body = SkuBody),
        (status = 401, description = "`unauthorized`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`not-found`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`unavailable`", body = ProblemBody, content_type = "application/problem+json")))]
pub(super) async fn read(
    State(app): State<Arc<App>>,
    _: Caller,
    SkuPath(sku): SkuPath,
) -> Result<Response, Problem> {
    let sku = sku.map_err(|_| Problem::not_found())?;
    let row = skus::get(&app.store, &sku)
        .await?
        .ok_or_else(Problem::not_found)?;
    Ok(json(StatusCode::OK, &SkuBody::from(&row)))
}

/// Receive or write off units
#[utoipa::path(post, path = "/v1/skus/{sku}/adjustments", tag = "skus",
    security(("operator" = [])),
    params(("sku" = String, Path, description = "1 to 32 of A-Z 0-9 _ -"),
        ("Idempotency-Key" = String, Header, description = "1 to 255 printable ASCII characters, bare or quoted")),
    request_body(content = schema::AdjustStock, content_type = "application/json"),
    responses(
        (status = 201, description = "It was made", body = AdjustmentBody, headers(
            ("Idempotency-Replayed" = String, description = "`true` for a repeat"))),
        (status = 400, description = "`idempotency-key-required`, `malformed`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 401, description = "`unauthorized`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 403, description = "`forbidden`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`below-committed`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 413, description = "`too-large`: more than 1 KiB", body = ProblemBody, content_type = "application/problem+json"),
        (status = 415, description = "`unsupported-media-type`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 422, description = "`invalid`, `unknown-sku`, `key-reused`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`unavailable`; the same key may be sent again", body = ProblemBody, content_type = "application/problem+json")))]
pub(super) async fn adjust(
    State(app): State<Arc<App>>,
    _: OperatorCaller,
    SkuPath(sku): SkuPath,
    IdempotencyKey(key): IdempotencyKey,
    JsonBytes(body): JsonBytes<BODY_MAX>,
) -> Result<Response, Problem> {
    let draft = AdjustmentDraft::parse(&body)?;
    let unknown = || Problem::new(Code::UnknownSku, "there is no such SKU");
    let sku = sku.map_err(|_| unknown())?;
    let fingerprint = draft.fingerprint(&sku);
    // The unit of work outlives a client that hangs up (P14).
    let work = tokio::spawn(async move {
        adjust_stock::adjust(&app.store, &app.sync, &sku, &key, &draft).await
    });
    match work.await.map_err(|_| Problem::internal())?? {
        Adjusted::Done(done) => Ok(json(StatusCode::CREATED, &AdjustmentBody::from(&done))),
        Adjusted::Repeat(before) if before.fingerprint == fingerprint => Ok(replayed(json(
            StatusCode::CREATED,
            &AdjustmentBody::from(&before),
        ))),
        Adjusted::Repeat(_) => Err(Problem::new(
            Code::KeyReused,
            "the key was used with another body",
        )),
        Adjusted::BelowCommitted(row) => Err(Problem::new(
            Code::BelowCommitted,
            format!("{} units are held and sold", row.held + row.sold),
        )),
        Adjusted::TooMany => Err(Problem::invalid("delta", "more units than a SKU can have")),
        Adjusted::UnknownSku => Err(unknown()),
    }
}
