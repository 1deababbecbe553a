//! Identifiers: what they accept, and that a retry is the same hold.

use std::collections::BTreeMap;

use contracts::{
    Code, ConsumerName, CustomerId, HoldId, OrderId, PaymentId, PaymentMethod, RefundKey, Shop,
    Sku, Topic, TopicNames,
};
use proptest::prelude::*;
use serde::{Serialize, de::DeserializeOwned};

fn json<T: Serialize + DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).ok()
}

/// Every way to make an id agrees about a text, and gives the text back.
macro_rules! agrees {
    ($kind:ty, $text:expr, $valid:expr) => {{
        let text: &str = $text;
        let parsed = <$kind>::parse(text).ok();
        assert_eq!(parsed.is_some(), $valid, "{}: {text:?}", stringify!($kind));
        assert_eq!(json::<$kind>(text), parsed);
        assert_eq!(text.parse::<$kind>().ok(), parsed);
        if let Some(id) = parsed {
            assert_eq!(id.as_str(), text);
            assert_eq!(id.to_string(), text);
            assert_eq!(serde_json::to_value(&id).expect("a string"), text);
        }
    }};
}

#[test]
fn ids_have_a_length_and_an_alphabet() {
    agrees!(Sku, "SKU-1", true);
    agrees!(Sku, &"A".repeat(32), true);
    agrees!(Sku, &"A".repeat(33), false);
    agrees!(Sku, "sku-1", false);
    agrees!(Sku, "SKU 1", false);
    agrees!(Sku, "{SKU}", false);
    agrees!(CustomerId, "c-42", true);
    agrees!(CustomerId, "ann@shop.example", true);
    agrees!(CustomerId, &"c".repeat(64), true);
    agrees!(CustomerId, &"c".repeat(65), false);
    agrees!(CustomerId, "c/42", false);
    agrees!(CustomerId, "c\u{0}42", false);
    agrees!(CustomerId, "손님", false);
    agrees!(Shop, "shop-1", true);
    agrees!(Shop, "Shop", false);
    agrees!(Shop, "shop/1", false);
    agrees!(PaymentId, "pay_1:2.3-x", true);
    agrees!(PaymentId, "pay 1", false);
    agrees!(PaymentId, &"p".repeat(65), false);
    agrees!(RefundKey, &"r".repeat(80), true);
    agrees!(RefundKey, &"r".repeat(81), false);
    agrees!(PaymentMethod, "bank_transfer", true);
    agrees!(PaymentMethod, "Card", false);
    agrees!(Sku, "", false);
    agrees!(CustomerId, "", false);
    agrees!(Shop, "", false);
    agrees!(PaymentId, "", false);
    agrees!(RefundKey, "", false);
    agrees!(PaymentMethod, "", false);
}

#[test]
fn an_id_is_never_a_number_or_null() {
    for text in ["42", "null", "true", "[]", "{}"] {
        assert!(serde_json::from_str::<Sku>(text).is_err(), "{text}");
        assert!(serde_json::from_str::<OrderId>(text).is_err(), "{text}");
    }
}

#[test]
fn an_invalid_id_says_which_rule_it_breaks() {
    let error = Sku::parse("sku").expect_err("lower case");
    assert_eq!(
        error.to_string(),
        "sku must be 1 to 32 characters out of A-Z 0-9 _ -"
    );
}

#[test]
fn the_refund_key_of_the_longest_payment_id_is_valid() {
    let payment = PaymentId::parse(&"p".repeat(64)).expect("the longest");
    let key = RefundKey::of(&payment);
    assert_eq!(RefundKey::parse(key.as_str()), Ok(key));
}

#[test]
fn a_hold_id_is_the_same_for_ever() {
    // Rows of running systems are keyed by these. Computed apart from this code, as the first 16
    // bytes of SHA-256 over (length as 8 bytes big-endian, text) of each part, marked version 8.
    let table = [
        (
            ("shop-1", "POST /v1/orders", "key-1"),
            "31fe2d17-59ef-82ae-befd-f2bb1fe58f2c",
        ),
        (("", "", ""), "9d908ecf-b6b2-86de-b8b4-9a7c504e6c88"),
    ];
    for ((scope, route, key), id) in table {
        assert_eq!(HoldId::derive(scope, route, key).to_string(), id);
    }
}

