//! Loss of a shard's keys, and the way back.

use std::time::Duration;

use reservations::{EpochOutcome, Gate, KeepOutcome, ReserveOutcome, SettleOutcome};

use crate::{
    server::PrivateServer,
    support::{SHARD, TestGate, hold, open_new_epoch, patient, register, sku, wipe},
};

const NEXT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn lost_keys_are_seen_by_the_first_call_and_rebuilt_while_orders_come() {
    let mut test = TestGate::new().await;
    let gate = test.gate.clone();
    gate.put_registers(SHARD, &[register("A", 1, 10)])
        .await
        .unwrap();
    let live = hold("live", "c", &[("A", 3)]);
    gate.reserve(SHARD, 0, std::slice::from_ref(&live)).await;
    wipe(&mut test.raw, &test.prefix).await;

    assert_eq!(
        gate.reserve(SHARD, 0, std::slice::from_ref(&live)).await,
        [ReserveOutcome::NoGate]
    );
    assert_eq!(
        gate.release(SHARD, std::slice::from_ref(&live), &[])
            .await
            .unwrap(),
        [SettleOutcome::NoGate]
    );
    let epoch = Gate::new_epoch_id();
    assert_eq!(
        gate.begin_epoch(SHARD, &epoch, None).await.unwrap(),
        EpochOutcome::Begun
    );
    gate.put_registers(SHARD, &[register("A", 1, 10)])
        .await
        .unwrap();
    assert_eq!(
        gate.reserve(SHARD, 0, std::slice::from_ref(&live)).await,
        [ReserveOutcome::NoGate],
        "closed while it is being built"
    );
    assert_eq!(
        gate.keep(SHARD, std::slice::from_ref(&live), &[], NEXT)
            .await
            .unwrap(),
        [KeepOutcome::Added]
    );
    assert_eq!(
        gate.open_epoch(SHARD, &epoch).await.unwrap(),
        EpochOutcome::Opened
    );
    assert_eq!(
        gate.reserve(SHARD, 0, &[live]).await,
        [ReserveOutcome::Known]
    );
    let snapshot = gate.snapshot(SHARD).await.unwrap();
    assert_eq!(snapshot.gates[&sku("A")].held, 3);
    assert_eq!(snapshot.stray, Vec::<String>::new());
    test.done().await;
}

#[tokio::test]
async fn a_rebuild_that_was_overtaken_changes_nothing() {
    let test = TestGate::new().await;
    let (first, slow, fast) = (
        test.epoch.clone(),
        Gate::new_epoch_id(),
        Gate::new_epoch_id(),
    );
    let gate = &test.gate;
    assert_eq!(
        gate.begin_epoch(SHARD, &slow, Some(&first)).await.unwrap(),
        EpochOutcome::Begun
    );
    assert_eq!(
        gate.begin_epoch(SHARD, &fast, Some(&slow)).await.unwrap(),
        EpochOutcome::Begun
    );
    assert_eq!(
        gate.open_epoch(SHARD, &slow).await.unwrap(),
        EpochOutcome::Superseded
    );
    assert_eq!(
        gate.open_epoch(SHARD, &fast).await.unwrap(),
        EpochOutcome::Opened
    );
    assert_eq!(
        gate.begin_epoch(SHARD, &Gate::new_epoch_id(), Some(&first))
            .await
            .unwrap(),
        EpochOutcome::Superseded
    );
    let state = gate.current_epoch(SHARD).await.unwrap().unwrap();
    assert!(state.open && state.epoch == fast);
    test.done().await;
}

#[tokio::test]
async fn a_client_that_knows_an_old_epoch_finds_the_new_one_by_itself() {
    let test = TestGate::new().await;
    test.gate
        .put_registers(SHARD, &[register("A", 1, 10)])
        .await
        .unwrap();
    let mut config = patient(&crate::support::redis_url());
    config.key_prefix.clone_from(&test.prefix);
    let other = Gate::new(config).unwrap();
    let one = hold("1", "c", &[("A", 1)]);
    assert_eq!(
        other.reserve(SHARD, 0, std::slice::from_ref(&one)).await,
        [ReserveOutcome::Ok]
    );
    open_new_epoch(&test.gate, Some(&test.epoch)).await;
    test.gate
        .put_registers(SHARD, &[register("A", 1, 10)])
        .await
        .unwrap();
    assert_eq!(
        other.reserve(SHARD, 0, std::slice::from_ref(&one)).await,
        [ReserveOutcome::Ok],
        "the new epoch has not seen it"
    );
    open_new_epoch(
        &test.gate,
        Some(&test.gate.current_epoch(SHARD).await.unwrap().unwrap().epoch),
    )
    .await;
    assert_eq!(
        other.commit(SHARD, &[one], &[]).await.unwrap(),
        [SettleOutcome::Absent],
        "asked in the newest epoch"
    );
    test.done().await;
}

