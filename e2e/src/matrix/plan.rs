//! What is killed in a round, and how far the runs are then. Pure.

use super::dice::Dice;

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kill {
    /// The engine of an agent pod.
    Engine,
    /// exec-server and with it the tool that runs.
    Tools,
    /// Both, so all processes of an agent pod.
    Agent,
    /// One API server.
    Server,
    /// All API servers at once.
    Servers,
    /// The operator.
    Operator,
    /// PostgreSQL, without time to write anything.
    Database,
    /// PostgreSQL, stopped in order and started again.
    Restart,
    /// A node loses its power for a while.
    Node,
}

/// A kill, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blow {
    /// What.
    pub kill: Kill,
    /// It happens once the ledgers have so many lines.
    pub after: usize,
}

/// Nodes lose their power in each third round, and in the last one.
const NODE_EVERY: usize = 3;
/// When the first and the last blow may fall, in hundredths of the effects.
const WINDOW: (usize, usize) = (4, 75);

/// The blows of a round (counted from 1), in the order in which they fall.
#[must_use]
pub fn blows(seed: u64, round: usize, rounds: usize, effects: usize) -> Vec<Blow> {
    let mut dice = Dice::new(seed, round as u64);
    let mut kills = vec![Kill::Operator];
    for _ in 0..3 {
        kills.extend(dice.choose(&[Kill::Engine, Kill::Tools, Kill::Agent]));
    }
    kills.push(if dice.below(4) == 0 { Kill::Servers } else { Kill::Server });
    kills.push(if dice.below(3) == 0 { Kill::Restart } else { Kill::Database });
    if round.is_multiple_of(NODE_EVERY) || round == rounds {
        kills.push(Kill::Node);
    }
    dice.shuffle(&mut kills);
    let (first, last) = WINDOW;
    let mut moments: Vec<_> = kills.iter().map(|_| effects * (first + dice.below(last - first)) / 100).collect();
    moments.sort_unstable();
    kills.into_iter().zip(moments).map(|(kill, after)| Blow { kill, after }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_killed_in_every_round() {
        for round in 1..=20 {
            let blows = blows(7, round, 20, 500);
            let count = |of: &[Kill]| blows.iter().filter(|blow| of.contains(&blow.kill)).count();
            assert_eq!(count(&[Kill::Engine, Kill::Tools, Kill::Agent]), 3);
            assert_eq!(count(&[Kill::Server, Kill::Servers]), 1);
            assert_eq!(count(&[Kill::Database, Kill::Restart]), 1);
            assert_eq!(count(&[Kill::Operator]), 1);
            assert_eq!(count(&[Kill::Node]), usize::from(round % 3 == 0 || round == 20));
            assert!(blows.is_sorted_by_key(|blow| blow.after));
            assert!(blows.iter().all(|blow| (20..375).contains(&blow.after)), "{blows:?}");
        }
    }

    #[test]
    fn twenty_rounds_have_every_kind_and_a_seed_says_which() {
        let all = |seed| -> Vec<_> { (1..=20).flat_map(|round| blows(seed, round, 20, 500)).collect() };
        let mut kinds: Vec<_> = all(1).iter().map(|blow| blow.kill).collect();
        kinds.sort();
        kinds.dedup();
        assert_eq!(kinds.len(), 9, "{kinds:?}");
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
    }
}
