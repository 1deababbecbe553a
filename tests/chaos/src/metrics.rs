//! What the services count, over all their lives: a counter begins again with each life, so what a
//! life had reached when it was last asked is kept.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use http::Method;

use crate::{http::Http, plant::Plant};

type Series = BTreeMap<String, f64>;

/// The latest reading of each life of each process.
#[derive(Debug, Default)]
pub struct Metrics {
    lives: Mutex<BTreeMap<(String, u32), Series>>,
}

impl Metrics {
    /// Reads all processes every half second, for ever.
    pub async fn run(&self, plant: &Plant) {
        loop {
            self.read(plant).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Reads all processes once; one that does not answer keeps its last reading.
    pub async fn read(&self, plant: &Plant) {
        let reads = plant.replicas.iter().map(|replica| async move {
            let life = replica.life().await;
            let mut http = Http::new(&replica.url, "none").ok()?;
            let within = Duration::from_millis(700);
            let sent = http.send_within(within, Method::GET, "/metrics", None, None);
            let answer = sent.await.ok()?;
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            Some(((replica.name.clone(), life), parse(&text)))
        });
        let read = futures::future::join_all(reads).await;
        let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        lives.extend(read.into_iter().flatten());
    }

    /// The sum of all series of all lives whose name begins so and whose labels hold all of these.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        self.sum_of("", name, labels)
    }

    /// The same of the processes whose name begins so.
    #[must_use]
    pub fn sum_of(&self, process: &str, name: &str, labels: &[&str]) -> f64 {
        let lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        lives
            .iter()
            .filter(|((of, _), _)| of.starts_with(process))
            .flat_map(|(_, series)| series)
            .filter(|(series, _)| is(series, name, labels))
            .map(|(_, value)| value)
            .sum()
    }

    /// The processes in whose latest life a gauge stands at 1.
    #[must_use]
    pub fn at_one(&self, name: &str) -> Vec<String> {
        let lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        let mut latest: BTreeMap<&str, &Series> = BTreeMap::new();
        for ((process, _), series) in lives.iter() {
            latest.insert(process, series);
        }
        latest
            .into_iter()
            .filter(|(_, series)| {
                series
                    .iter()
                    .any(|(series, value)| is(series, name, &[]) && *value >= 1.0)
            })
            .map(|(process, _)| process.to_owned())
            .collect()
    }
}

fn is(series: &str, name: &str, labels: &[&str]) -> bool {
    let (own, rest) = series.split_once('{').unwrap_or((series, ""));
    own == name && labels.iter().all(|label| rest.contains(label))
}

fn parse(text: &str) -> Series {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_found_by_name_and_labels() {
        let series = parse("# HELP x\nx_total{a=\"1\",b=\"2\"} 3\nx_total{a=\"2\"} 4\ny 1.5\n");
        assert_eq!(series.len(), 3);
        let metrics = Metrics::default();
        metrics
            .lives
            .lock()
            .unwrap()
            .insert(("order-1".to_owned(), 1), series);
        assert!((metrics.sum("x_total", &[]) - 7.0).abs() < f64::EPSILON);
        assert!((metrics.sum("x_total", &["a=\"2\""]) - 4.0).abs() < f64::EPSILON);
        assert!(metrics.sum("x", &[]).abs() < f64::EPSILON);
    }
}
