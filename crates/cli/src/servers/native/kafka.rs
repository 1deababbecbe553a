//! Apache Kafka from its Maven artifacts: one node in KRaft mode, with its own controller.

use std::{
    ffi::OsString,
    fmt::Write,
    path::{Path, PathBuf},
    process::Command,
};

use nix::sys::signal::Signal;

use super::Recipe;
use crate::servers::{
    Launch, Ports, ServerError,
    files::{locate_upwards, read_or_create, write_private},
    ports::free_port,
    probe::kafka_answers,
    process::{find_program, run},
    settings,
};

const LOGGING: &str = include_str!("../../../../../deploy/kafka/log4j2.properties");

/// See the module.
#[derive(Debug)]
pub struct KafkaRecipe {
    java: PathBuf,
    /// A pattern that only java expands: every jar of a directory.
    jars: OsString,
    home: PathBuf,
    port: u16,
}

impl Recipe for KafkaRecipe {
    const NAME: &'static str = "kafka";
    const STOP: Signal = Signal::SIGTERM;

    async fn prepare(home: &Path, ports: Ports) -> Result<Self, ServerError> {
        let java = find_program("java").ok_or_else(|| ServerError::Missing {
            what: "java".to_owned(),
            instead: "set KAFKA_BROKERS to brokers that run",
        })?;
        let jars = find_libs()?.join("*").into_os_string();
        let port = ports.choose(&home.join("port"))?;
        let controller = match Ports::Free.choose(&home.join("controller-port"))? {
            taken if taken == port => free_port()?,
            free => free,
        };
        let recipe = Self {
            java,
            jars,
            home: home.to_owned(),
            port,
        };
        write_private(
            &home.join("server.properties"),
            &recipe.properties(controller),
        )?;
        write_private(&home.join("log4j2.properties"), LOGGING)?;
        if !home.join("data/meta.properties").exists() {
            recipe.format().await?;
        }
        Ok(recipe)
    }

    fn launch(&self, log: &Path) -> Launch {
        let logging = self.home.join("log4j2.properties");
        let mut option = OsString::from("-Dlog4j2.configurationFile=");
        option.push(logging);
        Launch {
            name: Self::NAME,
            program: self.java.clone(),
            args: vec![
                settings::KAFKA_HEAP.into(),
                // A server that lives for minutes is better off without the second compiler.
                "-XX:TieredStopAtLevel=1".into(),
                "-XX:+UseSerialGC".into(),
                option,
                "-cp".into(),
                self.jars.clone(),
                "kafka.Kafka".into(),
                self.home.join("server.properties").into(),
            ],
            envs: Vec::new(),
            dir: self.home.clone(),
            log: log.to_owned(),
            account: None,
        }
    }

    async fn probe(&self) -> Result<(), String> {
        kafka_answers(&self.url()).await
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn url(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl KafkaRecipe {
    fn properties(&self, controller: u16) -> String {
        let port = self.port;
        let mut text = format!(
            "listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\n\
             log.dirs={}\n",
            self.home.join("data").display()
        );
        for (name, value) in settings::KAFKA {
            // Writing to a string can't fail.
            let _ = writeln!(text, "{name}={value}");
        }
        text
    }

    /// Gives the data directory its cluster id: once, before the first start.
    async fn format(&self) -> Result<(), ServerError> {
        let id = read_or_create(&self.home.join("cluster-id"), cluster_id)?;
        let mut command = Command::new(&self.java);
        command
            .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"])
            .arg(&self.jars)
            .args(["kafka.tools.StorageTool", "format", "-t", &id, "-c"])
            .arg(self.home.join("server.properties"));
        run(command, "kafka.tools.StorageTool").await.map(drop)
    }
}

/// 22 characters of base64 alphabet, as Kafka wants its ids; the first is never a dash.
fn cluster_id() -> String {
    let hex = super::super::random_secret();
    format!("{}A", &hex[..21])
}

/// The directory of the jars, checked for the broker of the version that we mean.
fn find_libs() -> Result<PathBuf, ServerError> {
    let broker = format!("kafka_2.13-{}.jar", settings::KAFKA_VERSION);
    let given = std::env::var_os("KAFKA_HOME")
        .filter(|home| !home.is_empty())
        .map(|home| PathBuf::from(home).join("libs"));
    let found = match given {
        Some(libs) => Some(libs),
        None => locate_upwards(Path::new("target/kafka/libs")),
    };
    match found {
        Some(libs) if libs.join(&broker).is_file() => Ok(libs),
        _ => Err(ServerError::Missing {
            what: broker,
            instead: "set KAFKA_HOME to an unpacked release of this version, or KAFKA_BROKERS",
        }),
    }
}
