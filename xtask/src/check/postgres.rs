//! PostgreSQL's server programs. Tests start servers of their own with them; the machine itself gets none.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::cluster::host;
use crate::cluster::progress::Progress;

const PACKAGE: &str = "postgresql";
/// Where packages have the programs: a folder for each version.
const FOLDERS: [&str; 2] = ["/usr/lib/postgresql", "/usr"];
/// Read by Debian's package when it is installed: it would otherwise make a database and start a service.
const SETTINGS: &str = "/etc/postgresql-common/createcluster.d";

/// Installs the programs where they are missing and that is possible.
///
/// # Errors
/// When they are missing and can't be installed: the message says what to do.
pub fn prepare(progress: &Progress) -> Result<()> {
    if is_installed() {
        return Ok(());
    }
    ensure!(
        nix::unistd::geteuid().is_root() && host::has("apt-get"),
        "tests need PostgreSQL's server programs: install the Debian package {PACKAGE}, or your system's"
    );
    let settings = Path::new(SETTINGS);
    let ours = settings.join("cadre-tests.conf");
    fs::create_dir_all(settings).with_context(|| format!("can't make {SETTINGS}"))?;
    fs::write(&ours, "create_main_cluster = false\n").with_context(|| format!("can't write {}", ours.display()))?;
    let installed = host::install(&[PACKAGE], progress);
    fs::remove_file(&ours).with_context(|| format!("can't remove {}", ours.display()))?;
    // Stays when somebody else has settings there.
    let _ = fs::remove_dir(settings);
    installed
}

fn is_installed() -> bool {
    let versions = FOLDERS.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    host::has("initdb") || versions.into_iter().any(|version| version.path().join("bin/initdb").is_file())
}
