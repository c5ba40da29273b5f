//! Certificates of a cluster, made with the `openssl` program: an authority and what it signs.
//!
//! Files of one name: `NAME.key`, `NAME.crt`. Existing ones are kept, so that a restart keeps the cluster's identity.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

const DAYS: &str = "3650";

/// A folder with the certificates of one cluster.
#[derive(Clone, Debug)]
pub struct Pki {
    folder: PathBuf,
}

/// A certificate to sign.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Name of the files.
    pub name: &'a str,
    /// The user that Kubernetes sees (the common name).
    pub user: &'a str,
    /// The group that Kubernetes sees (the organization).
    pub group: Option<&'a str>,
    /// Alternative names of a server, such as `DNS:localhost` and `IP:127.0.0.1`; empty for clients.
    pub server: &'a [String],
}

impl Pki {
    /// Opens the folder, and makes it with a certificate authority and the key that signs service account tokens.
    ///
    /// # Errors
    /// When `openssl` is missing or the folder can't be written.
    pub fn open(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("can't make {}", folder.display()))?;
        let pki = Self { folder: folder.to_owned() };
        if !pki.certificate("ca").exists() {
            pki.new_key("ca")?;
            let mut authority = pki.openssl("req");
            authority.args([
                "-x509",
                "-new",
                "-key",
                "ca.key",
                "-subj",
                "/CN=cadre-cluster",
                "-days",
                DAYS,
                "-out",
                "ca.crt",
            ]);
            run(authority)?;
        }
        if !folder.join("sa.pub").exists() {
            pki.new_key("sa")?;
            let mut public = pki.openssl("ec");
            public.args(["-in", "sa.key", "-pubout", "-out", "sa.pub"]);
            run(public)?;
        }
        Ok(pki)
    }

    /// Signs a certificate, if there is none of that name.
    ///
    /// # Errors
    /// When `openssl` fails.
    pub fn sign(&self, request: Request) -> Result<()> {
        let Request { name, user, group, server } = request;
        if self.certificate(name).exists() {
            return Ok(());
        }
        self.new_key(name)?;
        let subject = format!("{}/CN={user}", group.map(|group| format!("/O={group}")).unwrap_or_default());
        let (unsigned, extensions) = (format!("{name}.csr"), format!("{name}.ext"));
        let mut ask = self.openssl("req");
        ask.args(["-new", "-key", &format!("{name}.key"), "-subj", &subject, "-out", &unsigned]);
        run(ask)?;
        fs::write(self.folder.join(&extensions), extensions_of(server))?;
        let mut sign = self.openssl("x509");
        sign.args(["-req", "-in", &unsigned, "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"]);
        sign.args(["-days", DAYS, "-extfile", &extensions, "-out", &format!("{name}.crt")]);
        run(sign)?;
        fs::remove_file(self.folder.join(unsigned))?;
        fs::remove_file(self.folder.join(extensions))?;
        Ok(())
    }

    /// The certificate file of a name.
    #[must_use]
    pub fn certificate(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.crt"))
    }

    /// The private key file of a name.
    #[must_use]
    pub fn key(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.key"))
    }

    /// The public key that checks service account tokens.
    #[must_use]
    pub fn service_account_public_key(&self) -> PathBuf {
        self.folder.join("sa.pub")
    }

    fn new_key(&self, name: &str) -> Result<()> {
        let path = self.key(name);
        // The file is private before the key is in it.
        File::options().create(true).write(true).truncate(true).mode(0o600).open(&path)?;
        let mut key = self.openssl("ecparam");
        key.args(["-name", "prime256v1", "-genkey", "-noout", "-out"]).arg(path);
        run(key)
    }

    fn openssl(&self, command: &str) -> Command {
        let mut openssl = Command::new("openssl");
        openssl.arg(command).current_dir(&self.folder).stdin(Stdio::null());
        openssl
    }
}

fn extensions_of(server: &[String]) -> String {
    let names = if server.is_empty() { String::new() } else { format!("subjectAltName={}\n", server.join(",")) };
    format!("keyUsage=digitalSignature\nextendedKeyUsage=clientAuth,serverAuth\n{names}")
}

fn run(mut command: Command) -> Result<()> {
    let output = command.output().context("can't start openssl: install it (Debian package openssl)")?;
    if !output.status.success() {
        bail!("openssl failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signed_certificate_holds_its_names_and_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::open(folder.path()).unwrap();
        let request = Request {
            name: "node",
            user: "system:node:node-1",
            group: Some("system:nodes"),
            server: &["IP:10.0.0.1".into()],
        };
        pki.sign(request).unwrap();
        let show = |name: &str| {
            let arguments = ["x509", "-noout", "-subject", "-ext", "subjectAltName", "-in"];
            let output = Command::new("openssl").args(arguments).arg(pki.certificate(name)).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let text = show("node");
        assert!(
            text.contains("system:nodes") && text.contains("system:node:node-1") && text.contains("10.0.0.1"),
            "{text}"
        );

        let before = fs::read(pki.certificate("node")).unwrap();
        Pki::open(folder.path()).unwrap().sign(request).unwrap();
        assert_eq!(before, fs::read(pki.certificate("node")).unwrap());
        assert!(!folder.path().join("node.csr").exists());
    }
}
