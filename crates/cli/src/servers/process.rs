//! Processes that outlive the command which started them, known by id and start time: a number
//! that the kernel has given to someone else is never signalled.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use super::{ServerError, native::Account};

const POLL: Duration = Duration::from_millis(20);

/// A process, as long as the machine runs: its id and the tick at which it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The process id.
    pub pid: i32,
    /// Clock ticks from the machine's start to the process's start (field 22 of its `stat`).
    pub started: u64,
}

impl Identity {
    /// The process that has this id now; `None` when there is none, or only its zombie.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything, so the fields are counted from its end.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        if matches!(fields.first(), Some(&"Z" | &"X")) {
            return None;
        }
        Some(Self {
            pid,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether it is still this process.
    #[must_use]
    pub fn is_running(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Sends a signal, if it is still this process.
    pub fn signal(self, signal: Signal) {
        if self.is_running() {
            // It may end between the look and the signal: then there is nothing left to do.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }

    fn children(self) -> Vec<Self> {
        let list = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid));
        let list = list.unwrap_or_default();
        list.split_whitespace()
            .filter_map(|pid| Self::of(pid.parse().ok()?))
            .collect()
    }

    /// Kills it and its children without a word, as a power cut would; returns when all are gone.
    pub async fn kill_tree(self) {
        let mut tree = vec![self];
        if self.is_running() {
            tree.extend(self.children());
        }
        for process in &tree {
            process.signal(Signal::SIGKILL);
        }
        while tree.iter().any(|process| process.is_running()) {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Asks it to end, waits for at most `bound`, then kills it.
    pub async fn stop(self, signal: Signal, bound: Duration) -> Stopped {
        if !self.is_running() {
            return Stopped::WasGone;
        }
        self.signal(signal);
        let ended = async {
            while self.is_running() {
                tokio::time::sleep(POLL).await;
            }
        };
        if tokio::time::timeout(bound, ended).await.is_ok() {
            return Stopped::Ended;
        }
        self.kill_tree().await;
        Stopped::Killed
    }
}

/// How a process ended that was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// It did not run any more.
    WasGone,
    /// By itself, in time.
    Ended,
    /// It had to be killed.
    Killed,
}

/// A program to be started in a session of its own, with its output in a log.
#[derive(Debug)]
pub struct Launch {
    /// Its name for people.
    pub name: &'static str,
    /// The file to run.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables on top of ours.
    pub envs: Vec<(String, String)>,
    /// Where it works.
    pub dir: PathBuf,
    /// Where its output goes.
    pub log: PathBuf,
    /// The account it runs under, when not ours.
    pub account: Option<Account>,
}

impl Launch {
    /// Starts it. It keeps running when we end, and a Ctrl-C for us is none for it.
    ///
    /// # Errors
    /// The program or the log can't be opened.
    pub fn start(&self) -> Result<Process, ServerError> {
        let log = open_log(&self.log)?;
        let errors = log
            .try_clone()
            .map_err(|e| ServerError::file("opening", &self.log, e))?;
        let mut command = match find_program("setsid") {
            Some(setsid) => {
                let mut command = Command::new(setsid);
                command.arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command
            .args(&self.args)
            .envs(self.envs.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        if find_program("setsid").is_none() {
            command.process_group(0);
        }
        if let Some(account) = self.account {
            command.uid(account.uid).gid(account.gid);
        }
        let spawned = command.spawn();
        let child = spawned.map_err(|source| ServerError::Spawn {
            program: self.name.to_owned(),
            source,
        })?;
        Process::of(child).ok_or_else(|| ServerError::Died {
            name: self.name.to_owned(),
            log: self.log.clone(),
            tail: super::tail(&self.log, 20),
        })
    }
}

/// A process that we started.
#[derive(Debug)]
pub struct Process {
    identity: Identity,
    child: Child,
}

impl Process {
    fn of(child: Child) -> Option<Self> {
        let pid = i32::try_from(child.id()).ok()?;
        Some(Self {
            identity: Identity::of(pid)?,
            child,
        })
    }

    /// Its id and start time.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether it runs; takes the exit status of one that ended, so that no zombie stays.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for one that was told to end, for at most 5 seconds, then kills it. Blocks.
    pub(crate) fn reap(&mut self) {
        let begun = platform::clock::monotonic();
        while self.is_running() {
            if begun.elapsed() > Duration::from_secs(5) {
                for process in [self.identity.children(), vec![self.identity]].concat() {
                    process.signal(Signal::SIGKILL);
                }
            }
            std::thread::sleep(POLL);
        }
    }
}

/// A new log; the one of the run before stays beside it, so that the last lines are of this run.
fn open_log(path: &Path) -> Result<fs::File, ServerError> {
    if path.exists() {
        let old = path.with_extension("old");
        fs::rename(path, &old).map_err(|source| ServerError::file("renaming", path, source))?;
    }
    fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|source| ServerError::file("opening", path, source))
}

/// The file that a shell would run for `name`.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Runs a helper to its end; its output when it succeeded.
pub(crate) async fn run(command: Command, program: &str) -> Result<String, ServerError> {
    let output = tokio::process::Command::from(command)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source: io::Error| ServerError::Spawn {
            program: program.to_owned(),
            source,
        })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let said = [text(&output.stdout), text(&output.stderr)].join("\n");
    Err(ServerError::Command {
        program: program.to_owned(),
        status: output.status.to_string(),
        output: said.trim().to_owned(),
    })
}
