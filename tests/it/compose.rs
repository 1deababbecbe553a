//! Holds `docker-compose.yml` to the binary where no engine can run it: every command, variable,
//! port and health check in it is known, and the native stack starts the same programs with the
//! same settings.
#![expect(
    clippy::unwrap_used,
    reason = "a test that can't go on should say where"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use clap::{Command, CommandFactory};
use cli::{
    args::Cli,
    environment,
    servers::{ServerName, Servers, Source, StateDir, compose::port_variable, settings},
    services::{Plan, ServiceName},
};
use platform::{PaymentsMode, config::DEFAULT_SECRETS};
use serde_json::{Map, Value};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// The file with its merge keys (`<<`) carried out.
fn compose() -> Value {
    merged(serde_saphyr::from_str(&read("docker-compose.yml")).unwrap())
}

fn merged(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut out = Map::new();
            for (key, value) in map {
                match (key.as_str(), merged(value)) {
                    ("<<", Value::Object(base)) => {
                        for (key, value) in base {
                            out.entry(key).or_insert(value);
                        }
                    }
                    (_, value) => {
                        out.insert(key, value);
                    }
                }
            }
            Value::Object(out)
        }
        Value::Array(items) => Value::Array(items.into_iter().map(merged).collect()),
        other => other,
    }
}

/// `${NAME:-default}` becomes `default`; `$$` becomes `$`.
fn defaults(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (variable, after) = after.split_once('}').unwrap();
        let (_, default) = variable
            .split_once(":-")
            .unwrap_or_else(|| panic!("{variable}: no default"));
        out.push_str(before);
        out.push_str(default);
        rest = after;
    }
    out.push_str(rest);
    out.replace("$$", "$")
}

fn services() -> Map<String, Value> {
    compose()["services"].as_object().unwrap().clone()
}

fn service(name: &str) -> Value {
    services()
        .get(name)
        .unwrap_or_else(|| panic!("no service {name}"))
        .clone()
}

fn words(value: &Value) -> Vec<String> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|w| defaults(w.as_str().unwrap()))
        .collect()
}

fn variables(service: &Value) -> BTreeMap<String, String> {
    let map = service["environment"].as_object().unwrap();
    map.iter()
        .map(|(name, value)| (name.clone(), defaults(value.as_str().unwrap())))
        .collect()
}

/// The services that run our image, and what they are told to do.
fn ours() -> Vec<(String, Value)> {
    services()
        .into_iter()
        .filter(|(_, service)| {
            service["image"]
                .as_str()
                .unwrap()
                .contains("HOLDFAST_IMAGE")
        })
        .collect()
}

/// The command line with nothing required: addresses come from variables, not from flags.
fn relaxed(command: Command) -> Command {
    command
        .mut_args(|arg| arg.required(false))
        .mut_subcommands(relaxed)
}

fn parse(words: &[String]) {
    let words = std::iter::once("holdfast").chain(words.iter().map(String::as_str));
    if let Err(error) = relaxed(Cli::command()).try_get_matches_from(words) {
        panic!("the binary does not know this: {error}");
    }
}

fn known_variables(command: &Command, known: &mut BTreeSet<String>) {
    for arg in command.get_arguments() {
        known.extend(arg.get_env().map(|name| name.to_str().unwrap().to_owned()));
    }
    for subcommand in command.get_subcommands() {
        known_variables(subcommand, known);
    }
}

#[test]
fn every_command_is_known_to_the_binary() {
    let mut seen = 0;
    for (name, service) in ours() {
        if let Some(script) = service["entrypoint"].as_array() {
            assert_eq!(
                words(&service["entrypoint"])[..2],
                ["/bin/sh", "-c"],
                "{name}"
            );
            for command in script[2].as_str().unwrap().split("&&") {
                let mut words = command.split_whitespace().map(str::to_owned);
                assert_eq!(words.next().as_deref(), Some("holdfast"), "{name}");
                parse(&words.collect::<Vec<_>>());
                seen += 1;
            }
        } else {
            parse(&words(&service["command"]));
            seen += 1;
        }
    }
    assert!(seen >= 7, "only {seen} commands were looked at");
}

