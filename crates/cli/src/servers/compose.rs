//! The same servers from `docker-compose.yml`, where an engine answers.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    ServerError, ServerName,
    files::{locate_upwards, random_secret, read_or_create},
    ports::Ports,
    process::{find_program, run},
    settings,
};

const FILE: &str = "docker-compose.yml";
/// How long an engine may take to say that it is there.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// A compose project that belongs to one state directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    name: String,
    file: PathBuf,
}

/// The compose file, if an engine answers that can run it.
pub async fn available() -> Option<PathBuf> {
    find_program("docker")?;
    let file = locate_upwards(Path::new(FILE))?;
    let mut info = Command::new("docker");
    info.args(["info", "--format", "{{.ServerVersion}}"]);
    let mut version = Command::new("docker");
    version.args(["compose", "version"]);
    let asked = async {
        run(info, "docker info").await.ok()?;
        run(version, "docker compose version").await.ok()
    };
    tokio::time::timeout(ANSWERS_WITHIN, asked).await.ok()??;
    Some(file)
}

impl Project {
    /// The project of a state directory.
    #[must_use]
    pub fn of(state_dir: &Path, file: PathBuf) -> Self {
        let digest = Sha256::digest(state_dir.as_os_str().as_encoded_bytes());
        Self {
            name: format!("holdfast-{}", hex::encode(&digest[..4])),
            file,
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("docker");
        command
            .args(["compose", "--project-name", &self.name, "--file"])
            .arg(&self.file);
        command
    }

    /// Starts `servers` and returns their addresses when their health checks pass.
    ///
    /// # Errors
    /// A container did not become healthy.
    pub async fn up(
        &self,
        state_dir: &Path,
        servers: &[ServerName],
    ) -> Result<Vec<(ServerName, String)>, ServerError> {
        let password = read_or_create(&state_dir.join("compose-password"), random_secret)?;
        let mut command = self.command();
        command.args(["up", "--detach", "--wait"]);
        command.env("HOLDFAST_POSTGRES_PASSWORD", &password);
        let mut addresses = Vec::new();
        for server in servers {
            let port = Ports::Free.choose(&state_dir.join(format!("compose-{server}-port")))?;
            command
                .arg(server.as_str())
                .env(port_variable(*server), port.to_string());
            addresses.push((*server, address(*server, port, &password)));
        }
        run(command, "docker compose up").await?;
        Ok(addresses)
    }

    /// Ends the containers; their volumes stay.
    ///
    /// # Errors
    /// The engine refused.
    pub async fn down(&self) -> Result<(), ServerError> {
        let mut command = self.command();
        command.arg("down");
        run(command, "docker compose down").await.map(drop)
    }
}

/// The variable of `docker-compose.yml` that sets the port of a server on this machine.
#[must_use]
pub fn port_variable(server: ServerName) -> &'static str {
    match server {
        ServerName::Postgres => "HOLDFAST_POSTGRES_PORT",
        ServerName::Redis => "HOLDFAST_REDIS_PORT",
        ServerName::Kafka => "HOLDFAST_KAFKA_PORT",
    }
}

fn address(server: ServerName, port: u16, password: &str) -> String {
    match server {
        ServerName::Postgres => {
            format!(
                "postgres://holdfast:{password}@127.0.0.1:{port}/{}",
                settings::DATABASE
            )
        }
        ServerName::Redis => format!("redis://127.0.0.1:{port}"),
        ServerName::Kafka => format!("127.0.0.1:{port}"),
    }
}
