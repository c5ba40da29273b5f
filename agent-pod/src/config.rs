//! What an engine process is told at its start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use cadre_protocol::worker::SandboxIdentity;

/// Everything an engine needs to know.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// The worker port of the API server.
    pub api: Endpoint,
    /// Where the bearer token comes from.
    pub token: TokenSource,
    /// The Sandbox that the pod belongs to; absent for workers of `cadre dev`.
    pub sandbox: Option<SandboxIdentity>,
    /// Where tools run.
    pub exec: ExecSource,
    /// An address that the pod's network must refuse (security rule 13); nothing is tried when absent.
    pub probe: Option<SocketAddr>,
    /// What follows when it does not.
    pub enforcement: Enforcement,
    /// A file that is touched while the engine lives; `check` looks at it.
    pub alive_file: Option<PathBuf>,
}

/// Whether tools may run in a network that is not isolated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Enforcement {
    /// They may not.
    #[default]
    Required,
    /// They may; the state is reported all the same.
    BestEffort,
}

impl FromStr for Enforcement {
    type Err = InvalidConfig;

    fn from_str(text: &str) -> Result<Self, InvalidConfig> {
        match text {
            "Required" => Ok(Self::Required),
            "BestEffort" => Ok(Self::BestEffort),
            _ => Err(InvalidConfig::Enforcement),
        }
    }
}

/// Where the API server's worker port is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `ws://host:port`.
    Tcp {
        /// `host:port`.
        authority: String,
    },
    /// `unix:/path`.
    Unix(PathBuf),
}

/// A value that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    /// Not an endpoint.
    #[error("the API address must be ws://host:port or unix:/path")]
    Endpoint,
    /// Not an enforcement.
    #[error("enforcement must be Required or BestEffort")]
    Enforcement,
}

impl FromStr for Endpoint {
    type Err = InvalidConfig;

    fn from_str(text: &str) -> Result<Self, InvalidConfig> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| path.starts_with('/')) {
            return Ok(Self::Unix(path.into()));
        }
        let url = url::Url::parse(text).map_err(|_| InvalidConfig::Endpoint)?;
        match (url.scheme(), url.host_str(), url.path()) {
            ("ws" | "http", Some(host), "" | "/") if url.username().is_empty() => {
                Ok(Self::Tcp { authority: format!("{host}:{}", url.port().unwrap_or(80)) })
            }
            _ => Err(InvalidConfig::Endpoint),
        }
    }
}

/// Where the bearer token comes from. A file is read at each dial, because kubelet rotates it.
#[derive(Clone)]
pub enum TokenSource {
    /// A file.
    File(PathBuf),
    /// The token itself.
    Text(String),
}

impl std::fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Text(_) => f.write_str("Text(…)"),
        }
    }
}

/// Where the tools of the sandbox run.
#[derive(Debug, Clone)]
pub enum ExecSource {
    /// Nowhere: the agent has no such tools.
    None,
    /// In the sandbox container, whose exec-server connects to this socket.
    Socket(PathBuf),
    /// In child processes, one for each session (`cadre dev`).
    Spawn {
        /// The binary that has an exec-server.
        program: PathBuf,
        /// Its first arguments, for example `["exec-server"]`; `--socket`, `--workspace` and `--die-with-parent` follow.
        args: Vec<String>,
        /// Where the sessions' workspaces are.
        workspaces_dir: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_sockets_or_addresses() {
        assert_eq!("unix:/run/x.sock".parse(), Ok(Endpoint::Unix("/run/x.sock".into())));
        assert_eq!("ws://api:7780".parse(), Ok(Endpoint::Tcp { authority: "api:7780".into() }));
        assert_eq!("ws://[::1]:7780/".parse(), Ok(Endpoint::Tcp { authority: "[::1]:7780".into() }));
        for bad in ["unix:x", "https://api", "ws://api/path", "ws://user@api", ""] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_token_is_not_printed() {
        assert_eq!(format!("{:?}", TokenSource::Text("secret".into())), "Text(…)");
    }
}