#[test]
fn parts_of_a_hold_id_do_not_run_into_each_other() {
    let parts = [
        "", "a", "b", "ab", "ba", "aa", "a\0", "\0a", "aab", "1", "\u{1}",
    ];
    let mut seen = BTreeMap::new();
    for scope in parts {
        for route in parts {
            for key in parts {
                let before = seen.insert(HoldId::derive(scope, route, key), (scope, route, key));
                assert_eq!(before, None, "{:?}", (scope, route, key));
            }
        }
    }
}

#[test]
fn order_ids_grow_with_time() {
    let ids: Vec<OrderId> = (0..1_000).map(|_| OrderId::generate()).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(ids.iter().all(|id| id.0.get_version_num() == 7));
}

#[test]
fn slugs_are_unique_and_found_again() {
    for code in Code::ALL {
        assert_eq!(Code::parse(code.as_str()), Some(*code));
        assert_eq!(serde_json::to_value(code).expect("a slug"), code.as_str());
        assert_eq!(json::<Code>(code.as_str()), Some(*code));
    }
    assert_eq!(Code::parse("no-such-slug"), None);
}

#[test]
fn names_of_topics_and_groups_are_those_of_the_contract() {
    let topics = Topic::ALL.map(Topic::as_str);
    assert_eq!(
        topics,
        [
            "orders.v1",
            "payments.v1",
            "stock.v1",
            "coupons.v1",
            "orders.requests.v1"
        ]
    );
    let groups = ConsumerName::ALL.map(ConsumerName::group);
    assert_eq!(
        groups,
        ["holdfast.order", "holdfast.payment", "holdfast.stock"]
    );
    let dlqs = ConsumerName::ALL.map(ConsumerName::dlq);
    assert_eq!(
        dlqs,
        [
            "orders.requests.v1.holdfast.order.dlq",
            "orders.v1.holdfast.payment.dlq",
            "payments.v1.holdfast.stock.dlq",
        ]
    );
}

#[test]
fn a_suffix_sets_one_test_run_apart_from_another() {
    let names = TopicNames::new(".t7");
    assert_eq!(names.topic(Topic::Orders), "orders.v1.t7");
    assert_eq!(names.group(ConsumerName::Stock), "holdfast.stock.t7");
    assert_eq!(
        names.dlq(ConsumerName::Stock),
        "payments.v1.holdfast.stock.dlq.t7"
    );
    assert_eq!(TopicNames::default().topic(Topic::Orders), "orders.v1");
}

proptest! {
    #[test]
    fn any_text_is_an_id_or_refused_the_same_way_everywhere(text in ".{0,100}") {
        agrees!(Sku, &text, Sku::parse(&text).is_ok());
        agrees!(CustomerId, &text, CustomerId::parse(&text).is_ok());
        agrees!(PaymentId, &text, PaymentId::parse(&text).is_ok());
    }

    #[test]
    fn texts_of_the_schema_patterns_are_ids(
        sku in "[A-Z0-9_-]{1,32}",
        customer in "[A-Za-z0-9_.:@+-]{1,64}",
        shop in "[a-z0-9-]{1,32}",
        payment in "[A-Za-z0-9_.:-]{1,64}",
        refund in "[A-Za-z0-9_.:-]{1,80}",
        method in "[a-z0-9_-]{1,32}",
    ) {
        agrees!(Sku, &sku, true);
        agrees!(CustomerId, &customer, true);
        agrees!(Shop, &shop, true);
        agrees!(PaymentId, &payment, true);
        agrees!(RefundKey, &refund, true);
        agrees!(PaymentMethod, &method, true);
    }

    #[test]
    fn two_keys_are_two_holds(
        a in (".{0,20}", ".{0,20}", ".{0,20}"),
        b in (".{0,20}", ".{0,20}", ".{0,20}"),
    ) {
        let same = HoldId::derive(&a.0, &a.1, &a.2) == HoldId::derive(&b.0, &b.1, &b.2);
        prop_assert_eq!(same, a == b);
        prop_assert_eq!(HoldId::derive(&a.0, &a.1, &a.2).to_string().parse::<HoldId>().ok(),
            Some(HoldId::derive(&a.0, &a.1, &a.2)));
    }
}
