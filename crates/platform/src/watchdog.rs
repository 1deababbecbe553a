//! A blocked runtime ends its process: a process that neither answers nor dies is worse than a dead
//! one, which is replaced, and every step of the protocol survives a death.
//!
//! A task of the runtime beats; a thread outside of it counts its own ticks without a beat. Ticks
//! rather than time, so that a process that was stopped as a whole (SIGSTOP, a paused machine) is
//! not ended when it goes on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// How often the task beats and the thread looks.
const TICK: Duration = Duration::from_millis(250);

/// From so many silent ticks on `/livez` fails, if it can be answered at all.
const SICK_FROM: u64 = 8;

/// The silent ticks of the runtime of this process; 0 without a watchdog.
static SILENT: AtomicU64 = AtomicU64::new(0);

/// Whether the runtime has been beating lately, as `/livez` says.
#[must_use]
pub fn is_live() -> bool {
    SILENT.load(Ordering::Relaxed) < SICK_FROM
}

/// Watches the current runtime, and aborts the process when it has been blocked for `bound`.
///
/// # Errors
/// No thread.
pub fn start(bound: Duration) -> std::io::Result<()> {
    watch(
        bound,
        |silent| SILENT.store(silent, Ordering::Relaxed),
        || {
            tracing::error!("the runtime is blocked; the process is aborted");
            std::process::abort()
        },
    )
}

/// The same with what is to be done: for tests.
fn watch(
    bound: Duration,
    told: impl Fn(u64) + Send + 'static,
    end: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let beats = Arc::new(AtomicU64::new(0));
    let counter = Arc::downgrade(&beats);
    tokio::spawn(async move {
        loop {
            beats.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(TICK).await;
        }
    });
    let patience = u64::try_from(bound.as_millis() / TICK.as_millis()).unwrap_or(u64::MAX);
    std::thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(move || {
            let mut seen = Seen::default();
            // The counter goes with the runtime.
            while let Some(beats) = counter.upgrade() {
                let silent = seen.tick(beats.load(Ordering::Relaxed));
                drop(beats);
                told(silent);
                if silent >= patience.max(2) {
                    return end();
                }
                std::thread::sleep(TICK);
            }
        })
        .map(drop)
}

/// What the thread has seen.
#[derive(Debug, Default)]
struct Seen {
    beats: u64,
    silent: u64,
}

impl Seen {
    /// Takes the counter; gives the number of ticks since it last moved.
    fn tick(&mut self, beats: u64) -> u64 {
        self.silent = if beats == self.beats {
            self.silent + 1
        } else {
            0
        };
        self.beats = beats;
        self.silent
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn only_ticks_without_a_beat_count_and_a_beat_forgives_them() {
        let mut seen = Seen::default();
        assert_eq!(seen.tick(1), 0);
        assert_eq!((seen.tick(1), seen.tick(1)), (1, 2));
        assert_eq!(seen.tick(2), 0);
    }

    #[test]
    fn a_runtime_that_is_blocked_is_ended_and_one_that_works_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let (end, ended) = mpsc::channel();
        let bound = Duration::from_secs(2);
        runtime.block_on(async {
            watch(bound, |_| {}, move || end.send(()).unwrap()).unwrap();
            tokio::time::sleep(bound + bound / 2).await;
            assert!(ended.try_recv().is_err(), "it works");
            // Blocks the only thread that the runtime has.
            ended.recv_timeout(Duration::from_secs(30)).unwrap();
        });
    }
}
