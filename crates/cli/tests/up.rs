//! `holdfast up`, `down` and `doctor` as a person runs them, with real servers.
#![expect(
    clippy::unwrap_used,
    reason = "a test that can't go on should say where"
)]

use std::{
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use cli::servers::{Identity, Ports, State, Stopped, native};

const SERVERS: [&str; 3] = ["DATABASE_URL", "REDIS_URL", "KAFKA_BROKERS"];

fn holdfast(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command
        .args(args)
        .env("HOLDFAST_STATE_DIR", dir)
        .env("HOLDFAST_NO_DOCKER", "true");
    for name in SERVERS {
        command.env_remove(name);
    }
    command
}

fn run(dir: &Path, args: &[&str]) -> Output {
    holdfast(dir, args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Ends the servers of a directory also when the test fails.
struct Ended<'a>(&'a Path);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        run(self.0, &["down", "--delete-data"]);
    }
}

#[test]
fn up_twice_finds_one_set_of_servers_and_down_ends_it_alone() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("state");
    let _ended = Ended(&dir);
    let up = ["up", "--servers-only", "--detach", "--output", "json"];
    let first = json(&run(&dir, &up));
    let second = json(&run(&dir, &up));
    assert_eq!(first["addresses"], second["addresses"]);
    assert_eq!(first["sources"]["kafka"], "native");
    assert_eq!(second["sources"]["kafka"], "running");

    let mut doctor = holdfast(&dir, &["doctor", "--output", "json"]);
    for name in SERVERS {
        doctor.env(name, first["addresses"][name].as_str().unwrap());
    }
    assert_eq!(json(&doctor.output().unwrap())["ok"], true);

    let started = State::read(&dir).unwrap().entries;
    assert_eq!(started.len(), 3);
    let down = json(&run(&dir, &["down", "--output", "json"]));
    assert_eq!(down["stopped"].as_array().unwrap().len(), 3);
    for entry in started {
        assert!(!entry.identity.is_running(), "{} still runs", entry.name);
    }
    let again = json(&run(&dir, &["down", "--output", "json"]));
    assert_eq!(again["stopped"].as_array().unwrap().len(), 0);
    assert_eq!(doctor.output().unwrap().status.code(), Some(4));
}

#[test]
fn what_fails_half_way_is_undone_and_said() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("state");
    let _ended = Ended(&dir);
    // Redis starts; there is no Kafka.
    let failed = holdfast(&dir, &["up", "--servers-only", "--detach"])
        .env("KAFKA_HOME", home.path())
        .output()
        .unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(
        text(&failed.stderr).contains("KAFKA_HOME"),
        "{}",
        text(&failed.stderr)
    );
    assert!(!dir.join("holdfast.env").exists());
    for entry in State::read(&dir).unwrap().entries {
        assert!(!entry.identity.is_running(), "{} still runs", entry.name);
    }
}

/// Stands in for an engine: answers, and writes down what it was asked for.
const ENGINE: &str = r#"#!/bin/sh
echo "$* | $HOLDFAST_POSTGRES_PORT $HOLDFAST_REDIS_PORT $HOLDFAST_KAFKA_PORT" >> "$ENGINE_LOG"
"#;

#[test]
fn where_an_engine_answers_compose_starts_what_no_address_is_given_for() {
    let home = tempfile::tempdir().unwrap();
    let (dir, bin) = (home.path().join("state"), home.path().join("bin"));
    std::fs::create_dir(&bin).unwrap();
    std::fs::write(bin.join("docker"), ENGINE).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(bin.join("docker"), executable).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let log = home.path().join("asked");
    let with_engine = |args: &[&str]| {
        let mut command = holdfast(&dir, args);
        command
            .env("PATH", &path)
            .env("ENGINE_LOG", &log)
            .env("HOLDFAST_NO_DOCKER", "false");
        command.env("REDIS_URL", "redis://10.0.0.1:1");
        json(&command.output().unwrap())
    };

    let up = with_engine(&["up", "--servers-only", "--detach", "--output", "json"]);
    assert_eq!(up["sources"]["postgres"], "compose");
    assert_eq!(up["sources"]["redis"], "environment");
    assert_eq!(up["addresses"]["REDIS_URL"], "redis://10.0.0.1:1");
    with_engine(&["down", "--output", "json"]);

    let asked = std::fs::read_to_string(&log).unwrap();
    let line = |what: &str| {
        asked
            .lines()
            .find(|line| line.contains(what))
            .unwrap()
            .to_owned()
    };
    let started = line(" up --detach --wait postgres kafka");
    assert!(
        started.starts_with("compose --project-name holdfast-"),
        "{started}"
    );
    assert!(line("docker-compose.yml down").starts_with("compose --project-name holdfast-"));
    for port in started.rsplit_once("| ").unwrap().1.split_whitespace() {
        assert!(
            up["addresses"].to_string().contains(port),
            "{port} of {started}"
        );
    }
}

