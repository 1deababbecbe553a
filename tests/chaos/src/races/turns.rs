//! When each race is run: soon again while one of its orders has not been seen, seldom afterwards, and
//! none waits for another.

use std::{sync::atomic::Ordering, time::Duration};

use platform::clock;

use super::Races;

/// Between two turns of a race, and between those of a race that was seen in both orders.
const SOON: Duration = Duration::from_secs(3);
const SELDOM: Duration = Duration::from_secs(20);
/// The same for those that set crash points, stop a member of a group, or make the gate rebuild.
const LATER: Duration = Duration::from_secs(40);
/// How long a late payment takes, its refund included; between the beginnings of two of them.
const LATE_TAKES: Duration = Duration::from_secs(180);
const LATE_EVERY: Duration = Duration::from_secs(45);
/// Bounded by their own waits; the orders end without them, too.
const LATE_ENDS_WITHIN: Duration = Duration::from_secs(100);

impl Races {
    /// Runs them until the load is over.
    pub async fn run(self) {
        while let Err(error) = self.prepare().await {
            if self.is_over() {
                return;
            }
            eprintln!("races: {error:#}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        tokio::join!(
            self.late_payments(),
            self.again(&["R2", "R14"], |turn| self.cancels(turn)),
            self.again(&["R8"], |turn| self.restocks(turn)),
            self.again(&["R10"], |turn| self.keys(turn)),
            self.again(&["R11"], |turn| self.last_units(turn)),
            self.again(&["R9"], |turn| self.drift(turn)),
            self.again(&["R5"], |turn| self.two_payments(turn)),
            self.again(&["R13"], |turn| self.redrives(turn)),
            self.by_crash_points(),
        );
    }

    fn is_over(&self) -> bool {
        self.site.load.over.load(Ordering::SeqCst)
    }

    /// One race, or two of one setting, turn after turn. A fault in between is no verdict: the next
    /// turn tries again.
    async fn again<F, Fut>(&self, ids: &[&'static str], turn: F)
    where
        F: Fn(u64) -> Fut,
        Fut: Future<Output = anyhow::Result<()>>,
    {
        let seldom = if ids == ["R9"] { LATER } else { SELDOM };
        let mut number = 0;
        while !self.is_over() {
            number += 1;
            let _ = turn(number).await;
            let pause = if self.both_seen(ids) { seldom } else { SOON };
            self.pause(pause).await;
        }
    }

    /// Waits, but not beyond the end of the load.
    async fn pause(&self, pause: Duration) {
        let begun = clock::monotonic();
        while !self.is_over() && begun.elapsed() < pause {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Those that set crash points, one at a time, and never while a fault does the same.
    async fn by_crash_points(&self) {
        let mut turn = 0_u64;
        while self.crash_points && !self.is_over() {
            for id in ["R4", "R7", "R12"] {
                // Those that lack nothing come every third turn.
                if !turn.is_multiple_of(3) && self.both_seen(&[id]) {
                    continue;
                }
                let alone = self.site.plant.steered.lock().await;
                let _ = match id {
                    "R4" => self.accept_and_cancel(turn).await,
                    "R7" => self.accept_and_sweep(turn).await,
                    _ => self.rebalance().await,
                };
                drop(alone);
                self.pause(SOON).await;
            }
            turn += 1;
            if self.both_seen(&["R4", "R7", "R12"]) {
                self.pause(LATER).await;
            }
        }
    }

    /// R1 and R3, which wait for more than a minute: a new pair every now and then until both orders
    /// of both were seen. An outage of ours moves the deadline of the order and may spoil any of them.
    async fn late_payments(&self) {
        let mut begun = Vec::new();
        let mut turn = 0;
        while !self.both_seen(&["R1", "R3"]) && clock::monotonic() + LATE_TAKES < self.until {
            turn += 1;
            let races = self.clone();
            begun.push(tokio::spawn(async move { races.late(turn).await }));
            self.pause(LATE_EVERY).await;
            if self.is_over() {
                break;
            }
        }
        let ended = futures::future::join_all(begun);
        let _ = tokio::time::timeout(LATE_ENDS_WITHIN, ended).await;
    }
}
