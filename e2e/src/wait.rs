//! Waiting for a condition, with a bound.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// Looks until `check` says true.
///
/// # Errors
/// After `limit`, with what was awaited and the `hint` where to look; and at once when `check` fails.
pub fn until(what: &str, limit: Duration, hint: &str, mut check: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !check()? {
        if start.elapsed() > limit {
            bail!("waited {} s for {what}: {hint}", limit.as_secs());
        }
        sleep(PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_until_true() {
        let mut looks = 0;
        let check = || {
            looks += 1;
            Ok(looks == 3)
        };
        until("three looks", Duration::from_secs(60), "", check).unwrap();
        assert_eq!(looks, 3);
    }

    #[test]
    fn it_gives_up_with_a_hint() {
        let error = until("a miracle", Duration::ZERO, "read etcd.log", || Ok(false)).unwrap_err();
        assert_eq!(error.to_string(), "waited 0 s for a miracle: read etcd.log");
    }
}
