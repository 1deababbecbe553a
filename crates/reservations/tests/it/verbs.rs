//! What each verb of an order promises, one promise a test.

use std::time::Duration;

use domain::gate::Register;
use reservations::{KeepOutcome, ReserveOutcome, SettleOutcome};

use crate::support::{SHARD, TestGate, buyer, hold, register, sku};

pub(crate) const NEXT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_batch_of_two_hundred_orders_for_a_hundred_units_holds_a_hundred() {
    let test = TestGate::new().await;
    test.gate
        .put_registers(SHARD, &[register("A", 1, 100)])
        .await
        .unwrap();
    let holds: Vec<_> = (0..200)
        .map(|n| hold(&format!("k{n}"), "c", &[("A", 1)]))
        .collect();
    let outcomes = test.gate.reserve(SHARD, 0, &holds).await;
    let count = |wanted| {
        outcomes
            .iter()
            .filter(|outcome| **outcome == wanted)
            .count()
    };
    assert_eq!(
        (count(ReserveOutcome::Ok), count(ReserveOutcome::SoldOut)),
        (100, 100)
    );
    assert_eq!(
        test.gate.snapshot(SHARD).await.unwrap().gates[&sku("A")].held,
        100
    );
    test.done().await;
}

#[tokio::test]
async fn the_loser_of_the_last_pair_holds_nothing() {
    let test = TestGate::new().await;
    test.gate
        .put_registers(SHARD, &[register("A", 1, 1), register("B", 1, 1)])
        .await
        .unwrap();
    let holds = [
        hold("1", "c", &[("A", 1), ("B", 1)]),
        hold("2", "c", &[("A", 1), ("B", 1)]),
    ];
    let outcomes = test.gate.reserve(SHARD, 0, &holds).await;
    assert_eq!(outcomes, [ReserveOutcome::Ok, ReserveOutcome::SoldOut]);
    let snapshot = test.gate.snapshot(SHARD).await.unwrap();
    assert_eq!(snapshot.holds.len(), 1);
    assert_eq!(
        (
            snapshot.gates[&sku("A")].held,
            snapshot.gates[&sku("B")].held
        ),
        (1, 1)
    );
    test.done().await;
}

#[tokio::test]
async fn a_repeat_takes_nothing_and_is_known() {
    let test = TestGate::new().await;
    test.gate
        .put_registers(SHARD, &[register("A", 1, 10)])
        .await
        .unwrap();
    let same = hold("k", "c", &[("A", 2)]);
    let other = hold("k", "c", &[("A", 3)]);
    let stranger = hold("k", "d", &[("A", 2)]);
    let outcomes = test
        .gate
        .reserve(SHARD, 0, &[same.clone(), same.clone(), other, stranger])
        .await;
    assert_eq!(
        outcomes,
        [
            ReserveOutcome::Ok,
            ReserveOutcome::Known,
            ReserveOutcome::Other,
            ReserveOutcome::Other
        ]
    );
    assert_eq!(
        test.gate.reserve(SHARD, 0, &[same]).await,
        [ReserveOutcome::Known]
    );
    assert_eq!(
        test.gate.snapshot(SHARD).await.unwrap().gates[&sku("A")].held,
        2
    );
    test.done().await;
}

