//! Liveness without a listener: a file that the engine touches and that `cadre-agent check` looks at.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Time between touches.
const TOUCH: Duration = Duration::from_secs(5);
/// Age from which on an engine counts as stuck.
pub const STALE: Duration = Duration::from_secs(30);

/// Touches the file for ever.
pub async fn touch(path: PathBuf) {
    let mut beat = tokio::time::interval(TOUCH);
    loop {
        beat.tick().await;
        if let Err(error) = std::fs::write(&path, b"alive\n") {
            tracing::warn!(%error, "could not touch the liveness file");
        }
    }
}

/// Whether the file was touched lately.
///
/// # Errors
/// When there is no such file, or it is too old.
pub fn check(path: &Path, now: SystemTime) -> io::Result<()> {
    let touched = std::fs::metadata(path)?.modified()?;
    match now.duration_since(touched) {
        Ok(age) if age > STALE => Err(io::Error::other(format!("the engine was silent for {} s", age.as_secs()))),
        // A touch in the future is a clock that was set back.
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_or_absent_file_is_no_life() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alive");
        assert!(check(&path, SystemTime::now()).is_err());
        std::fs::write(&path, b"").unwrap();
        assert!(check(&path, SystemTime::now()).is_ok());
        assert!(check(&path, SystemTime::now() + STALE + TOUCH).is_err());
    }
}
