//! Who calls: a key in `Authorization: Bearer KEY`. Keys are compared by their digests, in
//! constant time, each with each.

use std::sync::Arc;

use axum::{
    extract::FromRequestParts,
    http::{header, request::Parts},
};
use contracts::{Code, Shop};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::{App, problem::Problem};

/// What a key may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Role {
    /// Places orders for its customers and sees only those.
    Shop(Shop),
    /// Administers SKUs and stock, and reads every order.
    Operator,
}

/// The keys that are known.
#[derive(Debug)]
pub(crate) struct Keys {
    known: Vec<([u8; 32], Role)>,
}

impl Keys {
    pub(crate) fn new(shop: Shop, shop_key: &SecretString, operator_key: &SecretString) -> Self {
        let digest = |key: &SecretString| Sha256::digest(key.expose_secret().as_bytes()).into();
        Self {
            known: vec![
                (digest(shop_key), Role::Shop(shop)),
                (digest(operator_key), Role::Operator),
            ],
        }
    }

    fn role(&self, key: &[u8]) -> Option<&Role> {
        let digest: [u8; 32] = Sha256::digest(key).into();
        let mut found = None;
        for (known, role) in &self.known {
            let same: Choice = known.ct_eq(&digest);
            if bool::from(same) {
                found = Some(role);
            }
        }
        found
    }

    fn authenticate(&self, parts: &Parts) -> Result<Role, Problem> {
        let header = parts.headers.get(header::AUTHORIZATION);
        let key = header
            .map(axum::http::HeaderValue::as_bytes)
            .and_then(bearer);
        key.and_then(|key| self.role(key)).cloned().ok_or_else(|| {
            Problem::new(
                Code::Unauthorized,
                "send a known key as Authorization: Bearer KEY",
            )
        })
    }
}

/// The token after the scheme, whose name is case-insensitive.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"Bearer ")
        .then(|| token.trim_ascii())
        .filter(|t| !t.is_empty())
}

/// Anyone with a known key.
#[derive(Debug)]
pub(crate) struct Caller(pub(crate) Role);

/// A shop.
#[derive(Debug)]
pub(crate) struct ShopCaller(pub(crate) Shop);

/// An operator.
#[derive(Debug)]
pub(crate) struct OperatorCaller;

impl Caller {
    /// The shop whose orders the caller sees; `None` is all.
    pub(crate) fn sees(&self) -> Option<&Shop> {
        match &self.0 {
            Role::Shop(shop) => Some(shop),
            Role::Operator => None,
        }
    }
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        app.keys.authenticate(parts).map(Self)
    }
}

impl FromRequestParts<Arc<App>> for ShopCaller {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        match app.keys.authenticate(parts)? {
            Role::Shop(shop) => Ok(Self(shop)),
            Role::Operator => Err(Problem::new(Code::Forbidden, "only a shop may do this")),
        }
    }
}

impl FromRequestParts<Arc<App>> for OperatorCaller {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        match app.keys.authenticate(parts)? {
            Role::Operator => Ok(Self),
            Role::Shop(_) => Err(Problem::new(
                Code::Forbidden,
                "only an operator may do this",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_keys_have_a_role() {
        let shop = Shop::parse("shop").unwrap();
        let keys = Keys::new(
            shop.clone(),
            &"one".to_owned().into(),
            &"two".to_owned().into(),
        );
        let ask = |header: Option<&str>| {
            let mut request = axum::http::Request::new(());
            if let Some(header) = header {
                request
                    .headers_mut()
                    .insert(header::AUTHORIZATION, header.parse().unwrap());
            }
            keys.authenticate(&request.into_parts().0).ok()
        };
        assert_eq!(ask(Some("Bearer one")), Some(Role::Shop(shop.clone())));
        assert_eq!(ask(Some("bearer  one ")), Some(Role::Shop(shop)));
        assert_eq!(ask(Some("Bearer two")), Some(Role::Operator));
        for bad in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer on",
            "Bearer onee",
            "Basic one",
            "one",
            "Bearer one two",
        ] {
            assert_eq!(ask(Some(bad)), None, "{bad:?}");
        }
        assert_eq!(ask(None), None);
    }
}
