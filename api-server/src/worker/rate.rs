//! The rate limit of events (security rule 19). Pure: time is a parameter.

use std::time::Duration;

use tokio::time::Instant;

/// Entries a second that a run may write for long.
pub const PER_SECOND: u32 = 500;
/// Entries that it may write at once: what a worker kept while the server was away comes in one go.
pub const BURST: u32 = 20 * PER_SECOND;

/// How much a run may still write.
#[derive(Debug, Clone)]
pub struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A full one.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { tokens: f64::from(BURST), at: now }
    }

    /// Takes entries out. False when there are too many.
    pub fn take(&mut self, entries: usize, now: Instant) -> bool {
        let passed: Duration = now.saturating_duration_since(self.at);
        self.at = now;
        self.tokens = (self.tokens + passed.as_secs_f64() * f64::from(PER_SECOND)).min(f64::from(BURST));
        let wanted = u32::try_from(entries).map_or(f64::INFINITY, f64::from);
        if wanted > self.tokens {
            return false;
        }
        self.tokens -= wanted;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_a_flood_does_not() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        assert!(bucket.take(BURST as usize, start));
        assert!(!bucket.take(1, start));
        assert!(bucket.take(PER_SECOND as usize, start + Duration::from_secs(1)));
        assert!(!bucket.take(PER_SECOND as usize + 1, start + Duration::from_secs(2)));
        assert!(bucket.take(BURST as usize, start + Duration::from_secs(600)));
    }
}
