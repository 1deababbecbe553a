//! The bodies of `POST /v1/orders` and `ORDER_REQUESTED`, and of a cancellation.

use contracts::{CustomerId, Line, PaymentMethod, Quantity, Sku, quantity::canonical_lines};
use sha2::{Digest, Sha256};

use super::{
    BodyError,
    fields::{self, Errors, Fields},
    json::{self, Json},
};

/// The most lines of one order, before lines of one SKU are summed.
pub(crate) const MAX_LINES: usize = 20;

/// An order as it was asked for; its lines are canonical.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrderDraft {
    pub(crate) customer_id: CustomerId,
    pub(crate) lines: Vec<Line>,
    pub(crate) payment_method: PaymentMethod,
}

impl OrderDraft {
    /// Reads a body.
    ///
    /// # Errors
    /// [`BodyError`] with every field that is wrong.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, BodyError> {
        let value = json::parse(body)?;
        let mut errors = Errors::default();
        let draft = read(value, &mut errors);
        errors.finish(draft)
    }

    /// SHA-256 of what was asked for, whatever the order of members and lines, white space, escapes
    /// or lines of one SKU. Parts are length-prefixed, so that no two drafts run into each other.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let mut part = |text: &str| {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text.as_bytes());
        };
        part(self.customer_id.as_str());
        part(self.payment_method.as_str());
        for line in &self.lines {
            part(line.sku.as_str());
        }
        for line in &self.lines {
            hash.update(line.quantity.get().to_be_bytes());
        }
        hash.finalize().into()
    }
}

fn read(value: Json<'_>, errors: &mut Errors) -> Option<OrderDraft> {
    let mut body = Fields::of(value, "body", "", errors)?;
    let customer_id = body.required("customer_id", errors, |value| {
        fields::text(value, CustomerId::parse)
    });
    let lines = body.nested("lines", errors, read_lines);
    let payment_method = body.required("payment_method", errors, |value| {
        fields::text(value, PaymentMethod::parse)
    });
    body.refuse_unknown(errors);
    Some(OrderDraft {
        customer_id: customer_id?,
        lines: lines?,
        payment_method: payment_method?,
    })
}

fn read_lines(value: Json<'_>, errors: &mut Errors) -> Option<Vec<Line>> {
    let Json::Array(items) = value else {
        errors.add("lines", format!("must be an array, not {}", value.kind()));
        return None;
    };
    if !(1..=MAX_LINES).contains(&items.len()) {
        errors.add(
            "lines",
            format!("must have 1 to {MAX_LINES} lines, not {}", items.len()),
        );
        return None;
    }
    let wanted = items.len();
    let lines: Vec<Line> = items
        .into_iter()
        .enumerate()
        .filter_map(|(index, item)| read_line(item, index, errors))
        .collect();
    if lines.len() < wanted {
        return None;
    }
    canonical_lines(lines)
        .map_err(|(sku, error)| errors.add("lines", format!("{sku} in all: {error}")))
        .ok()
}

fn read_line(value: Json<'_>, index: usize, errors: &mut Errors) -> Option<Line> {
    let whole = format!("lines[{index}]");
    let prefix = format!("{whole}.");
    let mut line = Fields::of(value, &whole, &prefix, errors)?;
    let sku = line.required("sku", errors, |value| fields::text(value, Sku::parse));
    let quantity = line.required("quantity", errors, |value| {
        let units = fields::integer(value, 1, i64::from(Quantity::MAX))?;
        Quantity::new(units).map_err(|error| error.to_string().into())
    });
    line.refuse_unknown(errors);
    Some(Line {
        sku: sku?,
        quantity: quantity?,
    })
}

