//! The audit: invariants of `invariants.md` A.1 and A.2, checked all the time on a read-only
//! connection of its own, by the process that leads the upkeep.
//!
//! Each check runs as often as it is useful and no more than its share of a core ([`pace::Pace`]):
//! - every second what indexes answer (I1, I13, I14, I15, I17, I21, I24, I25), and what the drift
//!   check has seen of the gate (I10, I19, I20) and the resender of the outbox (I18);
//! - every second which rows of stock have moved: one that no event explains, or that the gate
//!   contradicts, is summed up exactly (I2, I3), at once;
//! - every 2 s or more `held` against all live orders (I2); every minute or more all sums (I2, I3),
//!   from what ended orders did by an earlier look ([`history`]);
//! - in slices by key everything that is said of single orders, keys and buyers (I2 totals, I4 to
//!   I9, I15, I26): the last minutes first, then all, round and round.
//!
//! Each invariant has a gauge, `invariant_red{id}`, and an alarm that names the first offenders; how
//! old that word is says `invariant_check_age_seconds{id, check}`, which goes on rising while a check
//! can't be made. What could not be read yet has neither. It changes nothing. *Dies anywhere:* the next leader begins anew.

mod board;
mod history;
pub(crate) mod pace;
mod walk;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use reservations::Gate;
use store::audit::{Auditor, Finding, StockMark};
use tokio::sync::Mutex;

use crate::{
    RepairDrift, ResendEvents, Stock, StockError,
    audit::{
        board::{Board, Look, identity},
        history::History,
        pace::Pace,
        walk::Walk,
    },
};

/// A hold that has been due for so long was not looked at (I14): the sweep comes every second.
const OVERDUE: Duration = Duration::from_secs(7);

/// Events of the last looks explain a row of stock: one that was written by a long transaction has
/// a smaller id than others seen before it.
const LOOKS: usize = 5;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// The audit of one process. Call [`Audit::look`] about every half second.
#[derive(Debug)]
pub struct Audit {
    auditor: Auditor,
    stock: Stock,
    drift: Arc<RepairDrift>,
    resend: Arc<ResendEvents>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    board: Board,
    now: Pace,
    gate: Pace,
    moves: Pace,
    held: Pace,
    /// Of what was not suspected before, and of what was red already.
    exact: Pace,
    again: Pace,
    sums: Pace,
    /// Of the sums that stand, and of those without which nothing can be compared yet.
    past: Pace,
    first: Pace,
    walk: Pace,
    /// How often the gate had been compared when it was last spoken of.
    gate_looks: u64,
    stock: BTreeMap<String, (i64, i64)>,
    marks: VecDeque<StockMark>,
    /// SKUs to be summed up, and those that were red when they last were.
    suspects: BTreeSet<String>,
    guilty: BTreeSet<String>,
    /// SKUs that the gate contradicts and whose sums are right all the same.
    acquitted: BTreeSet<String>,
    /// SKUs that the sums have accused and that nobody has looked at since.
    accused: BTreeSet<String>,
    history: History,
    walked: Walk,
}

impl Default for State {
    fn default() -> Self {
        Self {
            board: Board::default(),
            now: Pace::new(SECOND, 2 * SECOND, 8),
            gate: Pace::new(SECOND, 2 * SECOND, 5),
            moves: Pace::new(SECOND, 2 * SECOND, 5),
            held: Pace::new(2 * SECOND, 60 * SECOND, 3),
            exact: Pace::new(SECOND, 4 * SECOND, 50),
            again: Pace::new(SECOND, 15 * SECOND, 10),
            sums: Pace::new(60 * SECOND, HOUR, 1),
            past: Pace::new(SECOND / 2, 15 * SECOND, 3),
            first: Pace::new(SECOND / 2, 15 * SECOND, 20),
            walk: Pace::new(SECOND / 2, 15 * SECOND, 6),
            gate_looks: 0,
            stock: BTreeMap::new(),
            marks: VecDeque::new(),
            suspects: BTreeSet::new(),
            guilty: BTreeSet::new(),
            acquitted: BTreeSet::new(),
            accused: BTreeSet::new(),
            history: History::default(),
            walked: Walk::default(),
        }
    }
}

