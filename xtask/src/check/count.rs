//! Reads how many tests passed from what `cargo test` prints.

/// Sums over all test programs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Whether a program broke: compiling, or a test program that ended early.
    pub broken: bool,
}

impl Count {
    /// Reads a line.
    pub fn read(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test result: ") else { return };
        self.passed += number_before(rest, " passed");
        self.failed += number_before(rest, " failed");
    }
}

fn number_before(text: &str, word: &str) -> u64 {
    text.find(word)
        .and_then(|end| text[..end].rsplit(' ').next())
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_programs() {
        let mut count = Count::default();
        count.read("running 3 tests");
        count.read("test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s");
        count.read("test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s");
        assert_eq!(count, Count { passed: 16, failed: 2, broken: false });
    }
}
