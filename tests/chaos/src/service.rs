//! Our services as processes that can be killed, stopped, continued and started again. One that
//! ends by itself is started again at once, as whoever supervises it in production would.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::Mutex as Plain,
    time::{Duration, Instant},
};

use anyhow::Context;
use cli::services::{self, ServiceName};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use platform::clock;
use tokio::{
    process::{Child, Command},
    sync::Mutex,
};

const READY_WITHIN: Duration = Duration::from_secs(60);

/// One process that should run.
#[derive(Debug)]
pub struct Replica {
    /// `order-1`.
    pub name: String,
    /// What it is.
    pub service: ServiceName,
    /// Where it answers.
    pub url: String,
    program: PathBuf,
    dir: PathBuf,
    variables: Vec<(String, String)>,
    slot: Mutex<Slot>,
    exits: Plain<Vec<Exit>>,
}

#[derive(Debug, Default)]
struct Slot {
    child: Option<Child>,
    life: u32,
    /// The supervisor starts it again.
    wanted: bool,
}

/// An end that nobody had asked for with a signal of the run.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Exit {
    /// Which process.
    pub name: String,
    /// How it ended.
    pub status: String,
    /// Which of its lives it was, from 1.
    pub life: u32,
}

impl Replica {
    /// A process that does not run yet. `variables` hold where it listens.
    #[must_use]
    pub fn new(
        name: String,
        service: ServiceName,
        url: String,
        program: &Path,
        dir: &Path,
        variables: Vec<(String, String)>,
    ) -> Self {
        Self {
            name,
            service,
            url,
            program: program.to_owned(),
            dir: dir.to_owned(),
            variables,
            slot: Mutex::default(),
            exits: Plain::default(),
        }
    }

    /// Starts it if it does not run; when it began.
    ///
    /// # Errors
    /// The program or its log can't be opened.
    pub async fn start(&self) -> anyhow::Result<Instant> {
        self.start_with(&[]).await
    }

    /// The same with more variables, for this life alone.
    ///
    /// # Errors
    /// As [`Replica::start`].
    pub async fn start_with(&self, more: &[(&str, String)]) -> anyhow::Result<Instant> {
        let mut slot = self.slot.lock().await;
        slot.wanted = true;
        if let Some(child) = &mut slot.child
            && child.try_wait()?.is_none()
        {
            return Ok(clock::monotonic());
        }
        self.spawn(&mut slot, more)?;
        Ok(clock::monotonic())
    }

    fn spawn(&self, slot: &mut Slot, more: &[(&str, String)]) -> anyhow::Result<()> {
        slot.life += 1;
        let path = self.dir.join(format!("{}.{}.log", self.name, slot.life));
        let log =
            std::fs::File::create(&path).with_context(|| format!("making {}", path.display()))?;
        let child = Command::new(&self.program)
            .args(["serve", self.service.as_str()])
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .envs(more.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // A Ctrl-C for us is none for it: we end it, and see how it ends.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", self.program.display()))?;
        slot.child = Some(child);
        Ok(())
    }

    /// Returns when it is ready.
    ///
    /// # Errors
    /// It was not within a minute.
    pub async fn ready(&self) -> anyhow::Result<()> {
        let begun = clock::monotonic();
        loop {
            let said = match services::ready(&self.url).await {
                Ok(()) => return Ok(()),
                Err(said) => said,
            };
            anyhow::ensure!(
                begun.elapsed() < READY_WITHIN,
                "{} is not ready: {said}",
                self.name
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Starts it again when it has ended by itself.
    ///
    /// # Errors
    /// It can't be started.
    pub async fn supervise(&self) -> anyhow::Result<()> {
        let mut guard = self.slot.lock().await;
        let slot = &mut *guard;
        let Some(child) = &mut slot.child else {
            return Ok(());
        };
        if !slot.wanted {
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            let exit = Exit {
                name: self.name.clone(),
                status: status.to_string(),
                life: slot.life,
            };
            self.exits().push(exit);
            self.spawn(slot, &[])?;
        }
        Ok(())
    }

    fn exits(&self) -> std::sync::MutexGuard<'_, Vec<Exit>> {
        self.exits
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Every end by itself so far.
    #[must_use]
    pub fn ended_by_itself(&self) -> Vec<Exit> {
        self.exits().clone()
    }

    /// Which life it is in, from 1.
    pub async fn life(&self) -> u32 {
        self.slot.lock().await.life
    }

    /// Its process id, while it runs.
    pub async fn pid(&self) -> Option<u32> {
        self.slot.lock().await.child.as_ref().and_then(Child::id)
    }

    /// Sends a signal; `false` when it does not run.
    pub async fn signal(&self, signal: Signal) -> bool {
        let slot = self.slot.lock().await;
        slot.child
            .as_ref()
            .and_then(Child::id)
            .and_then(|pid| i32::try_from(pid).ok())
            .is_some_and(|pid| kill(Pid::from_raw(pid), signal).is_ok())
    }

    /// Kills it, as a power cut would, and leaves it dead; whether it was killed by that.
    ///
    /// # Errors
    /// It can't be waited for.
    pub async fn kill(&self) -> anyhow::Result<bool> {
        let mut slot = self.slot.lock().await;
        slot.wanted = false;
        let Some(mut child) = slot.child.take() else {
            return Ok(false);
        };
        if child.try_wait()?.is_some() {
            return Ok(false);
        }
        child.start_kill()?;
        let status = child.wait().await?;
        Ok(status.code().is_none())
    }

    /// Asks it to end and waits: how long it took and whether it ended with 0, or `None` when it
    /// had to be killed.
    ///
    /// # Errors
    /// It can't be waited for.
    pub async fn stop(&self, within: Duration) -> anyhow::Result<Option<(Duration, bool)>> {
        let mut slot = self.slot.lock().await;
        slot.wanted = false;
        let Some(mut child) = slot.child.take() else {
            return Ok(None);
        };
        let begun = clock::monotonic();
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid {
            kill(Pid::from_raw(pid), Signal::SIGTERM)?;
        }
        match tokio::time::timeout(within, child.wait()).await {
            Ok(status) => Ok(Some((begun.elapsed(), status?.success()))),
            Err(_) => {
                child.kill().await?;
                Ok(None)
            }
        }
    }
}
