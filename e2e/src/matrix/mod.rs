//! The crash matrix: many runs under way, everything killed at random beneath them, and no effect or event lost or doubled.
//!
//! `dice`, `plan`, `work`, `check` and `table` are pure: what is killed when, what a run does, what is right, how it is
//! shown. `release` installs an own Cadre with two API servers and a PostgreSQL in namespaces of its own; `door`, `client`,
//! `ledger` and `hand` speak to it, follow, read what was done, and kill; `round` puts them together.

pub mod check;
pub mod client;
pub mod dice;
pub mod door;
pub mod hand;
pub mod ledger;
pub mod plan;
pub mod release;
pub mod round;
pub mod table;
pub mod work;

use anyhow::{Context, Result, ensure};

/// How large it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Runs of a round.
    pub runs: usize,
    /// Rounds.
    pub rounds: usize,
    /// Sessions that share the runs; a session's runs go one after the other.
    pub sessions: usize,
    /// Clients that follow runs and hang up again and again.
    pub clients: usize,
    /// What all that is random is drawn from.
    pub seed: u64,
}

impl Size {
    /// The short form, or what `CADRE_MATRIX_RUNS`, `_ROUNDS`, `_SESSIONS`, `_CLIENTS` and `_SEED` say.
    ///
    /// # Errors
    /// When one of them is no number.
    pub fn from_environment() -> Result<Self> {
        Self::read(|name| std::env::var(format!("CADRE_MATRIX_{name}")).ok())
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let number = |name: &str, default: usize| match variable(name).filter(|text| !text.is_empty()) {
            Some(text) => text.parse().with_context(|| format!("CADRE_MATRIX_{name}={text} is no number")),
            None => Ok(default),
        };
        let runs = number("RUNS", 12)?;
        let size = Self {
            runs,
            rounds: number("ROUNDS", 2)?,
            sessions: number("SESSIONS", runs.div_ceil(4))?,
            clients: number("CLIENTS", runs.div_ceil(2))?.min(runs),
            seed: u64::try_from(number("SEED", 1)?)?,
        };
        ensure!(size.runs > 0 && size.rounds > 0 && size.sessions > 0, "a matrix of nothing shows nothing");
        Ok(size)
    }

    /// Effects of a round: what its runs write into their ledgers.
    #[must_use]
    pub fn effects(&self) -> usize {
        self.runs * work::CALLS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_short_unless_something_else_is_asked_for() {
        let short = Size::read(|_| None).unwrap();
        assert_eq!(short, Size { runs: 12, rounds: 2, sessions: 3, clients: 6, seed: 1 });
        let full = Size::read(|name| Some(if name == "ROUNDS" { "20" } else { "100" }.to_owned())).unwrap();
        assert_eq!((full.runs, full.rounds, full.clients), (100, 20, 100));
        assert!(Size::read(|_| Some("many".into())).is_err());
        assert!(Size::read(|_| Some("0".into())).is_err());
    }
}
