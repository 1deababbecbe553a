//! `/v1/orders`.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};
use contracts::{Code, CustomerId, HoldId, OrderId};
use domain::{Buyer, OrderRequest, OrderStatus};
use platform::clock;
use store::{Order, orders, timeline};

use super::{
    App,
    answers::{OrderBody, OrderList, StepBody, Timeline, json, replayed},
    auth::{Caller, ShopCaller},
    extract::{BODY_MAX, IdempotencyKey, JsonBytes, ORDER_BODY_MAX, OrderPath, Pairs},
    problem::{Problem, ProblemBody},
    schema, trace,
};
use crate::{
    cancel_order::{self, Canceled},
    parse::order::{OrderDraft, parse_cancellation},
    place_orders::{Placed, Refused},
};

/// Where the key counts.
const ROUTE: &str = "POST /v1/orders";

/// The longest that a reader may wait.
const WAIT_MAX_SECONDS: u64 = 30;

/// The greatest page of a list.
const LIMIT_MAX: u16 = 100;

/// The page of a list when nothing is said.
const LIMIT_DEFAULT: u16 = 20;

/// Place an order
///
/// 201 means that the units are the buyer's until `reserved_until`. A repeat with the same key and
/// body gets the same answer and `Idempotency-Replayed: true`; refusals are not stored, so the same
/// key may succeed later.
#[utoipa::path(post, path = "/v1/orders", tag = "orders",
    security(("shop" = [])),
    params(("Idempotency-Key" = String, Header, description = "1 to 255 printable ASCII characters, bare or quoted")),
    request_body(content = schema::PlaceOrder, content_type = "application/json"),
    responses(
        (status = 201, description = "The units are the buyer's", body = OrderBody, headers(
            ("Location" = String, description = "The order"),
            ("Idempotency-Replayed" = String, description = "`true` for a repeat"))),
        (status = 400, description = "`idempotency-key-required`, `malformed`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 401, description = "`unauthorized`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 403, description = "`sale-not-open`, `forbidden`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`purchase-limit`, `request-in-flight`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 410, description = "`sold-out`, `sale-over`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 413, description = "`too-large`: more than 16 KiB", body = ProblemBody, content_type = "application/problem+json"),
        (status = 415, description = "`unsupported-media-type`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 422, description = "`invalid`, `unknown-sku`, `key-reused`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`unavailable`; with `outcome: unknown` the same key tells", body = ProblemBody, content_type = "application/problem+json")))]
pub(super) async fn place(
    State(app): State<Arc<App>>,
    ShopCaller(shop): ShopCaller,
    IdempotencyKey(key): IdempotencyKey,
    headers: HeaderMap,
    JsonBytes(body): JsonBytes<ORDER_BODY_MAX>,
) -> Result<Response, Problem> {
    let draft = OrderDraft::parse(&body)?;
    let request = OrderRequest {
        hold_id: HoldId::derive(shop.as_str(), ROUTE, &key),
        fingerprint: draft.fingerprint(),
        order_id: OrderId::generate(),
        buyer: Buyer {
            shop,
            customer: draft.customer_id,
        },
        lines: draft.lines,
        payment_method: draft.payment_method,
    };
    let traceparent = trace::traceparent(&headers).map(str::to_owned);
    let placed = app.place.place(request, traceparent).await;
    platform::crash_point!(
        "cp8",
        if matches!(placed, Placed::Accepted(_)),
        err => return Err(Problem::outcome_unknown())
    );
    match placed {
        Placed::Accepted(order) => created(&order),
        Placed::Replayed(order) => created(&order.as_of_version_1()).map(replayed),
        Placed::KeyReused => Err(Problem::new(
            Code::KeyReused,
            "the key was used with another body",
        )),
        Placed::InFlight => Err(Problem::new(
            Code::RequestInFlight,
            "a request with this key is being decided at this moment",
        )
        .retry_after(1)),
        Placed::Refused(refused) => Err(refusal(&app, &refused)),
        Placed::Unavailable => Err(Problem::unavailable()),
        Placed::Unknown => Err(Problem::outcome_unknown()),
    }
}

fn created(order: &Order) -> Result<Response, Problem> {
    let mut response = json(StatusCode::CREATED, &OrderBody::from(order));
    let location = format!("/v1/orders/{}", order.id);
    let location = HeaderValue::try_from(location).map_err(|_| Problem::internal())?;
    response.headers_mut().insert(header::LOCATION, location);
    Ok(response)
}

fn refusal(app: &App, refused: &Refused) -> Problem {
    if refused.code == Code::Invalid {
        return Problem::invalid("lines", refused.detail());
    }
    let problem = Problem::new(refused.code, refused.detail());
    match (refused.code, refused.opens_at) {
        (Code::SaleNotOpen, Some(opens_at)) => {
            let now = app.clock.now().unwrap_or_else(clock::now);
            let seconds = (opens_at - now).num_seconds().saturating_add(1);
            problem
                .opens_at(opens_at)
                .retry_after(u64::try_from(seconds).unwrap_or(1))
        }
        (Code::SaleNotOpen, None) => problem.retry_after(1),
        _ => problem,
    }
}

/// Read an order
///
/// With `wait` the answer comes when the order has ended, or after so many seconds.
#[utoipa::path(get, path = "/v1/orders/{id}", tag = "orders",
    security(("shop" = []), ("operator" = [])),
    params(("id" = uuid::Uuid, Path, description = "The order"),
        ("wait" = Option<u8>, Query, description = "Seconds, at most 30")),
    responses(
        (status = 200, description = "The order", body = OrderBody),
        (status = 401, description = "`unauthorized`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`not-found`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 422, description = "`invalid`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`unavailable`", body = ProblemBody, content_type = "application/problem+json")))]
pub(super) async fn read(
    State(app): State<Arc<App>>,
    caller: Caller,
    OrderPath(id): OrderPath,
    Pairs(pairs): Pairs,
) -> Result<Response, Problem> {
    let mut wait = Duration::ZERO;
    for (name, value) in pairs {
        let seconds: Option<u64> = value.parse().ok().filter(|s| *s <= WAIT_MAX_SECONDS);
        match (name.as_str(), seconds) {
            ("wait", Some(seconds)) => wait = Duration::from_secs(seconds),
            ("wait", None) => {
                return Err(Problem::invalid(
                    "wait",
                    format!("must be an integer from 0 to {WAIT_MAX_SECONDS}"),
                ));
            }
            _ => return Err(Problem::invalid(name, "is not known")),
        }
    }
    let found = orders::get(&app.store, id, caller.sees()).await?;
    let order = found.ok_or_else(Problem::not_found)?;
    if order.status.is_end() || wait.is_zero() {
        return Ok(json(StatusCode::OK, &OrderBody::from(&order)));
    }
    let ended = app.watch.ended(id, wait).await;
    let order = match ended {
        Some(order) => order,
        // It may have been extended or ended a moment ago.
        None => orders::get(&app.store, id, caller.sees())
            .await?
            .unwrap_or(order),
    };
    Ok(json(StatusCode::OK, &OrderBody::from(&order)))
}

/// List orders, newest first
#[utoipa::path(get, path = "/v1/orders", tag = "orders",
    security(("shop" = []), ("operator" = [])),
    params(("customer_id" = Option<String>, Query, description = "Only of this customer"),
        ("status" = Option<String>, Query, description = "Only in this status"),
        ("limit" = Option<u16>, Query, description = "1 to 100, 20 when absent"),
        ("starting_after" = Option<uuid::Uuid>, Query, description = "Only older than this order")),
    responses(
        (status = 200, description = "Some orders", body = OrderList),
        (status = 401, description = "`unauthorized`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 422, description = "`invalid`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`unavailable`", body = ProblemBody, content_type = "application/problem+json")))]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Pairs(pairs): Pairs,
) -> Result<Response, Problem> {
    let mut customer = None;
    let mut status = None;
    let mut limit = LIMIT_DEFAULT;
    let mut after = None;
    for (name, value) in pairs {
        match name.as_str() {
            "customer_id" => {
                customer = Some(
                    CustomerId::parse(&value)
                        .map_err(|error| Problem::invalid("customer_id", error.to_string()))?,
                );
            }
            "status" => {
                status = Some(OrderStatus::parse(&value).ok_or_else(|| {
                    Problem::invalid("status", "must be RESERVED, CONFIRMED, CANCELED or EXPIRED")
                })?);
            }
            "limit" => {
                limit = value
                    .parse()
                    .ok()
                    .filter(|n| (1..=LIMIT_MAX).contains(n))
                    .ok_or_else(|| {
                        Problem::invalid("limit", format!("must be from 1 to {LIMIT_MAX}"))
                    })?;
            }
            "starting_after" => {
                after = Some(
                    value
                        .parse::<OrderId>()
                        .map_err(|_| Problem::invalid("starting_after", "must be an order id"))?,
                );
            }
            _ => return Err(Problem::invalid(name, "is not known")),
        }
    }
    let page = orders::list(
        &app.store,
        caller.sees(),
        customer.as_ref(),
        status,
        limit,
        after,
    )
    .await?;
    let list = OrderList {
        data: page.orders.iter().map(OrderBody::from).collect(),
        has_more: page.has_more,
    };
    Ok(json(StatusCode::OK, &list))
}

/// Cancel an order that waits for its payment
///
/// A repeat gets the same answer.
#[utoipa::path(post, path = "/v1/orders/{id}/cancel", tag = "orders",
    security(("shop" = []), ("operator" = [])),
    params(("id" = uuid::Uuid, Path, description = "The order")),
    request_body(content = schema::CancelOrder, content_type = "application/json"),
    responses(
        (status = 200, description = "It is canceled", body = OrderBody),
        (status = 400, description = "`malformed`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 401, description = "`unauthorized`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`not-found`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 409, description = "`already-settled`, with the `state`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 413, description = "`too-large`: more than 1 KiB", body = ProblemBody, content_type = "application/problem+json"),
        (status = 415, description = "`unsupported-media-type`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 422, description = "`invalid`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`unavailable`; the request may be repeated", body = ProblemBody, content_type = "application/problem+json")))]
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller,
    OrderPath(id): OrderPath,
    JsonBytes(body): JsonBytes<BODY_MAX>,
) -> Result<Response, Problem> {
    let reason = parse_cancellation(&body)?;
    let shop = caller.sees().cloned();
    // The unit of work outlives a client that hangs up (P14).
    let work = tokio::spawn(async move {
        cancel_order::cancel(&app.store, &app.sync, id, shop.as_ref(), reason).await
    });
    match work.await.map_err(|_| Problem::internal())?? {
        Canceled::Done(order) => Ok(json(StatusCode::OK, &OrderBody::from(&order))),
        Canceled::AlreadySettled(order) => Err(Problem::new(
            Code::AlreadySettled,
            format!("the order is {} and stays so", order.status),
        )
        .state(order.status.as_str())),
        Canceled::NotFound => Err(Problem::not_found()),
    }
}

/// The story of an order: its changes, payments and events
///
/// Events are those written within 5 s of a change of the order, of a payment or of a refund; `holdfast
/// order timeline` gives all.
#[utoipa::path(get, path = "/v1/orders/{id}/timeline", tag = "orders",
    security(("shop" = []), ("operator" = [])),
    params(("id" = uuid::Uuid, Path, description = "The order")),
    responses(
        (status = 200, description = "Its steps, by time", body = Timeline),
        (status = 401, description = "`unauthorized`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 404, description = "`not-found`", body = ProblemBody, content_type = "application/problem+json"),
        (status = 503, description = "`unavailable`", body = ProblemBody, content_type = "application/problem+json")))]
pub(super) async fn read_timeline(
    State(app): State<Arc<App>>,
    caller: Caller,
    OrderPath(id): OrderPath,
) -> Result<Response, Problem> {
    if orders::get(&app.store, id, caller.sees()).await?.is_none() {
        return Err(Problem::not_found());
    }
    let steps = timeline::of_order(&app.store, id, timeline::Events::Near).await?;
    let timeline = Timeline {
        data: steps.iter().map(StepBody::from).collect(),
    };
    Ok(json(StatusCode::OK, &timeline))
}
