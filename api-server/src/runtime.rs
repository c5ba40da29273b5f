//! The server's threads.

use std::num::NonZero;

use tokio::runtime::{Builder, Runtime};

/// A runtime that leaves one core to the record's writer, which has a thread of its own: on two cores a second thread
/// costs a run a fifth more processor time, most of it to wake the other.
///
/// # Errors
/// When the system gives no threads.
pub fn runtime() -> std::io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    Builder::new_multi_thread().worker_threads(cores.saturating_sub(1).max(1)).enable_all().build()
}
