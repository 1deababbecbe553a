//! Keys that hold what none of the scripts writes: an outcome of its own, and no write.

use std::time::Duration;

use domain::gate::Register;
use reservations::{GateRead, KeepOutcome, RegisterOutcome, ReserveOutcome, SettleOutcome};

use crate::support::{SHARD, TestGate, hold, open_new_epoch, register, sku};

const NEXT: Duration = Duration::from_secs(30);

/// A gate A with a per-customer limit, a gate B without, a hold of both.
async fn fixture() -> (TestGate, domain::gate::Hold) {
    let test = TestGate::new().await;
    let limited = Register {
        per_customer_limit: Some(9),
        ..register("A", 1, 10)
    };
    test.gate
        .put_registers(SHARD, &[limited, register("B", 1, 10)])
        .await
        .expect("an answer");
    let held = hold("held", "c", &[("A", 1), ("B", 1)]);
    let outcomes = test
        .gate
        .reserve(SHARD, 0, std::slice::from_ref(&held))
        .await;
    assert_eq!(outcomes, [ReserveOutcome::Ok]);
    (test, held)
}

#[derive(Debug, PartialEq, Eq)]
struct Answers {
    reserve: ReserveOutcome,
    keep: KeepOutcome,
    commit: SettleOutcome,
    release: SettleOutcome,
}

/// Asks for everything and checks that nothing is written.
async fn answers_without_a_write(
    test: &mut TestGate,
    held: &domain::gate::Hold,
    commit_too: bool,
) -> Answers {
    let before = test.dump().await;
    let new = hold("new", "c", &[("A", 1), ("B", 1)]);
    let gate = test.gate.clone();
    let answers = Answers {
        reserve: gate.reserve(SHARD, 0, std::slice::from_ref(&new)).await[0],
        keep: gate
            .keep(SHARD, &[new], &[], NEXT)
            .await
            .expect("an answer")[0],
        release: gate
            .release(SHARD, std::slice::from_ref(held), &[])
            .await
            .expect("an answer")[0],
        commit: if commit_too {
            gate.commit(SHARD, std::slice::from_ref(held), &[])
                .await
                .expect("an answer")[0]
        } else {
            SettleOutcome::Damaged
        },
    };
    assert_eq!(test.dump().await, before, "nothing may be written");
    answers
}

const DAMAGED: Answers = Answers {
    reserve: ReserveOutcome::Damaged,
    keep: KeepOutcome::Damaged,
    commit: SettleOutcome::Damaged,
    release: SettleOutcome::Damaged,
};

const NO_GATE: Answers = Answers {
    reserve: ReserveOutcome::NoGate,
    keep: KeepOutcome::NoGate,
    commit: SettleOutcome::NoGate,
    release: SettleOutcome::NoGate,
};

#[tokio::test]
async fn a_key_of_a_wrong_type_is_damage_and_nothing_is_written() {
    for name in ["holds", "due", "gate:A", "gate:B", "buyers:A"] {
        for replacement in ["SET", "RPUSH"] {
            let (mut test, held) = fixture().await;
            let key = test.key(name);
            test.run("DEL", &[&key]).await;
            test.run(replacement, &[&key, "word"]).await;
            // commit has no business with buyers.
            let commit_too = name != "buyers:A";
            let answers = answers_without_a_write(&mut test, &held, commit_too).await;
            assert_eq!(answers, DAMAGED, "{name} {replacement}");
            test.done().await;
        }
    }
}

#[tokio::test]
async fn a_word_where_a_number_belongs_is_damage_and_nothing_is_written() {
    let fields = [
        "limit",
        "version",
        "held",
        "opens_at",
        "closes_at",
        "per_customer",
    ];
    for field in fields {
        for word in [
            "",
            "word",
            "-5",
            "1e3",
            "0x10",
            " 5",
            "nan",
            "9007199254740992",
        ] {
            let (mut test, held) = fixture().await;
            let key = test.key("gate:A");
            test.run("HSET", &[&key, field, word]).await;
            let answers = answers_without_a_write(&mut test, &held, true).await;
            assert_eq!(answers, DAMAGED, "{field} {word:?}");
            let read = test.gate.read_gates(SHARD, &[sku("A")]).await.unwrap();
            assert_eq!(read, [GateRead::Damaged], "{field} {word:?}");
            assert_eq!(test.gate.snapshot(SHARD).await.unwrap().damaged, ["gate A"]);
            let put = test
                .gate
                .put_registers(SHARD, &[register("A", 9, 9)])
                .await
                .unwrap();
            assert_eq!(put, [RegisterOutcome::Damaged]);
            test.done().await;
        }
    }
}

