use contracts::Sku;
use store::{Lease, skus, stock};

use crate::support::{hold, sku, sku_put, wait_for, with_db};

#[tokio::test(flavor = "multi_thread")]
async fn sorted_locks_of_many_skus_never_deadlock() {
    with_db(|db| async move {
        const SKUS: usize = 20;
        const TASKS: usize = 8;
        const ROUNDS: usize = 40;
        // Names whose order differs between languages: only "C" sorts them as Rust does.
        let names: Vec<String> = (0..SKUS)
            .map(|n| format!("{}{n}", ["A-", "A_", "AB", "A0"][n % 4]))
            .collect();
        for name in &names {
            db.put(&sku_put(name, 1_000_000)).await?;
        }
        let mut tasks = Vec::new();
        for task in 0..TASKS {
            let (store, names) = (db.store.clone(), names.clone());
            tasks.push(tokio::spawn(async move {
                for round in 0..ROUNDS {
                    // Another choice and another order in each round.
                    let mut mine: Vec<Sku> = (0..7)
                        .map(|n| sku(&names[(task * 7 + round * 3 + n * (1 + task % 5)) % SKUS]))
                        .collect();
                    if round % 2 == 0 {
                        mine.reverse();
                    }
                    let mut tx = store.begin().await?;
                    let mut rows = if task % 2 == 0 {
                        stock::lock(&mut tx, &mine).await?
                    } else {
                        stock::lock_for_accept(&mut tx, &mine).await?.rows
                    };
                    for row in rows.values_mut() {
                        row.held += 1;
                    }
                    stock::write(&mut tx, &rows).await?;
                    let written = rows.len();
                    tx.commit().await?;
                    assert!(written > 0);
                }
                anyhow::Ok(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        assert!(db.number("select sum(held)::bigint from stock").await? > 0);
        let deadlocks = "select deadlocks from pg_stat_database where datname = current_database()";
        assert_eq!(db.number(deadlocks).await?, 0);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accept_that_waited_for_a_change_of_the_catalogue_sees_it() {
    with_db(|db| async move {
        db.put(&sku_put("MOVED", 10)).await?;
        let mut changed = sku_put("MOVED", 10);
        changed.unit_price.amount_minor += 1;
        changed.reservation_ttl_seconds += 1;
        let mut change = db.store.begin().await?;
        skus::put(&mut change, &changed, hold("change")).await?;

        let store = db.store.clone();
        let accept = tokio::spawn(async move {
            let mut tx = store.begin().await?;
            let view = stock::lock_for_accept(&mut tx, &[sku("MOVED")]).await?;
            tx.rollback().await?;
            anyhow::Ok(view)
        });
        wait_for("the accept waits for the lock", || async {
            let waiting = "select count(*) from pg_stat_activity
                           where datname = current_database() and wait_event_type = 'Lock'";
            Ok(db.number(waiting).await? > 0)
        })
        .await?;
        change.commit().await?;

        let view = accept.await??;
        let seen = &view.skus[&sku("MOVED")];
        assert_eq!(seen.unit_price, changed.unit_price);
        assert_eq!(seen.ttl_seconds, changed.reservation_ttl_seconds);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_has_one_holder_and_passes_on_when_dropped() {
    with_db(|db| async move {
        let first = Lease::try_acquire(&db.options, "relay")
            .await?
            .expect("free");
        assert!(Lease::try_acquire(&db.options, "relay").await?.is_none());
        assert!(
            Lease::try_acquire(&db.options, "expiry").await?.is_some(),
            "another name"
        );
        drop(first);
        wait_for("the lease passes on", || async {
            Ok(Lease::try_acquire(&db.options, "relay").await?.is_some())
        })
        .await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_holder_loses_its_lease() {
    with_db(|db| async move {
        let mut silent = Lease::try_acquire(&db.options, "relay")
            .await?
            .expect("free");
        silent.heartbeat().await?;
        wait_for("the server ends the silent session", || async {
            Ok(Lease::try_acquire(&db.options, "relay").await?.is_some())
        })
        .await?;
        let error = silent.heartbeat().await.expect_err("lost");
        assert!(error.is_transient(), "{error:?}");
        Ok(())
    })
    .await;
}
