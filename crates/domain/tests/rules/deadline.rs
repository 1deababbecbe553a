//! How long holds last, and that none is renewed for ever.

use chrono::TimeDelta;
use contracts::{PaymentMethod, Timestamp};
use domain::deadline::{HoldRules, HoldRulesError, Renewal};
use proptest::prelude::*;

fn at(seconds: i64) -> Timestamp {
    chrono::DateTime::UNIX_EPOCH + TimeDelta::seconds(1_800_000_000 + seconds)
}

fn method(name: &str) -> PaymentMethod {
    PaymentMethod::parse(name).expect("a method")
}

#[test]
fn the_defaults_hold_for_the_ttl_of_the_skus_and_renew_nothing() {
    let rules = HoldRules::default();
    assert_eq!(rules.ttl_seconds(600, &method("card")), 600);
    for why in [Renewal::PaymentBegins, Renewal::AttemptFailed] {
        assert!(!rules.renews(why));
        assert_eq!(rules.renewed(why, at(0), at(600), at(599)), None);
    }
    assert_eq!(HoldRules::parse("", 0, 0, 86_400), Ok(rules));
}

#[test]
fn a_payment_method_has_its_own_ttl_and_none_passes_the_cap() {
    let rules = HoldRules::parse(" transfer=3600 , cash=7200", 0, 0, 7_200).unwrap();
    assert_eq!(rules.ttl_seconds(600, &method("card")), 600);
    assert_eq!(rules.ttl_seconds(600, &method("transfer")), 3_600);
    assert_eq!(rules.ttl_seconds(86_400, &method("card")), 7_200);
}

#[test]
fn a_payment_that_begins_and_one_that_failed_leave_the_buyer_time() {
    let rules = HoldRules::parse("", 120, 60, 1_000).unwrap();
    let begins = |now| rules.renewed(Renewal::PaymentBegins, at(0), at(600), at(now));
    assert_eq!(begins(100), None, "there is more time than that");
    assert_eq!(begins(550), Some(at(670)));
    let failed = |now| rules.renewed(Renewal::AttemptFailed, at(0), at(600), at(now));
    assert_eq!(failed(590), Some(at(650)));
    assert_eq!(failed(650), Some(at(710)), "within the grace of a payment");
}

#[test]
fn settings_that_are_no_rules_are_refused() {
    for wrong in [
        "transfer",
        "=5",
        "transfer=0",
        "transfer=-1",
        "A=5",
        "a=1,a=2",
        "a=1.5",
    ] {
        let found = HoldRules::parse(wrong, 0, 0, 86_400);
        assert!(
            matches!(found, Err(HoldRulesError::Method(_))),
            "{wrong}: {found:?}"
        );
    }
    assert_eq!(HoldRules::parse("", 0, 0, 0), Err(HoldRulesError::Cap(0)));
    assert_eq!(
        HoldRules::parse("a=61", 0, 0, 60),
        Err(HoldRulesError::BeyondCap(61))
    );
    assert_eq!(
        HoldRules::parse("", 0, 61, 60),
        Err(HoldRulesError::BeyondCap(61))
    );
}

proptest! {
    #[test]
    fn no_chain_of_renewals_shortens_a_hold_or_carries_it_beyond_the_cap(
        ttl in 1_i32..2_000,
        begins in 0_u32..500,
        failed in 0_u32..500,
        steps in prop::collection::vec((0_i64..400, any::<bool>()), 0..60),
    ) {
        let cap = 1_500;
        let rules = HoldRules::parse("", begins, failed, cap).unwrap();
        let mut until = at(i64::from(rules.ttl_seconds(ttl, &method("card"))));
        let mut now = 0;
        for (pause, begins) in steps {
            now += pause;
            let why = if begins { Renewal::PaymentBegins } else { Renewal::AttemptFailed };
            if let Some(later) = rules.renewed(why, at(0), until, at(now)) {
                prop_assert!(later > until);
                until = later;
            }
            prop_assert!(until <= at(i64::from(cap)));
        }
    }
}
