//! Quantities, money and lines: integers within bounds, and nothing else.

use std::collections::BTreeMap;

use contracts::{Currency, Line, Money, Quantity, Sku, quantity::canonical_lines};
use proptest::prelude::*;

fn quantity(json: &str) -> Option<u16> {
    serde_json::from_str::<Quantity>(json)
        .ok()
        .map(Quantity::get)
}

fn amount(json: &str) -> Option<i64> {
    let json = format!(r#"{{"amount_minor":{json},"currency":"KRW"}}"#);
    serde_json::from_str::<Money>(&json)
        .ok()
        .map(|money| money.amount_minor)
}

fn krw(amount_minor: i64) -> Money {
    Money::new(amount_minor, Currency::parse("KRW").expect("a currency")).expect("an amount")
}

/// What no number of ours may be written as.
const NOT_INTEGERS: [&str; 24] = [
    "1.0",
    "1.5",
    "1e0",
    "1e3",
    "1E2",
    "0x10",
    "01",
    "+1",
    "-0.0",
    "\"1\"",
    "\"\"",
    "null",
    "true",
    "[]",
    "[1]",
    "{}",
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "9223372036854775808",
    "18446744073709551616",
    "99999999999999999999999999",
    "",
];

#[test]
fn a_quantity_is_an_integer_from_1_to_1000() {
    for text in NOT_INTEGERS {
        assert_eq!(quantity(text), None, "{text:?}");
    }
    for text in [
        "0",
        "-0",
        "-1",
        "1001",
        "65536",
        "65537",
        "9007199254740992",
    ] {
        assert_eq!(quantity(text), None, "{text}");
    }
    for (text, units) in [("1", 1), ("2", 2), ("1000", 1000)] {
        assert_eq!(quantity(text), Some(units));
    }
}

#[test]
fn an_amount_is_an_integer_from_0_to_the_last_exact_double() {
    for text in NOT_INTEGERS {
        assert_eq!(amount(text), None, "{text:?}");
    }
    for text in [
        "-1",
        "9007199254740992",
        "9007199254740993",
        "9223372036854775807",
    ] {
        assert_eq!(amount(text), None, "{text}");
    }
    for (text, minor) in [("0", 0), ("1", 1), ("9007199254740991", Money::MAX)] {
        assert_eq!(amount(text), Some(minor));
    }
}

#[test]
fn money_needs_both_its_parts() {
    for text in [
        r#"{"amount_minor":1}"#,
        r#"{"currency":"KRW"}"#,
        r#"{"amount_minor":1,"currency":"krw"}"#,
        r#"{"amount_minor":1,"currency":"KRWX"}"#,
        r#"{"amount_minor":1,"currency":"K\u0000W"}"#,
        r#"{"amount_minor":1,"currency":"₩"}"#,
        r#"{"amount_minor":1,"currency":null}"#,
        r#"{"amount_minor":1,"amount_minor":2,"currency":"KRW"}"#,
        "1",
        "\"1 KRW\"",
    ] {
        assert!(serde_json::from_str::<Money>(text).is_err(), "{text}");
    }
}

#[test]
fn money_is_written_as_it_is_read() {
    let text = serde_json::to_string(&krw(12_900)).expect("JSON");
    assert_eq!(text, r#"{"amount_minor":12900,"currency":"KRW"}"#);
}

#[test]
fn sums_beyond_the_range_or_across_currencies_are_none() {
    let usd = Money::new(1, Currency::parse("USD").expect("a currency")).expect("an amount");
    assert_eq!(krw(1).plus(usd), None);
    assert_eq!(krw(Money::MAX).plus(krw(1)), None);
    assert_eq!(krw(Money::MAX).times(Quantity::new(2).expect("two")), None);
    assert_eq!(krw(Money::MAX - 1).plus(krw(1)), Some(krw(Money::MAX)));
}

#[test]
fn a_line_has_no_other_fields() {
    let line = r#"{"sku":"SKU-1","quantity":2,"unit_price":1}"#;
    assert!(serde_json::from_str::<Line>(line).is_err());
}

fn line() -> impl Strategy<Value = Line> {
    ("[A-C]", 1_i64..=600).prop_map(|(sku, units)| Line {
        sku: Sku::parse(&sku).expect("a SKU"),
        quantity: Quantity::new(units).expect("a quantity"),
    })
}

proptest! {
    #[test]
    fn any_integer_is_a_quantity_within_its_bounds_only(units in any::<i64>()) {
        prop_assert_eq!(Quantity::new(units).is_ok(), (1..=1_000).contains(&units));
        prop_assert_eq!(quantity(&units.to_string()).is_some(), (1..=1_000).contains(&units));
    }

    #[test]
    fn any_float_is_refused(number in any::<f64>()) {
        // Debug always writes a point or an exponent.
        let text = format!("{number:?}");
        prop_assert_eq!(quantity(&text), None);
        prop_assert_eq!(amount(&text), None);
    }

    #[test]
    fn any_integer_is_an_amount_within_its_bounds_only(minor in any::<i64>()) {
        let valid = (0..1_i64 << 53).contains(&minor);
        prop_assert_eq!(amount(&minor.to_string()).is_some(), valid);
    }

    #[test]
    fn money_is_multiplied_exactly_or_not_at_all(minor in 0..=Money::MAX, units in 1_i64..=1_000) {
        let product = i128::from(minor) * i128::from(units);
        let times = krw(minor).times(Quantity::new(units).expect("a quantity"));
        match i64::try_from(product) {
            Ok(product) if product <= Money::MAX => prop_assert_eq!(times, Some(krw(product))),
            _ => prop_assert_eq!(times, None),
        }
    }

    #[test]
    fn canonical_lines_are_sorted_summed_and_lose_no_unit(
        lines in proptest::collection::vec(line(), 0..8),
    ) {
        let mut sums: BTreeMap<Sku, i64> = BTreeMap::new();
        for line in &lines {
            *sums.entry(line.sku.clone()).or_default() += i64::from(line.quantity.get());
        }
        match canonical_lines(lines) {
            Ok(canonical) => {
                prop_assert!(canonical.windows(2).all(|pair| pair[0].sku < pair[1].sku));
                let found: BTreeMap<Sku, i64> = canonical
                    .into_iter()
                    .map(|line| (line.sku, i64::from(line.quantity.get())))
                    .collect();
                prop_assert_eq!(found, sums);
            }
            Err((sku, _)) => prop_assert!(sums[&sku] > i64::from(Quantity::MAX)),
        }
    }

    #[test]
    fn the_order_of_lines_does_not_matter(
        (lines, shuffled) in proptest::collection::vec(line(), 0..8)
            .prop_flat_map(|lines| (Just(lines.clone()), Just(lines).prop_shuffle())),
    ) {
        prop_assert_eq!(canonical_lines(lines).ok(), canonical_lines(shuffled).ok());
    }
}