/// A process of ours that sleeps until it is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(
            Command::new("sleep")
                .arg("600")
                .stdin(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    fn identity(&self) -> Identity {
        Identity::of(i32::try_from(self.0.id()).unwrap()).unwrap()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Writes a state file that names one process.
fn remember(dir: &Path, boot: &str, identity: Identity) {
    let entry = serde_json::json!({
        "name": "order", "role": "service", "address": "http://127.0.0.1:1",
        "log": dir.join("logs/order.log"), "identity": identity,
    });
    let state = serde_json::json!({ "boot": boot, "compose": null, "entries": [entry] });
    std::fs::write(dir.join("state.json"), state.to_string()).unwrap();
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap()
        .trim()
        .to_owned()
}

#[test]
fn down_ends_the_process_that_it_knows_and_never_one_that_has_its_number() {
    let home = tempfile::tempdir().unwrap();
    let sleeper = Sleeper::start();
    let known = sleeper.identity();

    let reused = Identity {
        started: known.started.wrapping_sub(1),
        ..known
    };
    remember(home.path(), &boot_id(), reused);
    let down = json(&run(home.path(), &["down", "--output", "json"]));
    assert_eq!(down["stopped"][0]["how"], "was_gone");
    assert!(known.is_running());

    remember(home.path(), "another life of the machine", known);
    let down = json(&run(home.path(), &["down", "--output", "json"]));
    assert_eq!(down["stopped"].as_array().unwrap().len(), 0);
    assert!(known.is_running());

    remember(home.path(), &boot_id(), known);
    let down = json(&run(home.path(), &["down", "--output", "json"]));
    assert_eq!(down["stopped"][0]["how"], "ended");
    assert!(!known.is_running());
}

#[test]
fn exit_codes_are_those_of_the_contract() {
    let home = tempfile::tempdir().unwrap();
    let code = |args: &[&str]| run(home.path(), args).status.code();
    assert_eq!(code(&["down"]), Some(0));
    assert_eq!(code(&["nonsense"]), Some(2));
    assert_eq!(code(&["down", "--output", "xml"]), Some(2));
    assert_eq!(code(&["doctor"]), Some(2));
    let unreachable = ["doctor", "--wait", "redis", "--timeout", "1ms"];
    let asked = holdfast(home.path(), &unreachable)
        .env("REDIS_URL", "redis://127.0.0.1:1")
        .output();
    assert_eq!(asked.unwrap().status.code(), Some(4));
}

/// An address of this machine at which nobody listens.
fn nobody() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[tokio::test]
async fn a_command_whose_server_cannot_be_reached_ends_with_its_code() {
    let home = tempfile::tempdir().unwrap();
    let [data, keys] = ["postgres", "redis"].map(|name| home.path().join(name));
    std::fs::create_dir(&data).unwrap();
    std::fs::create_dir(&keys).unwrap();
    let postgres = native::Postgres::start(&data, Ports::Free).await.unwrap();
    let redis = native::Redis::start(&keys, Ports::Free).await.unwrap();
    let (database, gate) = (postgres.url(), redis.url());
    let migrated = run(home.path(), &["migrate", "--database-url", &database]);
    assert!(migrated.status.success(), "{}", text(&migrated.stderr));

    let (no_database, no_gate) = (
        format!("postgres://nobody@{}/none", nobody()),
        format!("redis://{}", nobody()),
    );
    let (no_broker, no_service) = (nobody(), format!("http://{}", nobody()));
    let verify = |database: &str, gate: &str| {
        let servers = ["--database-url", database, "--redis-url", gate];
        let mut command = holdfast(home.path(), &["verify"]);
        command.args(servers).args(["--kafka-brokers", &no_broker]);
        command
    };
    let id = "019ac000-0000-7000-8000-000000000000";
    let get = ["order", "get", id, "--api-key=key", "--url", &no_service];
    let commands = [
        ("PostgreSQL", verify(&no_database, &gate)),
        ("Redis", verify(&database, &no_gate)),
        ("Kafka", verify(&database, &gate)),
        ("127.0.0.1", holdfast(home.path(), &get)),
    ];
    // At once: a broker is waited for longest.
    let running = commands.map(|(server, mut command)| {
        let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
        (server, command.spawn().unwrap())
    });
    for (server, running) in running {
        let ended = running.wait_with_output().unwrap();
        let said = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(4), "{server}: {said}");
        assert!(said.contains(server), "{server} is not named: {said}");
    }
}

#[tokio::test]
async fn a_private_server_keeps_its_port_through_stop_and_kill_and_ends_with_its_value() {
    let home = tempfile::tempdir().unwrap();
    let mut redis = native::Redis::start(home.path(), Ports::Free)
        .await
        .unwrap();
    let url = redis.url();
    assert_eq!(redis.stop().await, Stopped::Ended);
    assert_eq!(redis.stop().await, Stopped::WasGone);
    redis.restart().await.unwrap();
    redis.kill().await;
    assert!(!redis.identity().is_running());
    redis.restart().await.unwrap();
    assert_eq!(redis.url(), url);
    let last = redis.identity();
    drop(redis);
    assert!(!last.is_running());
}

#[tokio::test]
async fn a_private_postgres_is_back_at_once_after_a_kill() {
    let home = tempfile::tempdir().unwrap();
    let mut postgres = native::Postgres::start(home.path(), Ports::Free)
        .await
        .unwrap();
    let port = postgres.port();
    postgres.kill().await;
    postgres.restart().await.unwrap();
    assert_eq!(postgres.port(), port);
}