/// Reads the body of a cancellation: the reason.
///
/// # Errors
/// [`BodyError`] with every field that is wrong.
pub(crate) fn parse_cancellation(body: &[u8]) -> Result<String, BodyError> {
    let value = json::parse(body)?;
    let mut errors = Errors::default();
    let reason = Fields::of(value, "body", "", &mut errors).and_then(|mut body| {
        let reason = body.required("reason", &mut errors, fields::reason);
        body.refuse_unknown(&mut errors);
        reason
    });
    errors.finish(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields_of(body: &str) -> Vec<String> {
        match OrderDraft::parse(body.as_bytes()) {
            Ok(draft) => panic!("accepted: {draft:?}"),
            Err(BodyError::Malformed(_)) => vec!["malformed".to_owned()],
            Err(BodyError::Invalid(errors)) => errors.into_iter().map(|e| e.field).collect(),
        }
    }

    fn with_quantity(quantity: &str) -> String {
        format!(
            r#"{{"customer_id":"c-1","lines":[{{"sku":"A","quantity":{quantity}}}],"payment_method":"card"}}"#
        )
    }

    #[test]
    fn every_bad_quantity_names_its_field() {
        for quantity in [
            "0",
            "-1",
            "1001",
            "9223372036854775807",
            "9223372036854775808",
            "99999999999999999999999999",
            "1.0",
            "1.5",
            "1e0",
            "1E2",
            "-0",
            "\"1\"",
            "null",
            "true",
            "[1]",
            "{}",
            "{\"a\":1}",
            "1e400",
            "-1E+999",
            "1.5e9999",
        ] {
            assert_eq!(
                fields_of(&with_quantity(quantity)),
                ["lines[0].quantity"],
                "{quantity}"
            );
        }
        for quantity in [
            "NaN", "Infinity", "01", "+1", "0x10", "", "1_000", "1e", "1e999x",
        ] {
            assert_eq!(
                fields_of(&with_quantity(quantity)),
                ["malformed"],
                "{quantity}"
            );
        }
        assert!(OrderDraft::parse(with_quantity("1").as_bytes()).is_ok());
        assert!(OrderDraft::parse(with_quantity("1000").as_bytes()).is_ok());
    }

    #[test]
    fn every_bad_body_names_what_is_wrong() {
        let line = r#"{"sku":"A","quantity":1}"#;
        let many = vec![line; 21].join(",");
        let table = [
            ("", vec!["malformed"]),
            ("{", vec!["malformed"]),
            ("{} {}", vec!["malformed"]),
            ("null", vec!["body"]),
            ("[]", vec!["body"]),
            ("\"x\"", vec!["body"]),
            ("{}", vec!["customer_id", "lines", "payment_method"]),
            (
                r#"{"customer_id":null,"lines":null,"payment_method":7}"#,
                vec!["customer_id", "lines", "payment_method"],
            ),
            (
                r#"{"customer_id":"","lines":[],"payment_method":"CARD"}"#,
                vec!["customer_id", "lines", "payment_method"],
            ),
            (
                r#"{"customer_id":"a\u0000b","lines":[{"sku":"A\n","quantity":1}],"payment_method":"card"}"#,
                vec!["customer_id", "lines[0].sku"],
            ),
            (
                r#"{"customer_id":"c","lines":[{"sku":"A"},{"quantity":1},{"sku":"a","quantity":0},7],"payment_method":"card"}"#,
                vec![
                    "lines[0].quantity",
                    "lines[1].sku",
                    "lines[2].sku",
                    "lines[2].quantity",
                    "lines[3]",
                ],
            ),
            (
                r#"{"customer_id":"c","lines":[{"sku":"A","quantity":1,"price":1}],"payment_method":"card","total":1,"coupon_id":"x"}"#,
                vec!["lines[0].price", "coupon_id", "total"],
            ),
            (
                r#"{"customer_id":"c","lines":[{"sku":"A","quantity":600},{"sku":"A","quantity":401}],"payment_method":"card"}"#,
                vec!["lines"],
            ),
            (
                r#"{"customer_id":"c","customer_id":"d","lines":[],"payment_method":"card"}"#,
                vec!["malformed"],
            ),
        ];
        for (body, wanted) in table {
            let mut found = fields_of(body);
            if wanted.first() != Some(&"customer_id") && !body.contains("coupon") {
                assert_eq!(found, wanted, "{body}");
            }
            found.sort();
            let mut wanted: Vec<_> = wanted.into_iter().map(str::to_owned).collect();
            wanted.sort();
            assert_eq!(found, wanted, "{body}");
        }
        let too_many = format!(r#"{{"customer_id":"c","lines":[{many}],"payment_method":"card"}}"#);
        assert_eq!(fields_of(&too_many), ["lines"]);
    }

    #[test]
    fn deep_nesting_and_foreign_bytes_are_malformed() {
        let deep = format!("{}{}", "[".repeat(9), "]".repeat(9));
        assert_eq!(fields_of(&deep), ["malformed"]);
        let very_deep = "[".repeat(15_000);
        assert_eq!(fields_of(&very_deep), ["malformed"]);
        assert!(matches!(
            OrderDraft::parse(b"{\"customer_id\":\"\xff\"}"),
            Err(BodyError::Malformed(_))
        ));
        assert!(matches!(
            OrderDraft::parse(b"{\"customer_id\":\"\x01\"}"),
            Err(BodyError::Malformed(_))
        ));
    }

    #[test]
    fn the_fingerprint_is_of_the_meaning() {
        let print = |body: &str| OrderDraft::parse(body.as_bytes()).unwrap().fingerprint();
        let one = print(
            r#"{"customer_id":"c","lines":[{"sku":"B","quantity":2},{"sku":"A","quantity":1}],"payment_method":"card"}"#,
        );
        let same = print(
            "{ \"payment_method\":\"c\\u0061rd\",\n\"lines\":[{\"quantity\":1,\"sku\":\"A\"},{\"sku\":\"B\",\"quantity\":1},{\"sku\":\"B\",\"quantity\":1}], \"customer_id\":\"c\" }",
        );
        assert_eq!(one, same);
        for other in [
            r#"{"customer_id":"d","lines":[{"sku":"B","quantity":2},{"sku":"A","quantity":1}],"payment_method":"card"}"#,
            r#"{"customer_id":"c","lines":[{"sku":"B","quantity":1},{"sku":"A","quantity":2}],"payment_method":"card"}"#,
            r#"{"customer_id":"c","lines":[{"sku":"B","quantity":2}],"payment_method":"card"}"#,
            r#"{"customer_id":"c","lines":[{"sku":"B","quantity":2},{"sku":"A","quantity":1}],"payment_method":"cash"}"#,
        ] {
            assert_ne!(one, print(other), "{other}");
        }
    }

    #[test]
    fn a_cancellation_needs_its_reason() {
        assert_eq!(
            parse_cancellation(br#"{"reason":"changed my mind"}"#).unwrap(),
            "changed my mind"
        );
        for bad in [
            r#"{}"#,
            r#"{"reason":""}"#,
            r#"{"reason":"a\u0007"}"#,
            r#"{"reason":"x","y":1}"#,
        ] {
            assert!(
                matches!(
                    parse_cancellation(bad.as_bytes()),
                    Err(BodyError::Invalid(_))
                ),
                "{bad}"
            );
        }
    }
}