impl Audit {
    /// An audit that has seen nothing yet. `drift` and `resend` are the checks that run beside it.
    #[must_use]
    pub fn new(
        stock: Stock,
        auditor: Auditor,
        drift: Arc<RepairDrift>,
        resend: Arc<ResendEvents>,
    ) -> Self {
        Self {
            auditor,
            stock,
            drift,
            resend,
            state: Mutex::default(),
        }
    }

    /// Runs the checks that are due and sets the gauges.
    ///
    /// # Errors
    /// A store is away; what the other can be asked for was asked.
    pub async fn look(&self) -> Result<(), StockError> {
        let lost = self.resend.lost().await;
        let mut state = self.state.lock().await;
        state
            .board
            .note("I18", "outbox", lost.len(), &lost, Look::Once);
        let asked = self.ask_postgres(&mut state).await;
        let read = self.ask_gate(&mut state).await;
        state.board.export();
        asked.and(read)
    }

    /// Another process leads: this one says nothing.
    pub async fn rest(&self) {
        let mut state = self.state.lock().await;
        state.board.clear();
        *state = State::default();
    }

    /// Offenders per invariant that was checked by now.
    pub async fn red(&self) -> BTreeMap<&'static str, usize> {
        self.state.lock().await.board.red()
    }

    /// The first offenders per invariant that was checked by now, each as `ID: both sides`.
    pub async fn offenders(&self) -> BTreeMap<&'static str, Vec<String>> {
        self.state.lock().await.board.offenders()
    }

    /// Looks at every order, key and buyer once, at once and whatever it costs.
    ///
    /// # Errors
    /// PostgreSQL is away.
    pub async fn walk_around(&self) -> Result<(), StockError> {
        let mut state = self.state.lock().await;
        let before = state.walked.rounds();
        while state.walked.rounds() == before {
            self.walk_on(&mut state).await?;
        }
        Ok(())
    }

    /// A check that fails has had its turn all the same: it waits for the next one, and the look after
    /// this one goes on with the checks behind it.
    async fn ask_postgres(&self, state: &mut State) -> Result<(), StockError> {
        let began = platform::clock::monotonic();
        if state.now.is_due(began) {
            let found = self.auditor.now().await;
            state.now.ran(began, platform::clock::monotonic());
            note(&mut state.board, "now", &found?);
        }
        let began = platform::clock::monotonic();
        if state.moves.is_due(began) {
            let watched = self.watch_stock(state).await;
            state.moves.ran(began, platform::clock::monotonic());
            watched?;
        }
        let began = platform::clock::monotonic();
        if state.held.is_due(began) {
            let found = self.auditor.held().await;
            state.held.ran(began, platform::clock::monotonic());
            note(&mut state.board, "held", &found?);
        }
        self.ask_history(state).await?;
        let began = platform::clock::monotonic();
        let suspected = !state.suspects.is_empty() && state.exact.is_due(began);
        let guilty = !state.guilty.is_empty() && state.again.is_due(began);
        if suspected || guilty {
            let summed = self.sum_up(state).await;
            let ended = platform::clock::monotonic();
            state.exact.ran(began, ended);
            state.again.ran(began, ended);
            summed?;
        }
        let began = platform::clock::monotonic();
        if state.walk.is_due(began) {
            let walked = self.walk_on(state).await;
            state.walk.ran(began, platform::clock::monotonic());
            walked?;
        }
        Ok(())
    }

    async fn ask_history(&self, state: &mut State) -> Result<(), StockError> {
        let began = platform::clock::monotonic();
        let pace = if state.history.stands() {
            &mut state.past
        } else {
            &mut state.first
        };
        if pace.is_due(began) {
            let now = platform::clock::now();
            let stepped = state.history.step(&self.auditor, now).await;
            pace.ran(began, platform::clock::monotonic());
            stepped?;
        }
        let began = platform::clock::monotonic();
        if state.sums.is_due(began) && state.history.stands() {
            let found = state.history.compare(&self.auditor).await;
            state.sums.ran(began, platform::clock::monotonic());
            if let Some(found) = found? {
                note(&mut state.board, "sums", &found);
                // Whoever is red is summed up alone from now on, which is sooner.
                state.accused = skus_of(&found).collect();
                state.suspects.extend(state.accused.iter().cloned());
            }
        }
        Ok(())
    }

    async fn walk_on(&self, state: &mut State) -> Result<(), StockError> {
        let now = platform::clock::now();
        for (id, offenders) in state.walked.step(&self.auditor, now).await? {
            let count = offenders.len();
            state.board.note(id, "walk", count, &offenders, Look::Once);
        }
        Ok(())
    }

    /// Suspects every row of stock that changed without an event that says the same.
    async fn watch_stock(&self, state: &mut State) -> Result<(), StockError> {
        let xmin = state.marks.back().map(|mark| mark.xmin);
        let events_after = state.marks.front().map_or(i64::MAX, |mark| mark.outbox);
        let seen = self.auditor.stock(xmin, events_after).await?;
        for row in seen.moves {
            let is = (row.on_hand, row.sold);
            let was = state.stock.insert(row.sku.clone(), is);
            // At the first look all rows are new; the sums judge them.
            if xmin.is_some() && was != Some(is) && row.told != Some(is) {
                state.suspects.insert(row.sku);
            }
        }
        state.marks.push_back(seen.mark);
        if state.marks.len() > LOOKS {
            state.marks.pop_front();
        }
        Ok(())
    }

    /// I2 and I3 of those that are suspected, exactly.
    async fn sum_up(&self, state: &mut State) -> Result<(), StockError> {
        let skus: Vec<String> = state.suspects.union(&state.guilty).cloned().collect();
        let found = self.auditor.sums(&skus).await?;
        state.guilty = skus_of(&found).collect();
        if !state.accused.is_subset(&state.guilty) {
            // The sums are not what the rows say, or are not any more: they are made again.
            state.history = History::default();
        }
        state.accused.clear();
        let innocent = skus.into_iter().filter(|sku| !state.guilty.contains(sku));
        state.acquitted.extend(innocent);
        state.suspects.clear();
        for one in &found {
            state
                .board
                .narrow(one.id, "sums", one.count, &one.offenders);
        }
        Ok(())
    }

    async fn ask_gate(&self, state: &mut State) -> Result<(), StockError> {
        let began = platform::clock::monotonic();
        if !state.gate.is_due(began) {
            return Ok(());
        }
        let (looks, report) = self.drift.report();
        // While the gate can't be compared, what was said of it grows old.
        if std::mem::replace(&mut state.gate_looks, looks) != looks {
            for (id, offenders) in [
                ("I10", &report.bounds),
                ("I19", &report.units),
                ("I20", &report.holds),
            ] {
                state
                    .board
                    .note(id, "gate", offenders.len(), offenders, Look::Once);
            }
        }
        // The gate may be right and the row of stock wrong.
        let contradicted: BTreeSet<String> = report
            .units
            .iter()
            .map(|offender| identity(offender).to_owned())
            .collect();
        state.acquitted.retain(|sku| contradicted.contains(sku));
        state
            .suspects
            .extend(contradicted.difference(&state.acquitted).cloned());
        let overdue = overdue(&self.stock, &self.stock.gate).await;
        state.gate.ran(began, platform::clock::monotonic());
        let overdue = overdue?;
        state
            .board
            .note("I14", "gate", overdue.len(), &overdue, Look::Twice);
        Ok(())
    }
}

async fn overdue(stock: &Stock, gate: &Gate) -> Result<Vec<String>, StockError> {
    let mut overdue = Vec::new();
    for shard in store::sweep::shards(&stock.store).await? {
        let ids = gate.overdue(shard, OVERDUE).await?;
        overdue.extend(
            ids.iter()
                .map(|id| format!("hold {id}: due for longer than {} s", OVERDUE.as_secs())),
        );
    }
    Ok(overdue)
}

/// Rules whose words hold a time: what is under way may break them for a moment.
const OF_THE_MOMENT: [&str; 5] = ["I13", "I15", "I17", "I21", "I25"];

fn note(board: &mut Board, check: &'static str, found: &[Finding]) {
    for one in found {
        let look = if OF_THE_MOMENT.contains(&one.id) {
            Look::Twice
        } else {
            Look::Once
        };
        board.note(one.id, check, one.count, &one.offenders, look);
    }
}

fn skus_of(found: &[Finding]) -> impl Iterator<Item = String> {
    found
        .iter()
        .flat_map(|one| one.offenders.iter())
        .map(|offender| identity(offender).to_owned())
}
