//! PostgreSQL slow, silent, locked, read-only, or gone: never a refusal for it,
//! and one order for each key. Each fault must be seen to bite, else the test says nothing.

use std::{sync::atomic::Ordering, time::Duration};

use cli::servers::{Ports, native};
use tests::{
    Options, Sale, World, api,
    proxy::{Fault, Kind, Link, Rule, Towards},
    world::private_dir,
};

/// F36, F37, F40 to F42 for PostgreSQL, and frames in pieces.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_becomes_of_postgres_a_key_has_one_order() {
    let mut sale = Sale::open(Options {
        proxy_order_database: true,
        ..Options::default()
    })
    .await;
    let Some(proxy) = sale.world.proxy.take() else {
        panic!("no proxy")
    };

    let slow = Fault::DelayRequest(Duration::from_millis(200));
    let slow = proxy.add(Rule::new(Kind::Commit, slow));
    sale.goes_on("commits slow by 200 ms", 60).await;
    assert!(slow.bites() > 0);
    proxy.clear();

    proxy.set(Link {
        slice: Some(7),
        ..Link::default()
    });
    sale.goes_on("messages in pieces of 7 bytes", 10).await;
    assert!(proxy.bites().slowed.load(Ordering::SeqCst) > 0);

    for towards in [Towards::Both, Towards::Client, Towards::Server] {
        proxy.set(Link::default());
        sale.goes_on(&format!("before silence {towards:?}"), 4)
            .await;
        let before = proxy.bites().silenced.load(Ordering::SeqCst);
        proxy.set(Link::silent(towards));
        sale.is_refused(&format!("silent-{towards:?}")).await;
        assert!(proxy.bites().silenced.load(Ordering::SeqCst) > before);
        proxy.set(Link::default());
        sale.goes_on(&format!("after silence {towards:?}"), 4).await;
    }
    proxy.reset();
    sale.goes_on("postgres connections reset", 10).await;

    lock_row(&mut sale).await;
    read_only(&mut sale).await;
    sale.world.proxy = Some(proxy);
    sale.closes().await;
}

/// F36: another session holds the hot row for longer than `lock_timeout`.
async fn lock_row(sale: &mut Sale) {
    use sqlx::{Connection, Executor};
    let hold = async {
        let mut other = sqlx::PgConnection::connect(&sale.world.database_url).await?;
        other
            .execute("begin; select 1 from stock where sku = 'FAULT' for update")
            .await?;
        Ok::<_, sqlx::Error>(other)
    };
    let mut other = match hold.await {
        Ok(other) => other,
        Err(error) => panic!("{error}"),
    };
    let begun = platform::clock::monotonic();
    let release = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        other.execute("commit").await
    };
    let (released, ()) = tokio::join!(release, sale.goes_on("stock row locked for 700 ms", 10));
    assert!(released.is_ok() && begun.elapsed() >= Duration::from_millis(700));
}

/// F37: the server has become a standby.
async fn read_only(sale: &mut Sale) {
    let name = sale
        .world
        .database_url
        .rsplit_once('/')
        .map_or("", |(_, name)| name)
        .to_owned();
    let all_sessions = format!(
        "select pg_terminate_backend(pid) from pg_stat_activity \
         where datname = '{name}' and application_name like 'holdfast%'"
    );
    let read_only = format!("alter database {name} set default_transaction_read_only = on");
    sale.world.tamper(&read_only).await;
    sale.world.tamper(&all_sessions).await;
    sale.is_refused("read-only").await;
    let back = format!(
        "begin read write; alter database {name} reset default_transaction_read_only; commit"
    );
    sale.world.tamper(&back).await;
    sale.world.tamper(&all_sessions).await;
    sale.goes_on("after a read only server", 10).await;
}

/// F33 and F34: PostgreSQL dies, or loses a backend.
#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_dies_under_load_is_waited_for() {
    let mut postgres =
        match native::Postgres::start(&private_dir("faulty-postgres"), Ports::Free).await {
            Ok(postgres) => postgres,
            Err(error) => panic!("a test needs its PostgreSQL: {error}"),
        };
    let mut sale = Sale::open(Options {
        database_url: Some(postgres.url()),
        ..Options::default()
    })
    .await;
    sale.goes_on("before", 10).await;
    // All its processes at once, as a power cut: crash recovery follows.
    let restart = async {
        postgres.kill().await;
        refused_or_accepted(&sale.world.shop()).await;
        postgres.restart().await
    };
    if let Err(error) = restart.await {
        panic!("{error}");
    }
    sale.goes_on("after a power cut", 20).await;

    kill_a_backend(&sale.world).await;
    sale.goes_on("after a backend was killed", 20).await;

    sale.closes().await;
    postgres.stop().await;
}

async fn refused_or_accepted(shop: &tests::Api) {
    let body = api::order("c", &[("NO-SUCH", 1)]);
    let answer = shop.place("while-down", &body).await;
    assert_eq!(answer.status, 503, "{}", answer.json());
}

/// The postmaster resets everybody when one backend dies of SIGKILL.
async fn kill_a_backend(world: &World) {
    let pid = world
        .count(
            "select pid::bigint from pg_stat_activity where datname = current_database() \
             and application_name like 'holdfast%' limit 1",
        )
        .await;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap_or_default());
    if let Err(error) = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL) {
        panic!("backend {pid}: {error}");
    }
}
