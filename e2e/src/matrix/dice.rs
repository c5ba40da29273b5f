//! Numbers that look random and are the same for the same seed. Pure.

/// A row of numbers (SplitMix64).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// The row of a seed; `row` tells rows of the same seed apart.
    #[must_use]
    pub fn new(seed: u64, row: u64) -> Self {
        let mut dice = Self(seed);
        let first = dice.next();
        Self(first ^ row.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to just below `end`; 0 when that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % end).unwrap_or_default()
    }

    /// One of several; none of none.
    pub fn choose<'a, T>(&mut self, several: &'a [T]) -> Option<&'a T> {
        several.get(self.below(several.len()))
    }

    /// Puts them into another order.
    pub fn shuffle<T>(&mut self, several: &mut [T]) {
        for last in (1..several.len()).rev() {
            several.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_row() {
        let row = |seed, row| {
            let mut dice = Dice::new(seed, row);
            (0..20).map(|_| dice.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(row(1, 1), row(1, 1));
        assert_ne!(row(1, 1), row(1, 2));
        assert_ne!(row(1, 1), row(2, 1));
    }

    #[test]
    fn nothing_is_lost_in_another_order() {
        let mut several: Vec<_> = (0..50).collect();
        Dice::new(3, 0).shuffle(&mut several);
        assert_ne!(several, (0..50).collect::<Vec<_>>());
        several.sort_unstable();
        assert_eq!(several, (0..50).collect::<Vec<_>>());
        assert_eq!(Dice::new(3, 0).choose::<u8>(&[]), None);
    }
}
