//! What a state directory remembers: the processes that were started for it, and nothing else.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};

use super::{Identity, ServerError, compose::Project, files::make_dir, write_private};

const FILE: &str = "state.json";

/// Whether a process is somebody's server or one of our services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// PostgreSQL, Redis or Kafka: stopped after the services.
    Server,
    /// A service of ours.
    Service,
}

/// One process that was started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    /// `postgres`, `order`, ...
    pub name: String,
    /// What it is.
    pub role: Role,
    /// Its id and start time.
    pub identity: Identity,
    /// Where it answers.
    pub address: String,
    /// Its output.
    pub log: PathBuf,
}

/// The content of the state file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct State {
    /// Which life of the machine the process ids belong to.
    boot: String,
    /// The compose project that was started for this directory.
    pub compose: Option<Project>,
    /// In the order of their start.
    pub entries: Vec<Entry>,
}

impl State {
    /// What `dir` remembers; empty when it remembers nothing, or only another life of the machine.
    ///
    /// # Errors
    /// There is a file, and it can't be read.
    pub fn read(dir: &Path) -> Result<Self, ServerError> {
        let path = dir.join(FILE);
        let empty = Self {
            boot: boot_id(),
            ..Self::default()
        };
        if !path.exists() {
            return Ok(empty);
        }
        let text = fs::read_to_string(&path).map_err(|e| ServerError::file("reading", &path, e))?;
        let state: Self =
            serde_json::from_str(&text).map_err(|source| ServerError::BadState { path, source })?;
        if state.boot == empty.boot {
            return Ok(state);
        }
        Ok(Self {
            compose: state.compose,
            ..empty
        })
    }

    /// The entry of this name whose process still runs.
    #[must_use]
    pub fn running(&self, name: &str) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| entry.name == name && entry.identity.is_running())
    }

    /// Puts an entry in the place of one of the same name.
    pub fn record(&mut self, entry: Entry) {
        self.entries.retain(|known| known.name != entry.name);
        self.entries.push(entry);
    }
}

/// A state directory that nobody else changes while this value lives.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    state: Mutex<State>,
    /// The lock ends with the file, also when the process is killed.
    _lock: fs::File,
}

impl StateDir {
    /// Makes the directory if need be and waits until no other command works in it.
    ///
    /// # Errors
    /// It can't be made, locked or read.
    pub fn lock(path: &Path) -> Result<Self, ServerError> {
        make_dir(path)?;
        let path = path
            .canonicalize()
            .map_err(|e| ServerError::file("finding", path, e))?;
        make_dir(&path.join("logs"))?;
        let name = path.join("lock");
        let lock = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&name);
        let lock = lock.map_err(|e| ServerError::file("opening", &name, e))?;
        if lock.try_lock().is_err() {
            eprintln!(
                "waiting for another command that works in {}",
                path.display()
            );
            lock.lock()
                .map_err(|e| ServerError::file("locking", &name, e))?;
        }
        let state = Mutex::new(State::read(&path)?);
        Ok(Self {
            path,
            state,
            _lock: lock,
        })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The log of a process of this name.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.path.join("logs").join(format!("{name}.log"))
    }

    /// What is remembered now.
    #[must_use]
    pub fn state(&self) -> State {
        self.guard().clone()
    }

    /// Changes what is remembered, on disk before it returns.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn change(&self, change: impl FnOnce(&mut State)) -> Result<(), ServerError> {
        let mut state = self.guard();
        change(&mut state);
        let path = self.path.join(FILE);
        let text =
            serde_json::to_string_pretty(&*state).map_err(|source| ServerError::BadState {
                path: path.clone(),
                source,
            })?;
        write_private(&path, &text)
    }

    fn guard(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kernel's name for this life of the machine.
fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}