#[test]
fn every_service_of_the_binary_runs_and_takes_its_settings_from_the_variables() {
    for name in ServiceName::ALL {
        let service = service(name.as_str());
        let command = words(&service["command"]);
        assert_eq!(command, ["serve", name.as_str()]);
        let cli = Cli::command();
        let serve = cli.find_subcommand("serve").unwrap();
        let flags = serve.find_subcommand(name.as_str()).unwrap();
        let told = variables(&service);
        let given = flags.get_arguments().filter_map(|arg| {
            let value = told.get(arg.get_env()?.to_str()?)?;
            Some(format!("--{}={value}", arg.get_long()?))
        });
        let argv: Vec<String> = std::iter::once("holdfast".to_owned())
            .chain(command)
            .chain(given)
            .collect();
        if let Err(error) = Cli::command().try_get_matches_from(&argv) {
            panic!("{}: {error}", name.as_str());
        }
    }
}

#[test]
fn every_variable_is_known_to_the_binary() {
    let mut known = BTreeSet::from(["HOLDFAST_LOG", environment::HOLDFAST_URL].map(String::from));
    known_variables(&Cli::command(), &mut known);
    for (name, service) in ours() {
        for variable in variables(&service).keys() {
            assert!(
                known.contains(variable),
                "{name} is told {variable}: who reads it?"
            );
        }
    }
}

#[test]
fn the_native_stack_tells_its_services_the_same_variables() {
    let home = tempfile::tempdir().unwrap();
    let dir = StateDir::lock(home.path()).unwrap();
    let servers = Servers {
        database_url: "postgres://x".into(),
        redis_url: "redis://x".into(),
        kafka_brokers: "x:1".into(),
        sources: [Source::Environment; 3],
    };
    let plan = Plan::new(&dir, &servers, PaymentsMode::Internal).unwrap();
    let native: BTreeSet<&str> = plan.variables.keys().map(String::as_str).collect();
    let told = variables(&service("order"));
    let mut composed: BTreeSet<&str> = told.keys().map(String::as_str).collect();
    // What `up` inherits from its caller is spelled out for containers.
    composed.remove("HOLDFAST_ENV");
    composed.remove("HOLDFAST_LOG");
    assert_eq!(native, composed);
}

#[test]
fn default_secrets_are_those_that_production_refuses() {
    for (name, value) in variables(&service("order")) {
        if name.ends_with("_KEY") || name.ends_with("_SECRET") {
            assert!(DEFAULT_SECRETS.contains(&value.as_str()), "{name}={value}");
        }
    }
}

#[test]
fn every_service_listens_where_its_port_is_published_and_every_port_can_be_moved() {
    for name in ServiceName::ALL {
        let service = service(name.as_str());
        let listen = &variables(&service)[name.listen_variable()];
        assert_eq!(*listen, format!("0.0.0.0:{}", name.default_port()));
        let ports = words(&service["ports"]);
        assert_eq!(ports, [format!("127.0.0.1:{0}:{0}", name.default_port())]);
    }
    for name in ServerName::ALL {
        let service = service(name.as_str());
        let port = service["ports"][0].as_str().unwrap();
        assert!(
            port.contains(&format!("${{{}:-", port_variable(name))),
            "{port}"
        );
    }
    for (name, service) in services() {
        for port in service["ports"].as_array().into_iter().flatten() {
            let port = port.as_str().unwrap();
            assert!(
                port.starts_with("${HOLDFAST_BIND:-127.0.0.1}:${HOLDFAST_"),
                "{name}: {port}"
            );
        }
    }
}

