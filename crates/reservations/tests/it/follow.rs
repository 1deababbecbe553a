//! How the gate follows PostgreSQL: registers by version, holds by what became of their orders, the
//! list of what is due, and the units of buyers.

use domain::gate::{HoldState, HoldView, Register};
use reservations::{
    BuyerUnits, BuyersOutcome, DueState, GateRead, RegisterOutcome, ReserveOutcome, SyncReport,
};

use crate::{
    support::{SHARD, TestGate, buyer, hold, register, sku},
    verbs::NEXT,
};

#[tokio::test]
async fn the_higher_version_wins_whenever_it_comes() {
    let test = TestGate::new().await;
    let put = async |version, limit| {
        test.gate
            .put_registers(SHARD, &[register("A", version, limit)])
            .await
            .unwrap()[0]
    };
    assert_eq!(put(5, 50).await, RegisterOutcome::Set);
    assert_eq!(put(4, 40).await, RegisterOutcome::Old);
    assert_eq!(put(5, 55).await, RegisterOutcome::Old);
    assert_eq!(put(6, 60).await, RegisterOutcome::Set);
    let read = test
        .gate
        .read_gates(SHARD, &[sku("A"), sku("B")])
        .await
        .unwrap();
    assert!(matches!(read[0], GateRead::Row(row) if row.limit == 60 && row.version == 6));
    assert_eq!(read[1], GateRead::Missing);
    test.done().await;
}

#[tokio::test]
async fn sync_does_what_each_state_asks_for() {
    let test = TestGate::new().await;
    test.gate
        .put_registers(SHARD, &[register("A", 1, 100)])
        .await
        .unwrap();
    let holds: Vec<_> = (0..4)
        .map(|n| hold(&format!("{n}"), "c", &[("A", 1)]))
        .collect();
    test.gate.reserve(SHARD, 0, &holds[..3]).await;
    let states = [
        HoldState::Live,
        HoldState::Committed,
        HoldState::Released,
        HoldState::Live,
    ];
    let views: Vec<_> = holds
        .iter()
        .zip(states)
        .map(|(hold, state)| HoldView {
            hold: hold.clone(),
            state,
        })
        .collect();
    let report = test
        .gate
        .sync(SHARD, &views, &[register("A", 2, 99), register("B", 1, 7)])
        .await
        .unwrap();
    assert_eq!(
        report,
        SyncReport {
            added: 1,
            kept: 1,
            ended: 2,
            ..SyncReport::default()
        }
    );
    let snapshot = test.gate.snapshot(SHARD).await.unwrap();
    let row = snapshot.gates[&sku("A")];
    assert_eq!(
        (row.limit, row.held, snapshot.gates[&sku("B")].limit),
        (99, 2, 7)
    );
    let again = test.gate.sync(SHARD, &views, &[]).await.unwrap();
    assert_eq!(
        again,
        SyncReport {
            kept: 2,
            absent: 2,
            ..SyncReport::default()
        }
    );
    test.done().await;
}

#[tokio::test]
async fn a_sale_is_not_counted_twice_between_two_calls() {
    let test = TestGate::new().await;
    let before = [register("A", 1, 200), register("B", 1, 1)];
    test.gate.put_registers(SHARD, &before).await.unwrap();
    let views: Vec<_> = (0..200)
        .map(|n| HoldView {
            hold: match n {
                199 => hold("last", "c", &[("A", 1), ("B", 1)]),
                _ => hold(&format!("{n}"), "c", &[("A", 1)]),
            },
            state: HoldState::Committed,
        })
        .collect();
    let holds: Vec<_> = views.iter().map(|view| view.hold.clone()).collect();
    test.gate.reserve(SHARD, 0, &holds).await;
    // A number that no script takes ends it between the first call and the second.
    let after = [register("A", 2, 0), register("B", 2, i64::MAX)];
    test.gate.sync(SHARD, &views, &after).await.unwrap_err();
    let row = test.gate.snapshot(SHARD).await.unwrap().gates[&sku("A")];
    assert!(0 < row.held && row.held < 200, "{} held", row.held);
    assert!(
        row.limit - row.held >= 0,
        "{} of {} held although all were sold once",
        row.held,
        row.limit
    );
    let after = [register("A", 2, 0), register("B", 2, 0)];
    test.gate.sync(SHARD, &views, &after).await.unwrap();
    let row = test.gate.snapshot(SHARD).await.unwrap().gates[&sku("A")];
    assert_eq!((row.limit, row.held), (0, 0));
    test.done().await;
}

