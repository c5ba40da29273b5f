//! The judges that are written in Python: AgentOS's own client, and schemathesis.

use std::path::{Path, PathBuf};

use anyhow::Result;
use cadre_e2e::python;

use crate::cluster::progress::Progress;

/// The variables that tell tests where a judge is, and what it needs.
const JUDGES: [(&str, &str); 2] = [
    ("CADRE_AGENTOS_PYTHON", "../api-server/tests/agentos_client/requirements.txt"),
    ("CADRE_SCHEMATHESIS_PYTHON", "../api-server/tests/schemathesis/requirements.txt"),
];

/// The variables with their values; installs what is missing.
///
/// # Errors
/// When something can't be installed.
pub fn judges(progress: &Progress) -> Result<Vec<(&'static str, PathBuf)>> {
    progress.say("AgentOS's client and schemathesis (the first time they are installed)");
    let found = |(variable, requirements): (&'static str, &str)| {
        let python = match std::env::var_os(variable) {
            Some(python) => python.into(),
            None => python::environment(&Path::new(env!("CARGO_MANIFEST_DIR")).join(requirements))?,
        };
        Ok((variable, python))
    };
    JUDGES.into_iter().map(found).collect()
}