#[tokio::test]
async fn an_old_epoch_is_dropped_and_the_newest_never() {
    let test = TestGate::new().await;
    let gate = &test.gate;
    gate.put_registers(SHARD, &[register("A", 1, 10)])
        .await
        .unwrap();
    gate.reserve(SHARD, 0, &[hold("1", "c", &[("A", 1)])]).await;
    let new = open_new_epoch(gate, Some(&test.epoch)).await;
    gate.put_registers(SHARD, &[register("A", 1, 10)])
        .await
        .unwrap();
    let old: Vec<String> = gate.old_epochs(SHARD).await.unwrap().into_iter().collect();
    assert_eq!(old, std::slice::from_ref(&test.epoch));
    assert_eq!(
        gate.snapshot(SHARD).await.unwrap().stray.len(),
        3,
        "gate, holds, due"
    );
    assert!(gate.drop_epoch(SHARD, &new).await.is_err());
    assert_eq!(gate.drop_epoch(SHARD, &test.epoch).await.unwrap(), 3);
    assert_eq!(
        gate.snapshot(SHARD).await.unwrap().stray,
        Vec::<String>::new()
    );
    assert_eq!(gate.snapshot(SHARD).await.unwrap().gates.len(), 1);
    test.done().await;
}

#[tokio::test]
async fn an_empty_server_answers_no_gate_and_is_rebuilt() {
    let server = PrivateServer::start().await;
    let mut test = TestGate::on(&server.url()).await;
    test.gate
        .put_registers(SHARD, &[register("A", 1, 10)])
        .await
        .unwrap();
    test.run("FLUSHALL", &[]).await;
    let one = hold("1", "c", &[("A", 1)]);
    assert_eq!(
        test.gate
            .reserve(SHARD, 0, std::slice::from_ref(&one))
            .await,
        [ReserveOutcome::NoGate]
    );
    open_new_epoch(&test.gate, None).await;
    test.gate
        .put_registers(SHARD, &[register("A", 1, 10)])
        .await
        .unwrap();
    assert_eq!(
        test.gate.reserve(SHARD, 0, &[one]).await,
        [ReserveOutcome::Ok]
    );
}

#[tokio::test]
async fn forgotten_scripts_go_unnoticed() {
    let server = PrivateServer::start().await;
    let mut test = TestGate::on(&server.url()).await;
    let one = hold("1", "c", &[("A", 1)]);
    let holds = std::slice::from_ref(&one);
    for round in 0..20 {
        test.run("SCRIPT", &["FLUSH"]).await;
        test.gate
            .put_registers(SHARD, &[register("A", round, 10)])
            .await
            .unwrap();
        test.run("SCRIPT", &["FLUSH"]).await;
        assert_eq!(
            test.gate.reserve(SHARD, 0, holds).await,
            [ReserveOutcome::Ok]
        );
        test.run("SCRIPT", &["FLUSH"]).await;
        let kept = test.gate.keep(SHARD, holds, &[], NEXT).await.unwrap();
        assert_eq!(kept, [KeepOutcome::Kept]);
        test.run("SCRIPT", &["FLUSH"]).await;
        let ended = if round % 2 == 0 {
            test.gate.commit(SHARD, holds, &[]).await.unwrap()
        } else {
            test.gate.release(SHARD, holds, &[]).await.unwrap()
        };
        assert_eq!(ended, [SettleOutcome::Done]);
    }
}

#[tokio::test]
async fn holds_end_when_memory_is_full() {
    let server = PrivateServer::start().await;
    let mut test = TestGate::on(&server.url()).await;
    let limited = domain::gate::Register {
        per_customer_limit: Some(5),
        ..register("A", 1, 10)
    };
    test.gate.put_registers(SHARD, &[limited]).await.unwrap();
    let holds = ["1", "2", "3"].map(|key| hold(key, "c", &[("A", 1)]));
    assert_eq!(
        test.gate.reserve(SHARD, 0, &holds).await,
        [ReserveOutcome::Ok; 3]
    );
    test.run("CONFIG", &["SET", "maxmemory", "1"]).await;
    let safety = test.gate.check_safety().await.unwrap();
    assert!(safety.is_safe() && safety.used_memory_bytes > safety.maxmemory_bytes);

    let more = hold("4", "c", &[("A", 1)]);
    assert_eq!(
        test.gate
            .reserve(SHARD, 0, std::slice::from_ref(&more))
            .await,
        [ReserveOutcome::NoGate]
    );
    let refused = test.gate.keep(SHARD, &[more], &[], NEXT).await.unwrap_err();
    assert!(refused.is_transient(), "{refused:?}");
    assert!(
        test.gate.is_available(),
        "a full server is not an absent one"
    );
    assert_eq!(
        test.gate
            .commit(SHARD, &holds[..1], &[register("A", 2, 9)])
            .await
            .unwrap(),
        [SettleOutcome::Done]
    );
    assert_eq!(
        test.gate
            .release(SHARD, &holds[1..2], &[register("A", 3, 8)])
            .await
            .unwrap(),
        [SettleOutcome::Done]
    );
    assert_eq!(
        test.gate
            .release(SHARD, &holds[1..2], &[register("A", 4, 7)])
            .await
            .unwrap(),
        [SettleOutcome::Absent],
        "a register alone is taken too"
    );
    let row = test.gate.snapshot(SHARD).await.unwrap().gates[&sku("A")];
    assert_eq!((row.limit, row.version, row.held), (7, 4, 1));

    test.run("CONFIG", &["SET", "maxmemory-policy", "allkeys-lru"])
        .await;
    assert!(!test.gate.check_safety().await.unwrap().is_safe());
}
