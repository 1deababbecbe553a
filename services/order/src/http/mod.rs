//! The HTTP edge: the only part that knows statuses, headers and media types.

mod answers;
mod auth;
mod extract;
mod orders;
pub(crate) mod problem;
mod schema;
pub(crate) mod serve;
mod skus;
mod slow;
#[cfg(test)]
mod tests;
mod trace;

use std::sync::Arc;

use axum::{Router, http::header, middleware, response::IntoResponse, routing::get};
use contracts::Code;
use platform::Ops;
use store::{PgClock, Store, StoreError};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::{
    Modify, OpenApi,
    openapi::security::{Http, HttpAuthScheme, SecurityScheme},
};
use utoipa_axum::{router::OpenApiRouter, routes};
use utoipa_swagger_ui::SwaggerUi;

pub(crate) use auth::Keys;
use problem::Problem;
pub(crate) use slow::PerAddress;

use crate::{
    catalogue::Catalogue, place_orders::PlaceOrders, sync_gate::SyncGate, watch_orders::WatchOrders,
};

/// What the handlers work with.
pub(crate) struct App {
    pub(crate) keys: Keys,
    pub(crate) store: Store,
    pub(crate) clock: PgClock,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) place: PlaceOrders,
    pub(crate) sync: SyncGate,
    pub(crate) watch: WatchOrders,
    /// Of SKUs that do not say.
    pub(crate) ttl_seconds: i32,
}

/// The document's head; paths and schemas come from the handlers.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Holdfast orders",
        description = "Places orders that hold their units, and administers stock. Errors are \
                       problem details (RFC 9457) with a stable `code`.",
        license(name = "Apache-2.0")
    ),
    modifiers(&Security),
    tags(
        (name = "orders", description = "Orders of a shop's customers"),
        (name = "skus", description = "Catalogue and stock")
    )
)]
struct Document;

struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        for role in ["shop", "operator"] {
            let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
            components.add_security_scheme(role, bearer);
        }
    }
}

/// The routes of the contract and their document, which are made together.
fn api() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(orders::place, orders::list))
        .routes(routes!(orders::read))
        .routes(routes!(orders::cancel))
        .routes(routes!(orders::read_timeline))
        .routes(routes!(skus::put, skus::read))
        .routes(routes!(skus::adjust))
}

/// Everything that is served.
pub(crate) fn router(app: Arc<App>, ops: &Ops) -> Router {
    let (api, document) = api().split_for_parts();
    api.with_state(app)
        .merge(ops.router())
        .merge(SwaggerUi::new("/docs").url("/openapi.json", document))
        .route("/asyncapi.yaml", get(asyncapi))
        .fallback(async || Problem::not_found())
        .method_not_allowed_fallback(async || {
            Problem::new(Code::MethodNotAllowed, "this path does not know the method")
        })
        .layer(CatchPanicLayer::custom(
            |_: Box<dyn std::any::Any + Send>| {
                tracing::error!("a handler panicked");
                Problem::internal().into_response()
            },
        ))
        .layer(middleware::from_fn(trace::edge))
}

async fn asyncapi() -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, "application/yaml")],
        include_str!("../../../../docs/asyncapi.yaml"),
    )
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let cause = &error as &dyn std::error::Error;
        if error.is_unknown_outcome() {
            tracing::warn!(error = cause, "a request has an unknown outcome");
            Self::outcome_unknown()
        } else if matches!(error, StoreError::Away) {
            // Said once, by the mode.
            Self::unavailable()
        } else if error.is_transient() {
            tracing::warn!(error = cause, "a request met a database that is away");
            Self::unavailable()
        } else {
            tracing::error!(error = cause, "a request failed");
            Self::unavailable()
        }
    }
}
