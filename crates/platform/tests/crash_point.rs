//! What a crash point is without its feature. `scripts/failpoints.sh nothing` builds and runs this so;
//! with the feature there is nothing here.
#![cfg(not(feature = "failpoints"))]

use platform::crash_point;

/// Were it anything, it would not compile here: there is no such point, no such name, and nothing to
/// await in a constant.
#[test]
fn without_the_feature_a_crash_point_is_nothing() {
    const NOTHING: () = {
        crash_point!("no such point", err => return no_such_name);
    };
    assert_eq!(NOTHING, ());
}
