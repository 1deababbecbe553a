//! Parts of a request, each with its bounds: the key, the body, path and query.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Bytes, to_bytes},
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{HeaderMap, header, request::Parts},
};
use contracts::{Code, OrderId, Sku, ids::InvalidId};

use super::{App, problem::Problem};
use crate::key;

/// The greatest body of an order.
pub(crate) const ORDER_BODY_MAX: usize = 16 * 1024;

/// The greatest body of everything else.
pub(crate) const BODY_MAX: usize = 1024;

/// How long a body may take to arrive.
const BODY_WITHIN: Duration = Duration::from_secs(5);

/// The `Idempotency-Key` header, required.
#[derive(Debug)]
pub(crate) struct IdempotencyKey(pub(crate) String);

impl FromRequestParts<Arc<App>> for IdempotencyKey {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        let mut given = parts.headers.get_all("idempotency-key").iter();
        let required = || Problem::new(Code::IdempotencyKeyRequired, key::InvalidKey.to_string());
        let header = given.next().ok_or_else(required)?;
        if given.next().is_some() {
            return Err(required());
        }
        key::parse(header.as_bytes())
            .map(Self)
            .map_err(|_| required())
    }
}

/// A body that claims to be JSON, of at most `MAX` bytes.
#[derive(Debug)]
pub(crate) struct JsonBytes<const MAX: usize>(pub(crate) Bytes);

impl<const MAX: usize> FromRequest<Arc<App>> for JsonBytes<MAX> {
    type Rejection = Problem;
    async fn from_request(request: Request, _: &Arc<App>) -> Result<Self, Problem> {
        if !claims_json(request.headers()) {
            return Err(Problem::new(
                Code::UnsupportedMediaType,
                "send Content-Type: application/json",
            ));
        }
        let too_large = || {
            Problem::new(
                Code::TooLarge,
                format!("the body is larger than {MAX} bytes"),
            )
        };
        let announced = request.headers().get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > MAX as u64) {
            return Err(too_large());
        }
        match tokio::time::timeout(BODY_WITHIN, to_bytes(request.into_body(), MAX)).await {
            Ok(Ok(bytes)) => Ok(Self(bytes)),
            Ok(Err(error)) if is_length_limit(&error) => Err(too_large()),
            Ok(Err(_)) => Err(Problem::new(Code::Malformed, "the body could not be read")),
            Err(_) => Err(Problem::new(
                Code::Malformed,
                "the body took longer than 5 s",
            )),
        }
    }
}

/// Whether the one content type is `application/json`, with UTF-8 or no charset.
fn claims_json(headers: &HeaderMap) -> bool {
    let mut given = headers.get_all(header::CONTENT_TYPE).iter();
    let (Some(value), None) = (given.next(), given.next()) else {
        return false;
    };
    let Ok(value) = value.to_str() else {
        return false;
    };
    let mut parts = value.split(';').map(str::trim);
    parts
        .next()
        .is_some_and(|media| media.eq_ignore_ascii_case("application/json"))
        && parts.all(|parameter| match parameter.split_once('=') {
            Some((name, charset)) if name.eq_ignore_ascii_case("charset") => {
                charset.trim_matches('"').eq_ignore_ascii_case("utf-8")
            }
            _ => true,
        })
}

fn is_length_limit(error: &axum::Error) -> bool {
    std::error::Error::source(error)
        .is_some_and(|source| source.to_string().contains("length limit"))
}

/// The order that the path names; what is no id names none.
#[derive(Debug)]
pub(crate) struct OrderPath(pub(crate) OrderId);

impl FromRequestParts<Arc<App>> for OrderPath {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, app).await;
        let id = path.ok().and_then(|Path(text)| text.parse().ok());
        id.map(Self).ok_or_else(Problem::not_found)
    }
}

/// The SKU that the path names, or why it is none.
#[derive(Debug)]
pub(crate) struct SkuPath(pub(crate) Result<Sku, InvalidId>);

impl FromRequestParts<Arc<App>> for SkuPath {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, app).await;
        let Path(text) = path.map_err(|_| Problem::not_found())?;
        Ok(Self(Sku::parse(&text)))
    }
}

/// The query as pairs, decoded, in order; no name comes twice.
#[derive(Debug)]
pub(crate) struct Pairs(pub(crate) Vec<(String, String)>);

impl FromRequestParts<Arc<App>> for Pairs {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri)
            .map_err(|_| Problem::invalid("query", "can't be read"))?;
        let mut names: Vec<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        match names.windows(2).find(|two| two[0] == two[1]) {
            Some(twice) => Err(Problem::invalid(twice[0], "comes twice")),
            None => Ok(Self(pairs)),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_json_is_json() {
        let claims = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_str(value).unwrap());
            claims_json(&headers)
        };
        for good in [
            "application/json",
            "Application/JSON; charset=UTF-8",
            "application/json;charset=\"utf-8\"",
        ] {
            assert!(claims(good), "{good}");
        }
        for bad in [
            "text/plain",
            "application/json; charset=latin1",
            "application/jsonx",
            "",
            "application/xml",
            "application/problem+json",
        ] {
            assert!(!claims(bad), "{bad}");
        }
        assert!(!claims_json(&HeaderMap::new()));
    }
}
