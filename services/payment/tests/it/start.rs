use clap::Parser;
use payment::RunError;
use platform::Shutdown;

use crate::world::{Database, admin_url};

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    config: payment::Config,
}

async fn refused(flags: &[&str]) -> Vec<String> {
    let database = admin_url();
    let mut all = vec![
        "payment",
        "--redis-url",
        "redis://127.0.0.1:1",
        "--kafka-brokers",
        "127.0.0.1:1",
    ];
    if !flags.contains(&"--database-url") {
        all.extend(["--database-url", &database]);
    }
    all.extend(flags);
    let mut config = Flags::try_parse_from(all).unwrap().config;
    config.payment_listener = Some(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    match payment::run(config, Shutdown::new()).await {
        Err(RunError::Unsafe(found)) => found.problems,
        other => panic!("started: {other:?}"),
    }
}

fn names(problems: &[String], name: &str) -> bool {
    problems.iter().any(|problem| problem.contains(name))
}

#[tokio::test]
async fn all_unsafe_settings_are_named_at_once_also_while_the_database_is_away() {
    let problems = refused(&[
        "--payments",
        "upstream",
        "--environment",
        "production",
        "--gateway-url",
        "ftp://somewhere",
        "--payment-concurrency",
        "0",
        "--gateway-timeout-ms",
        "60000",
        "--database-url",
        "postgres://nobody@127.0.0.1:1/none",
    ])
    .await;
    for name in [
        "HOLDFAST_PAYMENTS",
        "HOLDFAST_WEBHOOK_SECRET",
        "GATEWAY_URL",
        "HOLDFAST_PAYMENT_CONCURRENCY",
        "HOLDFAST_GATEWAY_TIMEOUT_MS",
    ] {
        assert!(names(&problems, name), "{name} is not named: {problems:?}");
    }
}

#[tokio::test]
async fn another_schema_is_refused() {
    let empty = Database::new();
    let problems = refused(&["--database-url", &empty.url]).await;
    assert!(names(&problems, "schema"), "{problems:?}");
}