#[tokio::test]
async fn a_missing_field_of_a_gate_is_damage() {
    let (mut test, held) = fixture().await;
    let key = test.key("gate:A");
    test.run("HDEL", &[&key, "held"]).await;
    assert_eq!(
        answers_without_a_write(&mut test, &held, true).await,
        DAMAGED
    );
    test.done().await;
}

#[tokio::test]
async fn a_damaged_hold_is_left_alone() {
    let texts = [
        "",
        "word",
        "shop/c A=1,B=1 1",
        "shop/c A=1,B=1 12",
        "shop/c A=-1,B=1 10",
        "shop/c A=1e1,B=1 10",
        "shop/c A=1 B=1 10",
        "shop/c A=1,A=1 10",
        "c A=1,B=1 10",
    ];
    for text in texts {
        let (mut test, held) = fixture().await;
        let key = test.key("holds");
        test.run("HSET", &[&key, &held.hold_id.to_string(), text])
            .await;
        let before = test.dump().await;
        let gate = test.gate.clone();
        let one = std::slice::from_ref(&held);
        assert_eq!(
            gate.reserve(SHARD, 0, one).await,
            [ReserveOutcome::Damaged],
            "{text:?}"
        );
        assert_eq!(
            gate.keep(SHARD, one, &[], NEXT).await.unwrap(),
            [KeepOutcome::Damaged]
        );
        assert_eq!(
            gate.commit(SHARD, one, &[]).await.unwrap(),
            [SettleOutcome::Damaged]
        );
        assert_eq!(
            gate.release(SHARD, one, &[]).await.unwrap(),
            [SettleOutcome::Damaged]
        );
        assert_eq!(test.dump().await, before);
        assert_eq!(gate.snapshot(SHARD).await.unwrap().damaged.len(), 1);
        test.done().await;
    }
}

#[tokio::test]
async fn damage_of_one_sku_leaves_the_rest_of_the_batch_alone() {
    let (mut test, _) = fixture().await;
    let key = test.key("gate:A");
    test.run("HSET", &[&key, "limit", "word"]).await;
    let holds = [
        hold("1", "c", &[("B", 1)]),
        hold("2", "c", &[("A", 1)]),
        hold("3", "c", &[("A", 1), ("B", 1)]),
        hold("4", "c", &[("B", 1)]),
    ];
    let outcomes = test.gate.reserve(SHARD, 0, &holds).await;
    use ReserveOutcome::{Damaged, Ok};
    assert_eq!(outcomes, [Ok, Damaged, Damaged, Ok]);
    let outcomes = test.gate.release(SHARD, &holds, &[]).await.unwrap();
    use SettleOutcome::{Absent, Done};
    assert_eq!(outcomes, [Done, Absent, Absent, Done]);
    test.done().await;
}

#[tokio::test]
async fn a_damaged_epoch_key_is_no_epoch_and_a_rebuild_replaces_it() {
    for spoil in [
        &["SET", "word"][..],
        &["RPUSH", "word"],
        &["HSET", "epoch", "No Epoch"],
    ] {
        let (mut test, held) = fixture().await;
        let key = test.meta();
        test.run("DEL", &[&key]).await;
        test.run(spoil[0], &[&[&*key], &spoil[1..]].concat()).await;
        let answers = answers_without_a_write(&mut test, &held, true).await;
        assert_eq!(answers, NO_GATE);
        assert_eq!(test.gate.current_epoch(SHARD).await.unwrap(), None);
        open_new_epoch(&test.gate, None).await;
        test.gate
            .put_registers(SHARD, &[register("A", 1, 10), register("B", 1, 10)])
            .await
            .unwrap();
        assert_eq!(
            test.gate.reserve(SHARD, 0, &[held]).await,
            [ReserveOutcome::Ok]
        );
        test.done().await;
    }
}
