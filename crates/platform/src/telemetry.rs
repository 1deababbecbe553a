//! Logs and metrics. Logs go to standard error: readable on a terminal, JSON otherwise.

use std::{io::IsTerminal, sync::OnceLock};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

static METRICS: OnceLock<PrometheusHandle> = OnceLock::new();

/// Bucket bounds in seconds of every `*_seconds` histogram.
const SECONDS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// Starts logs (filter from `HOLDFAST_LOG`, default `info`) and metrics. Later calls do nothing,
/// so that a test may start several services in one process.
pub fn init() {
    let filter = EnvFilter::try_from_env("HOLDFAST_LOG")
        .unwrap_or_else(|_| EnvFilter::new("info,librdkafka=warn,rdkafka=warn,sqlx=warn"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // A second start is not an error: whoever came first decides.
    let started = if std::io::stderr().is_terminal() {
        logs.try_init()
    } else {
        logs.json().flatten_event(true).try_init()
    };
    if let Err(error) = started {
        tracing::debug!(%error, "logs were started before");
    }
    METRICS.get_or_init(install_metrics);
}

fn install_metrics() -> PrometheusHandle {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(
            metrics_exporter_prometheus::Matcher::Suffix("_seconds".to_owned()),
            &SECONDS,
        )
        .unwrap_or_else(|_| PrometheusBuilder::new());
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    if let Err(error) = metrics::set_global_recorder(recorder) {
        tracing::warn!(%error, "metrics were started before; these stay empty");
    }
    handle
}

/// The text of `/metrics`.
#[must_use]
pub fn render_metrics() -> String {
    METRICS.get_or_init(install_metrics).render()
}
