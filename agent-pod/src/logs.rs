//! Logs: JSON lines on standard error. They carry ids, never content (security rule 22).

use tracing_subscriber::EnvFilter;

/// Starts logging, at level `info` unless `CADRE_LOG` says otherwise. A second call changes nothing.
pub fn start() {
    let filter = EnvFilter::try_from_env("CADRE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let logs =
        tracing_subscriber::fmt().json().flatten_event(true).with_env_filter(filter).with_writer(std::io::stderr);
    // An error means that the process has logs already.
    let _ = logs.try_init();
}
