//! Bodies as the API document shows them. They are read by [`crate::parse`], which names every rule
//! that is broken; these types serve the document alone, and a test holds the two together.

use serde::Deserialize;
use utoipa::ToSchema;

/// An order that is asked for.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "for the API document")]
pub(super) struct PlaceOrder {
    #[schema(pattern = "^[A-Za-z0-9_.:@+-]{1,64}$", example = "c-42")]
    customer_id: String,
    /// Lines of one SKU are summed
    #[schema(min_items = 1, max_items = 20)]
    lines: Vec<PlaceOrderLine>,
    #[schema(pattern = "^[a-z0-9_-]{1,32}$", example = "card")]
    payment_method: String,
}

/// A line of it.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "for the API document")]
pub(super) struct PlaceOrderLine {
    #[schema(pattern = "^[A-Z0-9_-]{1,32}$", example = "SKU-1")]
    sku: String,
    #[schema(minimum = 1, maximum = 1000, example = 2)]
    quantity: u16,
}

/// Why an order is canceled.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "for the API document")]
pub(super) struct CancelOrder {
    #[schema(
        min_length = 1,
        max_length = 200,
        example = "the buyer changed their mind"
    )]
    reason: String,
}

/// A SKU as it is to be.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "for the API document")]
pub(super) struct PutSku {
    /// Required when the SKU is new, of no effect later
    #[schema(minimum = 0, maximum = 1_000_000_000_000_i64, example = 100)]
    on_hand: Option<i64>,
    unit_price: Price,
    /// The most units that one customer of one shop may hold and own
    #[schema(minimum = 1, example = 2)]
    per_customer_limit: Option<i32>,
    #[schema(value_type = Option<String>, format = DateTime)]
    opens_at: Option<String>,
    /// Later than `opens_at`
    #[schema(value_type = Option<String>, format = DateTime)]
    closes_at: Option<String>,
    #[schema(minimum = 1, maximum = 86_400, example = 600)]
    reservation_ttl_seconds: Option<i32>,
    /// off, on or auto
    #[schema(pattern = "^(off|on|auto)$", example = "off")]
    waiting_room: Option<String>,
}

/// The price of one unit.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "for the API document")]
pub(super) struct Price {
    /// In the currency's minor unit: cents, whole won
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64, example = 12_900)]
    amount_minor: i64,
    /// ISO 4217
    #[schema(pattern = "^[A-Z]{3}$", example = "KRW")]
    currency: String,
}

/// Units received (positive) or written off (negative).
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "for the API document")]
pub(super) struct AdjustStock {
    /// Not 0
    #[schema(minimum = -1_000_000_000_000_i64, maximum = 1_000_000_000_000_i64, example = 500)]
    delta: i64,
    #[schema(min_length = 1, max_length = 200, example = "restock")]
    reason: String,
}