#[tokio::test]
async fn what_is_due_is_returned_and_what_is_gone_is_taken_off() {
    let mut test = TestGate::new().await;
    test.gate
        .put_registers(SHARD, &[register("A", 1, 100)])
        .await
        .unwrap();
    let names = ["due", "later", "gone", "broken"];
    let holds = names.map(|key| hold(key, "c", &[("A", 1)]));
    test.gate.reserve(SHARD, 0, &holds).await;
    assert_eq!(
        test.gate.due(SHARD, 10).await.unwrap(),
        [],
        "nothing is due for five seconds"
    );
    let key = test.key("due");
    for (score, hold) in [("1", &holds[0]), ("2", &holds[2]), ("3", &holds[3])] {
        test.run("ZADD", &[&key, score, &hold.hold_id.to_string()])
            .await;
    }
    test.run("ZADD", &[&key, "0", "no hold id"]).await;
    let stored = test.key("holds");
    test.run("HDEL", &[&stored, &holds[2].hold_id.to_string()])
        .await;
    test.run("HSET", &[&stored, &holds[3].hold_id.to_string(), "broken"])
        .await;

    let due = test.gate.due(SHARD, 10).await.unwrap();
    assert_eq!(due.len(), 2);
    assert!(matches!(&due[0].state, DueState::Held(stored) if stored.hold == holds[0]));
    assert_eq!(due[1].state, DueState::Damaged);
    let left = test.gate.snapshot(SHARD).await.unwrap().due;
    assert_eq!(
        left.len(),
        3,
        "the absent hold and the stray member are gone: {left:?}"
    );
    test.gate.keep(SHARD, &holds[..1], &[], NEXT).await.unwrap();
    assert_eq!(
        test.gate.due(SHARD, 10).await.unwrap(),
        [],
        "all are put off"
    );
    test.done().await;
}

#[tokio::test]
async fn a_repeat_puts_the_first_question_off() {
    let mut test = TestGate::new().await;
    test.gate
        .put_registers(SHARD, &[register("A", 1, 100)])
        .await
        .unwrap();
    let one = hold("1", "c", &[("A", 1)]);
    test.gate
        .reserve(SHARD, 0, std::slice::from_ref(&one))
        .await;
    let key = test.key("due");
    test.run("ZADD", &[&key, "1", &one.hold_id.to_string()])
        .await;
    test.gate
        .reserve(SHARD, 0, std::slice::from_ref(&one))
        .await;
    assert_eq!(test.gate.due(SHARD, 10).await.unwrap(), []);
    test.gate
        .keep(SHARD, std::slice::from_ref(&one), &[], NEXT)
        .await
        .unwrap();
    let kept = test.gate.snapshot(SHARD).await.unwrap().due;
    test.gate.reserve(SHARD, 0, &[one]).await;
    assert_eq!(
        test.gate.snapshot(SHARD).await.unwrap().due,
        kept,
        "never sooner than it was"
    );
    test.done().await;
}

#[tokio::test]
async fn buyers_are_corrected_only_from_what_was_seen() {
    let test = TestGate::new().await;
    let limited = Register {
        per_customer_limit: Some(3),
        ..register("A", 1, 10)
    };
    test.gate.put_registers(SHARD, &[limited]).await.unwrap();
    let correct = async |seen, units| {
        let change = [BuyerUnits {
            buyer: buyer("c"),
            seen,
            units,
        }];
        test.gate
            .correct_buyers(SHARD, &sku("A"), &change)
            .await
            .unwrap()[0]
    };
    assert_eq!(correct(1, 2).await, BuyersOutcome::Changed);
    assert_eq!(correct(0, 2).await, BuyersOutcome::Set);
    let two = hold("1", "c", &[("A", 2)]);
    assert_eq!(
        test.gate.reserve(SHARD, 0, &[two]).await,
        [ReserveOutcome::Limit]
    );
    assert_eq!(
        test.gate.read_buyers(SHARD, &sku("A")).await.unwrap()[&buyer("c")],
        2
    );
    assert_eq!(correct(2, 0).await, BuyersOutcome::Set);
    assert!(
        test.gate
            .read_buyers(SHARD, &sku("A"))
            .await
            .unwrap()
            .is_empty()
    );
    test.done().await;
}
