//! What a run says at its end: tables for people, one JSON file for programs.

use std::{collections::BTreeMap, path::Path};

use cli::output::{columns, line};
use serde::Serialize;
use store::verify::Check;

use crate::{
    conductor::Row, faults::Kind, measure::Measure, races::Race, reached::Reached, service::Exit,
    settle::Open, truth::Told,
};

/// Everything.
#[derive(Debug, Serialize)]
pub struct Report {
    /// All that follows is as it should be.
    pub ok: bool,
    /// Why not.
    pub failures: Vec<String>,
    /// Of all choices.
    pub seed: u64,
    /// Of load.
    pub seconds: u64,
    /// The machine's load average at the end: others may share it.
    pub load_average: String,
    /// Keys sent, tries, orders.
    pub keys: usize,
    /// Answers per status; 0 never came.
    pub statuses: BTreeMap<u16, u64>,
    /// Faults.
    pub faults: Vec<Row>,
    /// Races, and how often each order was seen.
    pub races: Vec<Race>,
    /// States reached.
    pub reached: Vec<Reached>,
    /// What clients were told.
    pub told: Vec<Told>,
    /// Invariants.
    pub checks: Vec<Check>,
    /// Figures.
    pub measures: Vec<Measure>,
    /// What was still open at the end.
    pub open: Open,
    /// Services that ended by themselves, and were started again.
    pub ended_by_themselves: Vec<Exit>,
    /// Panics in the logs.
    pub panics: u64,
}

impl Report {
    /// Writes the JSON.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        Ok(std::fs::write(path, serde_json::to_string_pretty(self)?)?)
    }

    /// Prints the tables.
    ///
    /// # Errors
    /// Standard output can't be written.
    pub fn print(&self, dir: &Path) -> anyhow::Result<()> {
        line("\nFAULTS")?;
        let head = [
            "id",
            "fault",
            "at s",
            "held s",
            "bit",
            "201/s before",
            "201/s during",
            "first 201 after s",
        ];
        let rows = self.faults.iter().map(|row| {
            let again = if row.again { "once more: " } else { "" };
            let beside = row.beside.as_ref().map(|beside| format!("; {beside}"));
            let title = format!("{again}{}{}", row.title, beside.unwrap_or_default());
            [
                row.id.to_owned(),
                title,
                format!("{:.0}", row.at_s),
                format!("{:.1}", row.held_s),
                row.bites.to_string(),
                format!("{:.0}", row.goodput_before),
                format!("{:.0}", row.goodput_during),
                row.first_201_after_s
                    .map_or_else(|| "never".to_owned(), |s| format!("{s:.2}")),
            ]
        });
        columns(&table(head, rows))?;
        let came = |kind: &Kind| self.faults.iter().any(|row| row.id == kind.id());
        let missing = Kind::ALL.iter().filter(|kind| !came(kind));
        let missing: Vec<&str> = missing.map(|kind| kind.id()).collect();
        line(match missing.join(", ") {
            none if none.is_empty() => "all kinds came".to_owned(),
            missing => format!("did not come: {missing}"),
        })?;
        self.print_states()?;
        line("\nWHAT CLIENTS WERE TOLD")?;
        let rows = self.told.iter().map(|told| {
            [
                verdict(told.broken == 0),
                told.rule.to_owned(),
                told.judged.to_string(),
            ]
        });
        columns(&table(["", "rule", "judged"], rows))?;
        line("\nINVARIANTS")?;
        let rows = self
            .checks
            .iter()
            .map(|check| [verdict(check.ok), check.id.clone(), check.rule.clone()]);
        columns(&table(["", "id", "rule"], rows))?;
        line("\nMEASURED")?;
        let rows = self.measures.iter().map(|one| {
            [
                format!("{:.2}", one.value),
                one.unit.to_owned(),
                one.what.clone(),
            ]
        });
        columns(&table(["value", "unit", "what"], rows))?;
        self.close(dir)
    }

    fn print_states(&self) -> anyhow::Result<()> {
        line("\nRACES")?;
        let rows = self.races.iter().map(|race| {
            let (first, second) = race.title.split_once(" | ").unwrap_or((race.title, ""));
            [
                verdict(race.wrong.is_empty()),
                race.id.to_owned(),
                race.first.to_string(),
                race.second.to_string(),
                format!("first: {first}; second: {second}"),
            ]
        });
        columns(&table(
            ["", "id", "first", "second", "which came first"],
            rows,
        ))?;
        line("\nREACHED AT LEAST ONCE")?;
        let rows = self
            .reached
            .iter()
            .filter(|one| one.from != "the fault")
            .map(|one| [one.times.to_string(), one.what.clone(), one.from.to_owned()]);
        columns(&table(["times", "what", "read from"], rows))?;
        let (had, of) = self.reached_share();
        line(format!("{had} of {of}, the faults included"))?;
        Ok(())
    }

    fn close(&self, dir: &Path) -> anyhow::Result<()> {
        let answers: Vec<String> = self
            .statuses
            .iter()
            .map(|(status, n)| match status {
                0 => format!("none {n}"),
                _ => format!("{status} {n}"),
            })
            .collect();
        line(format!(
            "\n{} keys; answers: {}",
            self.keys,
            answers.join(", ")
        ))?;
        line(format!(
            "at rest after {:.0} s; {} ends of processes by themselves, {} panics; load average {}",
            self.open.seconds,
            self.ended_by_themselves.len(),
            self.panics,
            self.load_average
        ))?;
        for told in self.told.iter().filter(|told| told.broken > 0) {
            line(format!("RED {}: {:#?}", told.rule, told.offenders))?;
        }
        for check in self.checks.iter().filter(|check| !check.ok) {
            line(format!(
                "RED {} {}: {:#?}",
                check.id, check.rule, check.offenders
            ))?;
        }
        for race in self.races.iter().filter(|race| !race.wrong.is_empty()) {
            line(format!("RED {} {}: {:#?}", race.id, race.title, race.wrong))?;
        }
        for failure in &self.failures {
            line(format!("FAILED {failure}"))?;
        }
        let (seed, seconds) = (self.seed, self.seconds);
        if self.ok {
            line(format!(
                "ok: seed {seed}, {seconds} s, {} faults",
                self.faults.len()
            ))?;
        } else {
            line(format!(
                "replay: make chaos SEED={seed} SECONDS={seconds}   (logs: {})",
                dir.display()
            ))?;
        }
        Ok(())
    }
}

fn verdict(ok: bool) -> String {
    if ok { "ok" } else { "RED" }.to_owned()
}

fn table<const N: usize>(
    head: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> Vec<[String; N]> {
    std::iter::once(head.map(str::to_owned))
        .chain(rows)
        .collect()
}
