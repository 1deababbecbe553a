//! Redis: nothing is evicted, and a restart finds its data.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

use nix::sys::signal::Signal;

use super::Recipe;
use crate::servers::{
    Launch, Ports, ServerError,
    files::{make_dir, random_secret, read_or_create, write_private},
    probe::redis_answers,
    process::find_program,
    settings,
};

/// See the module.
#[derive(Debug)]
pub struct RedisRecipe {
    program: PathBuf,
    home: PathBuf,
    password: String,
    port: u16,
}

impl Recipe for RedisRecipe {
    const NAME: &'static str = "redis";
    const STOP: Signal = Signal::SIGTERM;

    async fn prepare(home: &Path, ports: Ports) -> Result<Self, ServerError> {
        let program = find_program("redis-server").ok_or_else(|| ServerError::Missing {
            what: "redis-server".to_owned(),
            instead: "set REDIS_URL to a server that runs",
        })?;
        let port = ports.choose(&home.join("port"))?;
        let password = read_or_create(&home.join("password"), random_secret)?;
        let data = home.join("data");
        make_dir(&data)?;
        let mut config = format!(
            "bind 127.0.0.1\nport {port}\ndir \"{}\"\nrequirepass {password}\ndaemonize no\n",
            data.display()
        );
        for (name, value) in settings::REDIS {
            let value = if value.is_empty() { "\"\"" } else { value };
            // Writing to a string can't fail.
            let _ = writeln!(config, "{name} {value}");
        }
        write_private(&home.join("redis.conf"), &config)?;
        Ok(Self {
            program,
            home: home.to_owned(),
            password,
            port,
        })
    }

    fn launch(&self, log: &Path) -> Launch {
        Launch {
            name: Self::NAME,
            program: self.program.clone(),
            args: vec![self.home.join("redis.conf").into()],
            envs: Vec::new(),
            dir: self.home.join("data"),
            log: log.to_owned(),
            account: None,
        }
    }

    async fn probe(&self) -> Result<(), String> {
        redis_answers(&format!("127.0.0.1:{}", self.port), Some(&self.password)).await
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn url(&self) -> String {
        format!("redis://:{}@127.0.0.1:{}", self.password, self.port)
    }
}
