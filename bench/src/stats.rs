//! Percentiles. Pure.

use std::time::Duration;

/// Times of the same thing.
#[derive(Debug, Clone, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds a time, kept in milliseconds.
    pub fn push(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64() * 1000.0);
    }

    /// Adds a number in a unit of the caller's.
    pub fn push_number(&mut self, number: f64) {
        self.0.push(number);
    }

    /// Takes another's samples over.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Samples by their place in time.
    pub fn range(&self, range: std::ops::Range<usize>) -> Self {
        Self(self.0.get(range).unwrap_or_default().to_vec())
    }

    /// The nearest-rank percentile: the smallest sample that at least `percent` of all samples do not exceed. With few
    /// samples a high one is the maximum.
    pub fn percentile(&self, percent: u32) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * percent as usize).div_ceil(100).max(1);
        sorted.get(rank - 1).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let mut samples = Samples::default();
        assert_eq!(samples.percentile(50), None);
        for number in (1..=100_u32).rev() {
            samples.push_number(f64::from(number));
        }
        assert_eq!(samples.percentile(50), Some(50.0));
        assert_eq!(samples.percentile(99), Some(99.0));
        assert_eq!(samples.range(0..20).percentile(99), Some(100.0));
        assert_eq!(samples.range(90..110).len(), 0);
    }

    #[test]
    fn times_are_milliseconds() {
        let mut samples = Samples::default();
        samples.push(Duration::from_micros(1500));
        assert_eq!(samples.percentile(50), Some(1.5));
    }
}
