//! Names that nothing has, be it left over from an earlier run: process numbers come again.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The part of this process: eight digits that the operating system drew.
static PROCESS: LazyLock<String> =
    LazyLock::new(|| format!("{:08x}", RandomState::new().hash_one(std::process::id()) & 0xffff_ffff));
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// The end of a name: lower-case letters, digits and a dash, as Kubernetes wants it.
#[must_use]
pub fn suffix() -> String {
    format!("{}-{}", *PROCESS, NUMBER.fetch_add(1, Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_the_same() {
        let (one, other) = (suffix(), suffix());
        assert_ne!(one, other);
        assert!(one.len() <= 12 && one.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-'), "{one}");
    }
}
