//! The peer's virtual environment, made once.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// What is compared with, to the version.
const PACKAGES: [&str; 8] =
    ["agno==3.1.10", "fastapi", "uvicorn", "sqlalchemy", "greenlet", "python-multipart", "openai", "psycopg[binary]"];
/// What the script imports: a half-made environment is made again.
const PROBE: &str = "import agno.os, agno.db.sqlite, agno.db.postgres, agno.models.openai, uvicorn; \
                     from importlib.metadata import version; assert version('agno') == '3.1.10'";

/// Python with agno.
///
/// # Errors
/// When there is no Python or a package can't be installed.
pub fn python() -> Result<PathBuf> {
    let folder = cadre_e2e::cache::root()?.join("agno-venv");
    let python = folder.join("bin/python");
    if python.is_file() && run(Command::new(&python).args(["-c", PROBE])).is_ok() {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(PACKAGES))?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("can't start {name}"))?;
    ensure!(output.status.success(), "{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
