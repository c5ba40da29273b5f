//! Kubeconfig files. They are written as JSON, which every reader of YAML reads.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::pki::Pki;

/// Writes a kubeconfig of its own: the certificates are inside, so that the file can be copied.
///
/// # Errors
/// When a certificate is missing or the file can't be written.
pub fn write(path: &Path, context: &str, server: &str, pki: &Pki, user: &str) -> Result<()> {
    let encoded = |file: &Path| -> Result<String> {
        Ok(STANDARD.encode(fs::read(file).with_context(|| format!("can't read {}", file.display()))?))
    };
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [{"name": context, "cluster": {
            "server": server,
            "certificate-authority-data": encoded(&pki.certificate("ca"))?,
        }}],
        "users": [{"name": user, "user": {
            "client-certificate-data": encoded(&pki.certificate(user))?,
            "client-key-data": encoded(&pki.key(user))?,
        }}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": user}}],
    });
    let mut file = File::options().create(true).write(true).truncate(true).mode(0o600).open(path)?;
    writeln!(file, "{config:#}").with_context(|| format!("can't write {}", path.display()))
}
