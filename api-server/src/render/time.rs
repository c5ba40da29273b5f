//! Times.

/// Unix seconds.
#[must_use]
pub fn seconds(ms: u64) -> u64 {
    ms / 1000
}

/// ISO 8601 in UTC, to the millisecond.
#[must_use]
pub fn iso(ms: u64) -> String {
    i64::try_from(ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map(|time| format!("{time:.3}"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc() {
        assert_eq!(iso(1_796_007_354_123), "2026-11-30T02:55:54.123Z");
        assert_eq!(seconds(1_796_007_354_999), 1_796_007_354);
        assert_eq!(iso(u64::MAX), "");
    }
}
