use std::time::Duration;

use sqlx::Row;
use store::{Store, StoreError, StoreOptions, migrate};

use crate::support::with_db;

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_commit_is_an_unknown_outcome() {
    with_db(|db| async move {
        let mut tx = db.store.begin().await?;
        let pid: i32 = sqlx::query("select pg_backend_pid()")
            .fetch_one(&mut *tx)
            .await?
            .try_get(0)?;
        db.number(&format!("select pg_terminate_backend({pid})::int::bigint"))
            .await?;
        let error = tx.commit().await.expect_err("the session is gone");
        assert!(
            error.is_unknown_outcome() && error.is_transient(),
            "{error:?}"
        );
        db.store.ping().await?;
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_commit_is_known_to_be_undone() {
    with_db(|db| async move {
        db.run(
            "create table t (n int, constraint t_once unique (n) deferrable initially deferred)",
        )
        .await?;
        let mut tx = db.store.begin().await?;
        sqlx::query("insert into t values (1), (1)")
            .execute(&mut *tx)
            .await?;
        let error = tx.commit().await.expect_err("a violation");
        assert!(matches!(error, StoreError::RolledBack(_)), "{error:?}");
        assert_eq!(error.constraint(), Some("t_once"));
        assert!(!error.is_unknown_outcome() && !error.is_transient());
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_used_up_pool_is_a_short_wait_and_transient() {
    with_db(|db| async move {
        let small = db.store_with(|options| {
            options.max_connections = 1;
            options.acquire_timeout = Duration::from_secs(1);
        });
        let held = small.begin().await?;
        let error = small.begin().await.expect_err("used up");
        assert!(
            matches!(error, StoreError::Connect(_)) && error.is_transient(),
            "{error:?}"
        );
        held.rollback().await?;
        small.ping().await?;
        Ok(())
    })
    .await;
}

/// Those who have given up stay in the driver's queue before those who wait.
#[tokio::test(flavor = "multi_thread")]
async fn sixteen_wait_for_a_connection_and_are_served_and_one_more_is_told_at_once() {
    with_db(|db| async move {
        let narrow = db.store_with(|options| {
            options.max_connections = 1;
            options.acquire_timeout = Duration::from_mins(2);
        });
        let held = narrow.conn().await?;
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..17 {
            let narrow = narrow.clone();
            waiting.spawn(async move { narrow.conn().await.map(drop) });
        }
        let told = tokio::time::timeout(Duration::from_secs(30), waiting.join_next());
        let error = told
            .await?
            .expect("seventeen")?
            .expect_err("one is too many");
        assert!(
            matches!(error, StoreError::Connect(_)) && error.is_transient(),
            "{error:?}"
        );
        assert!(!error.is_absence(), "busy, not away: {error:?}");
        drop(held);
        while let Some(served) = waiting.join_next().await {
            served??;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_is_transient_and_a_store_is_made_without_it() {
    let mut options = StoreOptions::new("postgres://nobody@127.0.0.1:1/none", "test");
    options.acquire_timeout = Duration::from_millis(200);
    let store = Store::connect(&options).expect("lazy");
    let error = store.ping().await.expect_err("nobody there");
    assert!(error.is_transient(), "{error:?}");
    let error = Store::connect(&StoreOptions::new("http://x", "test")).expect_err("no URL");
    assert!(matches!(error, StoreError::Url(_)) && !error.is_transient());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_silent_is_ended_by_the_server() {
    with_db(|db| async move {
        let strict = db.store_with(|options| {
            options.idle_in_transaction_session_timeout = Duration::from_millis(100);
        });
        let mut tx = strict.begin().await?;
        sqlx::query("insert into heartbeats (name) values ('x')")
            .execute(&mut *tx)
            .await?;
        let sessions = "select count(*) from pg_stat_activity
                        where datname = current_database() and state like 'idle in transaction%'";
        crate::support::wait_for("the session is ended", || async {
            Ok(db.number(sessions).await? == 0)
        })
        .await?;
        let error = tx.commit().await.expect_err("ended");
        assert!(error.is_unknown_outcome(), "{error:?}");
        assert_eq!(db.number("select count(*) from heartbeats").await?, 0);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_another_version_is_unsafe() {
    with_db(|db| async move {
        let safe = db.store.check_safety().await?;
        assert!(
            safe.iter().all(|problem| !problem.contains("schema")),
            "{safe:?}"
        );
        let again = migrate(&db.options.url).await?;
        assert_eq!(again.applied, [] as [i64; 0]);
        assert_eq!(again.version, store::migrate::expected_version());
        let last = store::migrate::expected_version();
        let forget = format!("delete from _sqlx_migrations where version = {last}");
        db.run(&forget).await?;
        let problems = db.store.check_safety().await?;
        let before = format!("version {}", last - 1);
        assert!(
            problems.iter().any(|problem| problem.contains(&before)),
            "{problems:?}"
        );
        Ok(())
    })
    .await;
}
