//! Limits on counts that are dear to ask for: while a limit is far, a part of what is left to it is used up without asking.
//!
//! A limit that is near is asked for each time, so it holds exactly for one server. Several that use up their parts at the
//! same time stay below it as long as they are no more than [`PARTS`]; with more, it may be passed by what they use within
//! [`GOOD_FOR_MS`].

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::db::DbError;

/// Parts that what is left is divided into.
const PARTS: u64 = 8;
/// Milliseconds for which a part may be used.
const GOOD_FOR_MS: u64 = 1_000;
/// Most scopes that are remembered.
const MAX_SCOPES: usize = 16_384;

/// What may be used up without asking.
#[derive(Debug, Clone, Copy)]
struct Allowance {
    most: u64,
    left: u64,
    asked_at_ms: u64,
}

/// Allowances by scope.
#[derive(Debug, Default)]
pub struct Allowances(Mutex<HashMap<String, Allowance>>);

impl Allowances {
    /// Whether `size` more fit below `most`. `used` counts what there is, and is only called if that must be known.
    pub fn admit(
        &self,
        scope: &str,
        size: u64,
        most: u64,
        at_ms: u64,
        used: impl FnOnce() -> Result<u64, DbError>,
    ) -> Result<bool, DbError> {
        if self.spend(scope, size, most, at_ms) {
            return Ok(true);
        }
        let left = most.saturating_sub(used()?);
        let Some(rest) = left.checked_sub(size) else { return Ok(false) };
        self.allow(scope, Allowance { most, left: rest / PARTS, asked_at_ms: at_ms });
        Ok(true)
    }

    fn spend(&self, scope: &str, size: u64, most: u64, at_ms: u64) -> bool {
        let mut allowances = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let allowance = allowances.get_mut(scope).filter(|allowance| {
            allowance.most == most && at_ms.abs_diff(allowance.asked_at_ms) < GOOD_FOR_MS && allowance.left >= size
        });
        allowance.map(|allowance| allowance.left -= size).is_some()
    }

    fn allow(&self, scope: &str, allowance: Allowance) {
        let mut allowances = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = allowances.get_mut(scope) {
            *known = allowance;
            return;
        }
        if allowances.len() >= MAX_SCOPES {
            allowances.clear();
        }
        allowances.insert(scope.to_owned(), allowance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills a scope one by one; answers how many fit and how often they were counted.
    fn fill(allowances: &Allowances, most: u64) -> (u64, u64) {
        let (mut used, mut asked) = (0, 0);
        while allowances
            .admit("a", 1, most, 0, || {
                asked += 1;
                Ok(used)
            })
            .unwrap()
        {
            used += 1;
        }
        (used, asked)
    }

    #[test]
    fn a_limit_holds_exactly_and_is_seldom_asked_for_while_it_is_far() {
        for most in [0, 1, 2, 7, 8, 9, 100] {
            assert_eq!(fill(&Allowances::default(), most).0, most);
        }
        let (used, asked) = fill(&Allowances::default(), 1_000);
        assert_eq!(used, 1_000);
        assert!(asked < 70, "{asked}");
    }

    #[test]
    fn an_allowance_ends_with_its_time_and_with_another_limit() {
        let allowances = Allowances::default();
        assert!(allowances.admit("a", 1, 100, 0, || Ok(0)).unwrap());
        assert!(allowances.admit("a", 1, 100, 999, || panic!("is allowed")).unwrap());
        assert!(!allowances.admit("a", 1, 100, 1_000, || Ok(100)).unwrap());
        assert!(allowances.admit("a", 1, 100, 1_000, || Ok(0)).unwrap());
        assert!(!allowances.admit("a", 1, 50, 1_000, || Ok(50)).unwrap());
        assert!(!allowances.admit("b", 13, 100, 1_000, || Ok(90)).unwrap(), "scopes are apart");
    }
}
