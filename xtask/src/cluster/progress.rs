//! Lines that tell how far a long command is.

use std::time::Instant;

/// Prints lines with the time since the start.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    start: Instant,
}

impl Progress {
    /// Starts the clock.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Prints one line.
    pub fn say(&self, line: &str) {
        eprintln!("{:>6.1} s  {line}", self.start.elapsed().as_secs_f64());
    }
}
