//! The scripts on a server in cluster mode, which refuses keys of two slots in one call and every
//! key that a script was not given.

use reservations::{KeepOutcome, ReserveOutcome, SettleOutcome};

use crate::{
    server::PrivateServer,
    support::{SHARD, TestGate, hold, keys_of, open_new_epoch, register},
};

const NEXT: std::time::Duration = std::time::Duration::from_secs(30);

#[tokio::test]
async fn every_verb_works_where_keys_of_two_slots_are_refused() {
    let server = PrivateServer::start_cluster().await;
    let mut test = TestGate::on(&server.url()).await;
    // The server is as strict as is meant.
    let crossed = redis::cmd("EVAL")
        .arg("return redis.call('MGET', KEYS[1], KEYS[2])")
        .arg(2)
        .arg(&["a", "b"])
        .query_async::<redis::Value>(&mut test.raw)
        .await
        .unwrap_err();
    assert_eq!(crossed.code(), Some("CROSSSLOT"), "{crossed}");

    let limited = domain::gate::Register {
        per_customer_limit: Some(3),
        ..register("A", 1, 10)
    };
    test.gate
        .put_registers(SHARD, &[limited, register("B", 1, 10), register("C", 1, 1)])
        .await
        .unwrap();
    let orders = [
        hold("1", "c", &[("A", 1), ("B", 2), ("C", 1)]),
        hold("2", "c", &[("A", 1), ("B", 1)]),
        hold("3", "d", &[("B", 1), ("C", 1)]),
        hold("4", "c", &[("A", 2)]),
    ];
    assert_eq!(
        test.gate.reserve(SHARD, 0, &orders).await,
        [
            ReserveOutcome::Ok,
            ReserveOutcome::Ok,
            ReserveOutcome::SoldOut,
            ReserveOutcome::Limit
        ]
    );
    assert_eq!(
        test.gate
            .keep(SHARD, &orders[..2], &[register("C", 2, 1)], NEXT)
            .await
            .unwrap(),
        [KeepOutcome::Kept; 2]
    );
    assert_eq!(
        test.gate.commit(SHARD, &orders[..1], &[]).await.unwrap(),
        [SettleOutcome::Done]
    );
    assert_eq!(
        test.gate.release(SHARD, &orders[1..], &[]).await.unwrap(),
        [
            SettleOutcome::Done,
            SettleOutcome::Absent,
            SettleOutcome::Absent
        ]
    );
    let snapshot = test.gate.snapshot(SHARD).await.unwrap();
    assert!(
        snapshot.gates.values().all(|row| row.held == 0),
        "{snapshot:?}"
    );
    assert_eq!(snapshot.holds.len(), 0);
    assert_eq!((snapshot.stray.len(), snapshot.damaged.len()), (0, 0));
    let old = test.epoch.clone();
    open_new_epoch(&test.gate, Some(&old)).await;
    test.gate.drop_epoch(SHARD, &old).await.unwrap();
    let one_slot = keys_of(&mut test.raw, &test.prefix).await;
    assert!(
        one_slot.iter().all(|key| key.contains("{0}")),
        "{one_slot:?}"
    );
}