#[test]
fn every_health_check_asks_the_service_itself() {
    for (name, service) in services() {
        let one_shot = service["restart"] == "no";
        let check = &service["healthcheck"]["test"];
        if one_shot {
            assert!(check.is_null(), "{name}");
            continue;
        }
        let check = words(check);
        if service["image"]
            .as_str()
            .unwrap()
            .contains("HOLDFAST_IMAGE")
        {
            assert_eq!(
                check[..5],
                ["CMD", "holdfast", "doctor", "--wait", &name],
                "{name}"
            );
            parse(&check[2..]);
        } else {
            let asks = [
                "select 1",
                "redis-cli ping | grep -q PONG",
                "kafka-topics.sh",
            ];
            assert_eq!(
                asks.iter().filter(|ask| check[1].contains(**ask)).count(),
                1,
                "{name}"
            );
        }
        for needed in service["depends_on"].as_object().into_iter().flatten() {
            let condition = needed.1["condition"].as_str().unwrap();
            let expected = if needed.0 == "init" {
                "service_completed_successfully"
            } else {
                "service_healthy"
            };
            assert_eq!(condition, expected, "{name} needs {}", needed.0);
        }
    }
}

#[test]
fn images_are_pinned_and_kafka_is_the_version_that_runs_without_an_engine() {
    for (name, service) in services() {
        let image = defaults(service["image"].as_str().unwrap());
        let (_, tag) = image
            .rsplit_once(':')
            .unwrap_or_else(|| panic!("{name}: {image} has no tag"));
        assert!(
            tag != "latest" && tag.chars().any(|c| c.is_ascii_digit()),
            "{name}: {image}"
        );
    }
    for line in read("Dockerfile")
        .lines()
        .filter(|line| line.starts_with("FROM "))
    {
        let image = line.split_whitespace().nth(1).unwrap();
        let (_, tag) = image
            .rsplit_once(':')
            .unwrap_or_else(|| panic!("{image} has no tag"));
        assert!(
            tag != "latest" && tag.chars().any(|c| c.is_ascii_digit()),
            "{image}"
        );
    }
    let version = settings::KAFKA_VERSION;
    assert_eq!(service("kafka")["image"], format!("apache/kafka:{version}"));
    let pom = read("deploy/kafka/pom.xml");
    assert!(pom.contains(&format!("<kafka.version>{version}</kafka.version>")));
}

#[test]
fn the_image_runs_as_nobody_in_particular() {
    let dockerfile = read("Dockerfile");
    let last = dockerfile.rsplit("FROM ").next().unwrap();
    let user = last
        .lines()
        .find_map(|line| line.strip_prefix("USER "))
        .unwrap();
    let uid: u32 = user.split(':').next().unwrap().parse().unwrap();
    assert!(uid > 0);
}

#[test]
fn postgres_runs_with_the_settings_of_the_native_one() {
    let service = service("postgres");
    let command = words(&service["command"]);
    let given: Vec<(&str, &str)> = command
        .iter()
        .filter(|word| *word != "-c")
        .skip(1)
        .filter_map(|w| w.split_once('='))
        .collect();
    assert_eq!(given, settings::POSTGRES);
    let environment = variables(&service);
    let initdb = [settings::POSTGRES_INITDB, &[settings::POSTGRES_AUTH]].concat();
    assert_eq!(environment["POSTGRES_INITDB_ARGS"], initdb.join(" "));
    assert_eq!(environment["POSTGRES_DB"], settings::DATABASE);
}

#[test]
fn redis_runs_with_the_settings_of_the_native_one() {
    let command = words(&service("redis")["command"]);
    assert_eq!(command[0], "redis-server");
    let given: Vec<(&str, &str)> = command[1..]
        .chunks(2)
        .map(|pair| (pair[0].trim_start_matches("--"), &*pair[1]))
        .collect();
    assert_eq!(given, settings::REDIS);
}

#[test]
fn kafka_runs_with_the_settings_of_the_native_one() {
    let environment = variables(&service("kafka"));
    for (name, value) in settings::KAFKA {
        let variable = format!("KAFKA_{}", name.to_uppercase().replace('.', "_"));
        assert_eq!(
            environment.get(&variable).map(String::as_str),
            Some(*value),
            "{variable}"
        );
    }
    assert_eq!(environment["KAFKA_HEAP_OPTS"], settings::KAFKA_HEAP);
}
