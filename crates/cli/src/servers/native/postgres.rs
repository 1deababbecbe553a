//! PostgreSQL, durable as in production. It refuses to run as root, so root starts it under the
//! account `postgres`, in a directory that this account can reach.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use nix::{sys::signal::Signal, unistd::Uid};
use sha2::{Digest, Sha256};

use super::{Account, Recipe};
use crate::servers::{
    Launch, Ports, ServerError,
    files::{make_dir, random_secret, read_or_create},
    process::{find_program, run},
    settings,
};

const SUPERUSER: &str = "holdfast";

/// See the module.
#[derive(Debug)]
pub struct PostgresRecipe {
    programs: PathBuf,
    /// The cluster's directory and the superuser's password, in a directory that it can reach.
    data: PathBuf,
    password: String,
    account: Option<Account>,
    port: u16,
}

impl Recipe for PostgresRecipe {
    const NAME: &'static str = "postgres";
    /// "Fast": sessions are ended, then a checkpoint.
    const STOP: Signal = Signal::SIGINT;

    async fn prepare(home: &Path, ports: Ports) -> Result<Self, ServerError> {
        let port = ports.choose(&home.join("port"))?;
        let programs = find_programs()?;
        let account = account()?;
        let base = reachable(home, account);
        make_dir(&base)?;
        give(&base, account)?;
        let secret = base.join("password");
        let password = read_or_create(&secret, random_secret)?;
        give(&secret, account)?;
        let recipe = Self {
            programs,
            data: base.join("data"),
            password,
            account,
            port,
        };
        if !recipe.data.join("PG_VERSION").exists() {
            recipe.initdb(&secret).await?;
        }
        Ok(recipe)
    }

    fn launch(&self, log: &Path) -> Launch {
        let mut args: Vec<OsString> = vec!["-D".into(), self.data.clone().into()];
        let own = [
            ("listen_addresses", "127.0.0.1".to_owned()),
            ("port", self.port.to_string()),
            // TCP alone: a path in a deep state directory is too long for a socket's name.
            ("unix_socket_directories", String::new()),
        ];
        let shared = settings::POSTGRES
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        for (name, value) in own.into_iter().chain(shared) {
            args.extend(["-c".into(), format!("{name}={value}").into()]);
        }
        Launch {
            name: Self::NAME,
            program: self.programs.join("postgres"),
            args,
            envs: Vec::new(),
            dir: self.data.clone(),
            log: log.to_owned(),
            account: self.account,
        }
    }

    async fn probe(&self) -> Result<(), String> {
        self.psql("select 1")
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    }

    async fn finish(&self) -> Result<(), ServerError> {
        let exists = format!(
            "select 1 from pg_database where datname = '{}'",
            settings::DATABASE
        );
        if self.psql(&exists).await?.is_empty() {
            self.psql(&format!("create database {}", settings::DATABASE))
                .await?;
        }
        Ok(())
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn url(&self) -> String {
        self.url_of(settings::DATABASE)
    }

    fn forget(home: &Path) {
        let base = reachable(home, account().ok().flatten());
        if base != home.join("cluster") {
            let _ = fs::remove_dir_all(base);
        }
    }
}

impl PostgresRecipe {
    fn url_of(&self, database: &str) -> String {
        format!(
            "postgres://{SUPERUSER}:{}@127.0.0.1:{}/{database}",
            self.password, self.port
        )
    }

    async fn initdb(&self, secret: &Path) -> Result<(), ServerError> {
        let mut command = Command::new(self.programs.join("initdb"));
        command
            .arg("-D")
            .arg(&self.data)
            .args(["-U", SUPERUSER])
            .arg("--pwfile")
            .arg(secret)
            .args(settings::POSTGRES_INITDB)
            .arg(settings::POSTGRES_AUTH_LOOPBACK)
            .current_dir("/");
        if let Some(account) = self.account {
            command.uid(account.uid).gid(account.gid);
        }
        let made = run(command, "initdb").await;
        if made.is_err() {
            // A half-made cluster would be taken for a whole one the next time.
            let _ = fs::remove_dir_all(&self.data);
        }
        made.map(drop)
    }

    async fn psql(&self, sql: &str) -> Result<String, ServerError> {
        let mut command = Command::new(self.programs.join("psql"));
        command
            .args([
                "-X",
                "-A",
                "-t",
                "-q",
                "-h",
                "127.0.0.1",
                "-U",
                SUPERUSER,
                "-d",
                "postgres",
            ])
            .args(["-p", &self.port.to_string(), "-c", sql])
            .env("PGPASSWORD", &self.password)
            .env("PGCONNECT_TIMEOUT", "2");
        run(command, "psql").await
    }
}

/// The newest set of programs: on PATH, or where Debian keeps each version.
fn find_programs() -> Result<PathBuf, ServerError> {
    let on_path = find_program("initdb")
        .and_then(|initdb| initdb.canonicalize().ok())
        .and_then(|initdb| Some(initdb.parent()?.to_owned()))
        .filter(|dir| dir.join("postgres").is_file());
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let debian = versions
        .filter_map(|entry| {
            let version: u32 = entry.file_name().to_str()?.parse().ok()?;
            let programs = entry.path().join("bin");
            programs
                .join("initdb")
                .is_file()
                .then_some((version, programs))
        })
        .max()
        .map(|(_, programs)| programs);
    on_path.or(debian).ok_or_else(|| ServerError::Missing {
        what: "PostgreSQL (initdb)".to_owned(),
        instead: "set DATABASE_URL to a server that runs",
    })
}

fn account() -> Result<Option<Account>, ServerError> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    Account::named("postgres")
        .map(Some)
        .ok_or(ServerError::NoAccount)
}

/// A directory that `account` can reach: in `home` where every parent lets others pass, else in
/// /var/tmp under a name that only this home has (a checkout under /root is such a place).
fn reachable(home: &Path, account: Option<Account>) -> PathBuf {
    let inside = home.join("cluster");
    let Some(account) = account else {
        return inside;
    };
    let passes = |dir: &Path| {
        fs::metadata(dir).is_ok_and(|meta| meta.mode() & 0o001 != 0 || meta.uid() == account.uid)
    };
    if home.ancestors().all(passes) {
        return inside;
    }
    let name = hex::encode(&Sha256::digest(home.as_os_str().as_encoded_bytes())[..8]);
    Path::new("/var/tmp").join(format!("holdfast-postgres-{name}"))
}

fn give(path: &Path, account: Option<Account>) -> Result<(), ServerError> {
    let Some(account) = account else {
        return Ok(());
    };
    let mode = if path.is_dir() { 0o700 } else { 0o600 };
    chown(path, Some(account.uid), Some(account.gid))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(|source| ServerError::file("giving to postgres", path, source))
}
