//! The body of `PUT /v1/skus/{sku}`.

use contracts::{Currency, Money, Timestamp};
use domain::deadline::TTL_SECONDS;

use super::{
    BodyError,
    adjustment::MAX_UNITS,
    fields::{self, Detail, Errors, Fields},
    json::{self, Json},
};

/// Whether a sale has a queue before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitingRoom {
    Off,
    On,
    Auto,
}

impl WaitingRoom {
    /// The word in the API and the database.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Auto => "auto",
        }
    }
}

/// A SKU as the operator describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkuDraft {
    /// Counts only when the SKU is new.
    pub(crate) on_hand: Option<i64>,
    pub(crate) unit_price: Money,
    pub(crate) per_customer_limit: Option<i32>,
    pub(crate) opens_at: Option<Timestamp>,
    pub(crate) closes_at: Option<Timestamp>,
    pub(crate) reservation_ttl_seconds: i32,
    pub(crate) waiting_room: WaitingRoom,
}

impl SkuDraft {
    /// Reads a body; `ttl_seconds` is what holds when it says nothing.
    ///
    /// # Errors
    /// [`BodyError`] with every field that is wrong.
    pub(crate) fn parse(body: &[u8], ttl_seconds: i32) -> Result<Self, BodyError> {
        let value = json::parse(body)?;
        let mut errors = Errors::default();
        let draft = read(value, ttl_seconds, &mut errors);
        errors.finish(draft)
    }
}

fn read(value: Json<'_>, ttl_seconds: i32, errors: &mut Errors) -> Option<SkuDraft> {
    let mut body = Fields::of(value, "body", "", errors)?;
    let on_hand = body.optional("on_hand", errors, |v| fields::integer(v, 0, MAX_UNITS));
    let unit_price = body.nested("unit_price", errors, read_price);
    let limit = body.optional("per_customer_limit", errors, |v| small(v, 1, i32::MAX));
    let opens_at = body.optional("opens_at", errors, instant);
    let closes_at = body.optional("closes_at", errors, instant);
    let ttl = body.optional("reservation_ttl_seconds", errors, |v| {
        small(v, *TTL_SECONDS.start(), *TTL_SECONDS.end())
    });
    let waiting_room = body.optional("waiting_room", errors, read_waiting_room);
    body.refuse_unknown(errors);
    if let (Some(Some(opens_at)), Some(Some(closes_at))) = (opens_at, closes_at)
        && opens_at >= closes_at
    {
        errors.add("closes_at", "must be later than opens_at");
    }
    Some(SkuDraft {
        on_hand: on_hand?,
        unit_price: unit_price?,
        per_customer_limit: limit?,
        opens_at: opens_at?,
        closes_at: closes_at?,
        reservation_ttl_seconds: ttl?.unwrap_or(ttl_seconds),
        waiting_room: waiting_room?.unwrap_or(WaitingRoom::Off),
    })
}

fn read_price(value: Json<'_>, errors: &mut Errors) -> Option<Money> {
    let mut price = Fields::of(value, "unit_price", "unit_price.", errors)?;
    let amount = price.required("amount_minor", errors, |v| {
        fields::integer(v, 0, Money::MAX)
    });
    let currency = price.required("currency", errors, |v| fields::text(v, Currency::parse));
    price.refuse_unknown(errors);
    Money::new(amount?, currency?).ok()
}

fn small(value: Json<'_>, min: i32, max: i32) -> Result<i32, Detail> {
    let number = fields::integer(value, i64::from(min), i64::from(max))?;
    i32::try_from(number).map_err(|error| error.to_string().into())
}

fn instant(value: Json<'_>) -> Result<Timestamp, Detail> {
    fields::text(value, |text| {
        chrono::DateTime::parse_from_rfc3339(text)
            .map(|at| at.with_timezone(&chrono::Utc))
            .map_err(|_| "must be a date and time as in RFC 3339")
    })
}

fn read_waiting_room(value: Json<'_>) -> Result<WaitingRoom, Detail> {
    fields::text(value, |text| match text {
        "off" => Ok(WaitingRoom::Off),
        "on" => Ok(WaitingRoom::On),
        "auto" => Ok(WaitingRoom::Auto),
        _ => Err("must be off, on or auto"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_sku_is_read() {
        let body = br#"{"on_hand":100,"unit_price":{"amount_minor":12900,"currency":"KRW"},"per_customer_limit":2,"opens_at":null,"closes_at":null,"reservation_ttl_seconds":600,"waiting_room":"off"}"#;
        let draft = SkuDraft::parse(body, 30).unwrap();
        assert_eq!(draft.on_hand, Some(100));
        assert_eq!(draft.per_customer_limit, Some(2));
        assert_eq!(draft.reservation_ttl_seconds, 600);
        let short = br#"{"on_hand":0,"unit_price":{"amount_minor":0,"currency":"EUR"}}"#;
        assert_eq!(
            SkuDraft::parse(short, 30).unwrap().reservation_ttl_seconds,
            30
        );
    }

    #[test]
    fn every_bad_sku_names_its_field() {
        let table: [(&str, &[&str]); 13] = [
            (r#"{}"#, &["unit_price"]),
            (r#"{"unit_price":7}"#, &["unit_price"]),
            (
                r#"{"unit_price":{"amount_minor":1.5,"currency":"krw","vat":1}}"#,
                &[
                    "unit_price.amount_minor",
                    "unit_price.currency",
                    "unit_price.vat",
                ],
            ),
            (
                r#"{"on_hand":-1,"unit_price":{"amount_minor":1,"currency":"KRW"}}"#,
                &["on_hand"],
            ),
            (
                r#"{"on_hand":1e3,"unit_price":{"amount_minor":1,"currency":"KRW"}}"#,
                &["on_hand"],
            ),
            (
                r#"{"on_hand":1000000000001,"unit_price":{"amount_minor":1,"currency":"KRW"}}"#,
                &["on_hand"],
            ),
            (
                r#"{"unit_price":{"amount_minor":9007199254740992,"currency":"KRW"}}"#,
                &["unit_price.amount_minor"],
            ),
            (
                r#"{"per_customer_limit":0,"unit_price":{"amount_minor":1,"currency":"KRW"}}"#,
                &["per_customer_limit"],
            ),
            (
                r#"{"reservation_ttl_seconds":0,"unit_price":{"amount_minor":1,"currency":"KRW"}}"#,
                &["reservation_ttl_seconds"],
            ),
            (
                r#"{"opens_at":"tomorrow","unit_price":{"amount_minor":1,"currency":"KRW"}}"#,
                &["opens_at"],
            ),
            (
                r#"{"opens_at":"2026-01-02T00:00:00Z","closes_at":"2026-01-02T00:00:00Z","unit_price":{"amount_minor":1,"currency":"KRW"}}"#,
                &["closes_at"],
            ),
            (
                r#"{"waiting_room":"maybe","unit_price":{"amount_minor":1,"currency":"KRW"}}"#,
                &["waiting_room"],
            ),
            (
                r#"{"held":1,"unit_price":{"amount_minor":1,"currency":"KRW"}}"#,
                &["held"],
            ),
        ];
        for (body, wanted) in table {
            let Err(BodyError::Invalid(errors)) = SkuDraft::parse(body.as_bytes(), 600) else {
                panic!("{body}");
            };
            let found: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(found, wanted, "{body}");
        }
    }
}