#[tokio::test]
async fn the_rules_are_named_in_their_order() {
    let test = TestGate::new().await;
    let strict = Register {
        opens_at_ms: Some(100),
        closes_at_ms: Some(200),
        per_customer_limit: Some(2),
        ..register("A", 1, 5)
    };
    test.gate
        .put_registers(SHARD, &[strict, register("B", 1, 0)])
        .await
        .unwrap();
    let ask = async |now, key: &str, lines: &[(&str, i64)]| {
        test.gate
            .reserve(SHARD, now, &[hold(key, "c", lines)])
            .await[0]
    };
    assert_eq!(
        ask(99, "1", &[("A", 9), ("B", 1)]).await,
        ReserveOutcome::NotOpen
    );
    assert_eq!(
        ask(200, "1", &[("A", 9), ("B", 1)]).await,
        ReserveOutcome::Over
    );
    assert_eq!(
        ask(100, "1", &[("A", 9), ("B", 1)]).await,
        ReserveOutcome::Limit
    );
    assert_eq!(
        ask(100, "1", &[("A", 2), ("B", 1)]).await,
        ReserveOutcome::SoldOut
    );
    assert_eq!(
        ask(100, "1", &[("A", 1), ("NONE", 1)]).await,
        ReserveOutcome::NoGate
    );
    assert_eq!(ask(199, "1", &[("A", 2)]).await, ReserveOutcome::Ok);
    assert_eq!(ask(199, "2", &[("A", 1)]).await, ReserveOutcome::Limit);
    test.done().await;
}

#[tokio::test]
async fn a_release_gives_back_once_and_only_what_was_held() {
    let test = TestGate::new().await;
    let limited = Register {
        per_customer_limit: Some(5),
        ..register("A", 1, 10)
    };
    test.gate.put_registers(SHARD, &[limited]).await.unwrap();
    let one = hold("1", "c", &[("A", 2)]);
    let never = hold("2", "c", &[("A", 3)]);
    test.gate
        .reserve(SHARD, 0, std::slice::from_ref(&one))
        .await;
    let outcomes = test
        .gate
        .release(SHARD, &[never.clone(), one.clone(), one.clone()], &[])
        .await
        .unwrap();
    assert_eq!(
        outcomes,
        [
            SettleOutcome::Absent,
            SettleOutcome::Done,
            SettleOutcome::Absent
        ]
    );
    let outcomes = test.gate.release(SHARD, &[one, never], &[]).await.unwrap();
    assert_eq!(outcomes, [SettleOutcome::Absent, SettleOutcome::Absent]);
    let snapshot = test.gate.snapshot(SHARD).await.unwrap();
    assert_eq!(snapshot.gates[&sku("A")].held, 0);
    assert!(snapshot.buyers.is_empty() && snapshot.holds.is_empty() && snapshot.due.is_empty());
    test.done().await;
}

#[tokio::test]
async fn a_commit_lowers_held_and_leaves_the_buyer_its_units() {
    let test = TestGate::new().await;
    let limited = Register {
        per_customer_limit: Some(2),
        ..register("A", 1, 10)
    };
    test.gate
        .put_registers(SHARD, std::slice::from_ref(&limited))
        .await
        .unwrap();
    let one = hold("1", "c", &[("A", 2)]);
    test.gate
        .reserve(SHARD, 0, std::slice::from_ref(&one))
        .await;
    let sold = Register {
        version: 2,
        limit: 8,
        ..limited
    };
    let outcomes = test.gate.commit(SHARD, &[one], &[sold]).await.unwrap();
    assert_eq!(outcomes, [SettleOutcome::Done]);
    let snapshot = test.gate.snapshot(SHARD).await.unwrap();
    let row = snapshot.gates[&sku("A")];
    assert_eq!((row.limit, row.version, row.held), (8, 2, 0));
    assert_eq!(snapshot.buyers[&(sku("A"), buyer("c"))], 2);
    let more = hold("2", "c", &[("A", 1)]);
    assert_eq!(
        test.gate.reserve(SHARD, 0, &[more]).await,
        [ReserveOutcome::Limit]
    );
    test.done().await;
}

