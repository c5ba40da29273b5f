//! The folder in which the project keeps what it can make again.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// The environment variable that moves the folder.
pub const VARIABLE: &str = "CADRE_CACHE";

/// `CADRE_CACHE`, or `~/.cache/cadre`.
///
/// # Errors
/// When neither `CADRE_CACHE` nor `HOME` is set.
pub fn root() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) {
        return std::path::absolute(folder).context("CADRE_CACHE is no path");
    }
    let home = std::env::var_os("HOME").context("set HOME or CADRE_CACHE: there is no place for the cache")?;
    Ok(PathBuf::from(home).join(".cache/cadre"))
}
