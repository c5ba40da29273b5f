//! What is in an image.

use std::path::Path;

use anyhow::{Result, bail};
use sha2::{Digest as _, Sha256};

use super::build::Programs;
use super::root::{self, Root};
use crate::oci::{ImageConfig, layer::Layer, layer::Owner};

/// User of our own programs in their images.
const USER: &str = "65532:65532";
/// User of tools in the sandbox image.
const TOOLS_USER: u64 = 1000;
/// Certificates of public authorities, in the image and on a Debian machine.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";

/// How PostgreSQL is started, and whom it lets in.
const START: &str = include_str!("../../../images/postgresql/start.sh");
const HOSTS: &str = include_str!("../../../images/postgresql/pg_hba.conf");

/// An image of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// The operator, from scratch.
    Operator,
    /// The API server, from scratch.
    ApiServer,
    /// The engine of an agent pod, from scratch.
    Agent,
    /// The container in which tools run: Debian with common tools, and exec-server.
    Sandbox,
    /// PostgreSQL for evaluation: Debian with its server. Made on request only.
    Postgresql,
}

impl Image {
    /// What every installation needs.
    pub const NEEDED: [Self; 4] = [Self::Operator, Self::ApiServer, Self::Agent, Self::Sandbox];
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Operator, Self::ApiServer, Self::Agent, Self::Sandbox, Self::Postgresql];

    /// Its name, without repository and tag.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::ApiServer => "api-server",
            Self::Agent => "agent",
            Self::Sandbox => "sandbox",
            Self::Postgresql => "postgresql",
        }
    }

    /// Its key below `images` in the chart's values.
    pub fn chart_key(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::ApiServer => "apiServer",
            Self::Agent => "agent",
            Self::Sandbox => "sandbox",
            Self::Postgresql => "postgresql",
        }
    }

    /// The Debian in it.
    pub fn root(self) -> Option<&'static Root> {
        match self {
            Self::Operator | Self::ApiServer | Self::Agent => None,
            Self::Sandbox => Some(&root::SANDBOX),
            Self::Postgresql => Some(&root::POSTGRESQL),
        }
    }

    /// The program of ours that it runs.
    pub fn program(self) -> Option<&'static str> {
        match self {
            Self::Operator => Some("cadre-operator"),
            Self::ApiServer => Some("cadre-api"),
            Self::Agent | Self::Sandbox => Some("cadre-agent"),
            Self::Postgresql => None,
        }
    }

    /// What it is made from: equal keys give equal images.
    ///
    /// # Errors
    /// When a file that goes into it can't be read.
    pub fn key(self, programs: &Programs) -> Result<String> {
        let mut hash = Sha256::new();
        hash.update(include_str!("contents.rs"));
        hash.update(include_str!("../oci.rs"));
        hash.update(include_str!("../oci/layer.rs"));
        hash.update(env!("CARGO_PKG_VERSION"));
        if let Some(program) = self.program() {
            hash.update(std::fs::read(programs.path(program))?);
        }
        if let Some(root) = self.root() {
            hash.update(root.key());
        }
        match self {
            Self::Operator | Self::ApiServer => hash.update(std::fs::read(Path::new("/").join(CERTIFICATES))?),
            Self::Agent | Self::Sandbox => {}
            Self::Postgresql => hash.update([START, HOSTS].concat()),
        }
        Ok(format!("{:x}", hash.finalize()))
    }

    /// Its configuration and layers.
    ///
    /// # Errors
    /// When a file that goes into it can't be made or read.
    pub fn contents(self, programs: &Programs) -> Result<(ImageConfig, Vec<Layer>)> {
        match self {
            Self::Operator => Ok(self.scratch(programs, "cadre-operator")?),
            Self::ApiServer => Ok(self.scratch(programs, "cadre-api")?),
            Self::Agent => Ok(self.scratch(programs, "cadre-agent")?),
            Self::Sandbox => {
                Ok((sandbox_config(), vec![root::SANDBOX.layer()?, sandbox(&programs.path("cadre-agent"))]))
            }
            Self::Postgresql => Ok((postgresql_config(), vec![root::POSTGRESQL.layer()?, postgresql()])),
        }
    }

    /// A program alone.
    fn scratch(self, programs: &Programs, program: &str) -> Result<(ImageConfig, Vec<Layer>)> {
        let config = ImageConfig {
            entrypoint: vec![format!("/usr/local/bin/{program}")],
            user: Some(USER.to_owned()),
            labels: labels(self),
            ..ImageConfig::default()
        };
        let mut layer = Layer::default();
        layer.copy(format!("usr/local/bin/{program}"), 0o755, &programs.path(program));
        layer.file("etc/passwd", 0o644, b"cadre:x:65532:65532:cadre:/:/sbin/nologin\n".to_vec());
        layer.file("etc/group", 0o644, b"cadre:x:65532:\n".to_vec());
        layer.directory("tmp", 0o1777);
        // The engine speaks to the API server only; the other two verify public servers.
        if self != Self::Agent {
            let source = Path::new("/").join(CERTIFICATES);
            if !source.exists() {
                bail!("{} is missing: install the package ca-certificates", source.display());
            }
            layer.copy(CERTIFICATES, 0o644, &source);
        }
        Ok((config, vec![layer]))
    }
}

fn labels(image: Image) -> std::collections::BTreeMap<String, String> {
    [("title", image.name()), ("licenses", "Apache-2.0"), ("version", env!("CARGO_PKG_VERSION"))]
        .map(|(key, value)| (format!("org.opencontainers.image.{key}"), value.to_owned()))
        .into()
}

fn sandbox_config() -> ImageConfig {
    ImageConfig {
        entrypoint: vec!["/usr/local/bin/cadre-agent".to_owned(), "exec-server".to_owned()],
        user: Some(format!("{TOOLS_USER}:{TOOLS_USER}")),
        workdir: Some("/workspace".to_owned()),
        env: [("PATH".to_owned(), root::PATH.to_owned())].into(),
        labels: labels(Image::Sandbox),
        ..ImageConfig::default()
    }
}

fn sandbox(program: &Path) -> Layer {
    let mut layer = Layer::default();
    layer.copy("usr/local/bin/cadre-agent", 0o755, program);
    for folder in ["workspace", "home/agent"] {
        layer.directory(folder, 0o755);
        layer.owner(folder, Owner { uid: TOOLS_USER, gid: TOOLS_USER });
    }
    layer
}

fn postgresql_config() -> ImageConfig {
    let path = format!("/usr/lib/postgresql/15/bin:{}", root::PATH);
    ImageConfig {
        entrypoint: vec!["/usr/local/bin/cadre-postgresql".to_owned()],
        user: Some(USER.to_owned()),
        env: [("PATH".to_owned(), path), ("LC_ALL".to_owned(), "C.UTF-8".to_owned())].into(),
        // PostgreSQL's own word for: end all sessions and write everything. At SIGTERM it would wait for its clients.
        stop_signal: Some("SIGINT".to_owned()),
        labels: labels(Image::Postgresql),
        ..ImageConfig::default()
    }
}

fn postgresql() -> Layer {
    let mut layer = Layer::default();
    layer.file("usr/local/bin/cadre-postgresql", 0o755, START.into());
    layer.file("etc/cadre/pg_hba.conf", 0o644, HOSTS.into());
    for folder in ["run/postgresql", "var/lib/postgresql/data"] {
        layer.directory(folder, 0o755);
    }
    layer
}