#[tokio::test]
async fn stored_lines_win_over_those_the_caller_names() {
    let test = TestGate::new().await;
    test.gate
        .put_registers(SHARD, &["A", "B", "C"].map(|name| register(name, 1, 10)))
        .await
        .unwrap();
    let stored = hold("k", "c", &[("A", 2), ("B", 3)]);
    let named = hold("k", "c", &[("C", 9)]);
    test.gate
        .reserve(SHARD, 0, std::slice::from_ref(&stored))
        .await;
    let kept = test
        .gate
        .keep(SHARD, std::slice::from_ref(&named), &[], NEXT)
        .await
        .unwrap();
    assert_eq!(kept, [KeepOutcome::Replaced]);
    let held = async |name: &str| test.gate.snapshot(SHARD).await.unwrap().gates[&sku(name)].held;
    assert_eq!(
        (held("A").await, held("B").await, held("C").await),
        (0, 0, 9)
    );
    assert_eq!(
        test.gate
            .commit(SHARD, std::slice::from_ref(&stored), &[])
            .await
            .unwrap(),
        [SettleOutcome::Done]
    );
    assert_eq!(
        (held("A").await, held("B").await, held("C").await),
        (0, 0, 0)
    );
    test.done().await;
}

#[tokio::test]
async fn keep_holds_what_was_decided_even_beyond_the_limit() {
    let test = TestGate::new().await;
    test.gate
        .put_registers(SHARD, &[register("A", 1, 1)])
        .await
        .unwrap();
    let holds = [hold("1", "c", &[("A", 2)]), hold("2", "c", &[("A", 2)])];
    let outcomes = test.gate.keep(SHARD, &holds, &[], NEXT).await.unwrap();
    assert_eq!(outcomes, [KeepOutcome::Added, KeepOutcome::Added]);
    let outcomes = test.gate.keep(SHARD, &holds, &[], NEXT).await.unwrap();
    assert_eq!(outcomes, [KeepOutcome::Kept, KeepOutcome::Kept]);
    assert_eq!(
        test.gate.snapshot(SHARD).await.unwrap().gates[&sku("A")].held,
        4
    );
    let more = hold("3", "c", &[("A", 1)]);
    assert_eq!(
        test.gate.reserve(SHARD, 0, &[more]).await,
        [ReserveOutcome::SoldOut]
    );
    test.done().await;
}

#[tokio::test]
async fn what_the_scripts_cannot_hold_is_refused_before_it_is_sent() {
    let test = TestGate::new().await;
    for limit in [-1, 1_000_000_000_000_000, i64::MAX] {
        assert!(
            test.gate
                .put_registers(SHARD, &[register("A", 1, limit)])
                .await
                .is_err()
        );
    }
    let unsorted = hold("1", "c", &[("B", 1), ("A", 1)]);
    let empty = hold("2", "c", &[]);
    for bad in [unsorted, empty] {
        assert!(
            test.gate
                .keep(SHARD, std::slice::from_ref(&bad), &[], NEXT)
                .await
                .is_err()
        );
        assert_eq!(
            test.gate.reserve(SHARD, 0, &[bad]).await,
            [ReserveOutcome::NoGate]
        );
    }
    test.done().await;
}

/// A handler spawns its work, so that a client that hangs up cancels nothing (P14).
#[tokio::test]
async fn every_call_can_be_spawned() {
    fn spawnable<T: Send>(_: T) {}
    let test = TestGate::new().await;
    let (gate, name) = (&test.gate, sku("A"));
    spawnable(gate.reserve(SHARD, 0, &[]));
    spawnable(gate.keep(SHARD, &[], &[], NEXT));
    spawnable(gate.commit(SHARD, &[], &[]));
    spawnable(gate.release(SHARD, &[], &[]));
    spawnable(gate.sync(SHARD, &[], &[]));
    spawnable(gate.put_registers(SHARD, &[]));
    spawnable(gate.correct_buyers(SHARD, &name, &[]));
    spawnable(gate.due(SHARD, 1));
    spawnable(gate.snapshot(SHARD));
    spawnable(gate.read_gates(SHARD, &[]));
    spawnable(gate.begin_epoch(SHARD, "e", None));
    spawnable(gate.drop_epoch(SHARD, "e"));
    spawnable(gate.check_safety());
    test.done().await;
}
