//! What is in an image.

use std::path::Path;

use anyhow::{Result, bail};
use sha2::{Digest as _, Sha256};

use super::build::Programs;
use super::root;
use crate::oci::{ImageConfig, layer::Layer, layer::Owner};

/// User of our own programs in their images.
const USER: &str = "65532:65532";
/// User of tools in the sandbox image.
const TOOLS_USER: u64 = 1000;
/// Certificates of public authorities, in the image and on a Debian machine.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";

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
}

impl Image {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Operator, Self::ApiServer, Self::Agent, Self::Sandbox];

    /// Its name, without repository and tag.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::ApiServer => "api-server",
            Self::Agent => "agent",
            Self::Sandbox => "sandbox",
        }
    }

    /// Its key below `images` in the chart's values.
    pub fn chart_key(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::ApiServer => "apiServer",
            Self::Agent => "agent",
            Self::Sandbox => "sandbox",
        }
    }

    /// The program that it runs.
    pub fn program(self) -> &'static str {
        match self {
            Self::Operator => "cadre-operator",
            Self::ApiServer => "cadre-api",
            Self::Agent | Self::Sandbox => "cadre-agent",
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
        hash.update(std::fs::read(programs.path(self.program()))?);
        match self {
            Self::Operator | Self::ApiServer => hash.update(std::fs::read(Path::new("/").join(CERTIFICATES))?),
            Self::Agent => {}
            Self::Sandbox => hash.update(root::key()),
        }
        Ok(format!("{:x}", hash.finalize()))
    }

    /// Its configuration and layers.
    ///
    /// # Errors
    /// When a file that goes into it can't be made or read.
    pub fn contents(self, programs: &Programs) -> Result<(ImageConfig, Vec<Layer>)> {
        let program = programs.path(self.program());
        match self {
            Self::Operator | Self::ApiServer | Self::Agent => {
                Ok((self.scratch_config(), vec![self.scratch(&program)?]))
            }
            Self::Sandbox => Ok((sandbox_config(), vec![root::layer()?, sandbox(&program)])),
        }
    }

    fn scratch_config(self) -> ImageConfig {
        ImageConfig {
            entrypoint: vec![format!("/usr/local/bin/{}", self.program())],
            user: Some(USER.to_owned()),
            labels: labels(self),
            ..ImageConfig::default()
        }
    }

    fn scratch(self, program: &Path) -> Result<Layer> {
        let mut layer = Layer::default();
        layer.copy(format!("usr/local/bin/{}", self.program()), 0o755, program);
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
        Ok(layer)
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
