//! The table: a row for each round. Pure.

use std::time::Duration;

/// A round.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// Its number, from 1.
    pub round: usize,
    /// What was killed, in order.
    pub killed: Vec<String>,
    /// Runs that were started.
    pub runs: usize,
    /// From the first start to the last end.
    pub took: Duration,
    /// Runs with which another worker went on.
    pub resumed: usize,
    /// Lines in the ledgers.
    pub effects: usize,
    /// Calls that were reported as unknown.
    pub unknown: usize,
    /// Clients that followed.
    pub clients: usize,
    /// Connections that they needed beyond the first.
    pub reconnects: u32,
    /// Events that they saw.
    pub events: usize,
    /// What was wrong.
    pub faults: Vec<String>,
}

/// The names of the columns.
#[must_use]
pub fn head() -> String {
    "round | runs | all completed after | resumed | effects + unknown without | reported unknown | clients, reconnects, events | \
     faults | killed"
        .into()
}

impl Row {
    /// Its line.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { round, killed, runs, took, resumed, effects, unknown, clients, reconnects, events, faults } = self;
        let (missing, seconds) = ((runs * super::work::CALLS).saturating_sub(*effects), took.as_secs_f64());
        format!(
            "{round:>5} | {runs:>4} | {seconds:>17.1} s | {resumed:>7} | {effects:>7} + {missing:>15} | {unknown:>16} | \
             {clients:>4}, {reconnects:>9}, {events:>9} | {:>6} | {}",
            faults.len(),
            killed.join(", ")
        )
    }
}

/// The sums of all rounds.
#[must_use]
pub fn sums(rows: &[Row]) -> String {
    let sum = |of: fn(&Row) -> usize| rows.iter().map(of).sum::<usize>();
    let longest = rows.iter().map(|row| row.took).max().unwrap_or_default();
    format!(
        "{} rounds, {} runs, {} resumed, {} effects, {} reported unknown, {} kills, {} reconnects, {} events followed, \
         longest round {:.1} s, {} faults",
        rows.len(),
        sum(|row| row.runs),
        sum(|row| row.resumed),
        sum(|row| row.effects),
        sum(|row| row.unknown),
        sum(|row| row.killed.len()),
        rows.iter().map(|row| row.reconnects).sum::<u32>(),
        sum(|row| row.events),
        longest.as_secs_f64(),
        sum(|row| row.faults.len()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_happened() {
        let row = Row {
            round: 2,
            killed: vec!["engine of a".into(), "operator".into()],
            runs: 12,
            took: Duration::from_millis(34_560),
            effects: 58,
            unknown: 3,
            reconnects: 71,
            ..Row::default()
        };
        let line = row.line();
        assert!(line.contains("34.6 s") && line.contains("58 +               2"), "{line}");
        assert_eq!(line.matches('|').count(), head().matches('|').count());
        let sums = sums(&[row.clone(), row]);
        assert!(
            sums.starts_with("2 rounds, 24 runs, 0 resumed, 116 effects, 6 reported unknown, 4 kills, 142"),
            "{sums}"
        );
    }
}
