//! What the server is told: flags and environment.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use cadre_store::sqlite::Durability;
use clap::{Args, Parser, Subcommand, ValueEnum};
use secrecy::SecretString;

use crate::domain::Limits;

/// Cadre's API server.
#[derive(Debug, Parser)]
#[command(name = "cadre-api", version)]
pub struct Cli {
    /// What to do; serves when absent.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Settings.
    #[command(flatten)]
    pub config: Config,
}

/// Other things than serving.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum Command {
    /// Brings the database's schema up to date and ends.
    Migrate,
}

/// Settings of a server in a cluster.
#[derive(Debug, Clone, Args)]
pub struct Config {
    /// Address of the HTTP API.
    #[arg(long, env = "CADRE_LISTEN_USER", default_value = "0.0.0.0:7777")]
    pub listen_user: SocketAddr,
    /// Address that workers and the operator dial.
    #[arg(long, env = "CADRE_LISTEN_WORKER", default_value = "0.0.0.0:7780")]
    pub listen_worker: SocketAddr,
    /// Address of health and metrics.
    #[arg(long, env = "CADRE_LISTEN_ADMIN", default_value = "0.0.0.0:8080")]
    pub listen_admin: SocketAddr,
    /// Where the record is.
    #[arg(long, env = "CADRE_DATABASE", default_value = "sqlite:///data/cadre.db")]
    pub database: Database,
    /// What a power loss may take.
    #[arg(long, env = "CADRE_DURABILITY", value_enum, default_value_t = DurabilityArg::Full)]
    pub durability: DurabilityArg,
    /// Namespace whose agents have API ids without a dot.
    #[arg(long, env = "CADRE_DEFAULT_NAMESPACE", default_value = "default")]
    pub default_namespace: String,
    /// Namespaces that are served, comma-separated; all when empty.
    #[arg(long, env = "CADRE_NAMESPACES", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// `os_id` that clients read.
    #[arg(long, env = "CADRE_OS_ID", default_value = "cadre")]
    pub os_id: String,
    /// Bearer token of the HTTP API: at least 32 random bytes.
    #[arg(long, env = "OS_SECURITY_KEY", hide_env_values = true, value_parser = secret)]
    pub security_key: Option<SecretString>,
    /// ServiceAccount of the operator, as `namespace/name`.
    #[arg(long, env = "CADRE_OPERATOR_SERVICE_ACCOUNT", default_value = "cadre-system/cadre-operator")]
    pub operator_service_account: String,
    /// Most waiting runs; further ones are refused. 0: no limit.
    #[arg(long, env = "CADRE_MAX_QUEUE_DEPTH", default_value_t = 10_000)]
    pub max_queue_depth: u32,
    /// Most sessions that run at once on this replica; further ones wait. 0: no limit.
    #[arg(long, env = "CADRE_MAX_RUNNING", default_value_t = 0)]
    pub max_running: u32,
    /// Seconds that a request without streaming waits for its answer before it gets 202.
    #[arg(long, env = "CADRE_WAIT_SECONDS", default_value_t = 3600)]
    pub wait_seconds: u64,
    /// Private address ranges that models and the http tool may be reached at, comma-separated.
    #[arg(long, env = "CADRE_EGRESS_ALLOW_CIDRS", value_delimiter = ',')]
    pub egress_allow_cidrs: Vec<ipnet::IpNet>,
    /// Ranges of the cluster in public space that are closed to them, comma-separated.
    #[arg(long, env = "CADRE_CLUSTER_CIDRS", value_delimiter = ',')]
    pub cluster_cidrs: Vec<ipnet::IpNet>,
}

impl Config {
    /// The domain's bounds.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits { max_queue_depth: self.max_queue_depth, max_running: self.max_running, ..Limits::default() }
    }

    /// The operator's user name.
    ///
    /// # Errors
    /// When the setting is not `namespace/name`.
    pub fn operator_user(&self) -> Result<String, InvalidSetting> {
        match self.operator_service_account.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                Ok(format!("system:serviceaccount:{namespace}:{name}"))
            }
            _ => Err(InvalidSetting("the operator's ServiceAccount must be given as namespace/name")),
        }
    }

    /// How long a request without streaming waits.
    #[must_use]
    pub fn wait(&self) -> Duration {
        Duration::from_secs(self.wait_seconds)
    }
}

/// A setting that can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSetting(&'static str);

/// Where the record is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    /// A file.
    Sqlite(PathBuf),
}

impl FromStr for Database {
    type Err = InvalidSetting;

    fn from_str(text: &str) -> Result<Self, InvalidSetting> {
        match text.strip_prefix("sqlite://") {
            Some(path) if path.starts_with('/') && path.len() > 1 => Ok(Self::Sqlite(path.into())),
            _ => Err(InvalidSetting("the database must be sqlite:///absolute/path")),
        }
    }
}

/// What a power loss may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DurabilityArg {
    /// Nothing that was answered.
    Full,
    /// The last moments; a crash of the server alone takes nothing.
    Normal,
}

impl From<DurabilityArg> for Durability {
    fn from(arg: DurabilityArg) -> Self {
        match arg {
            DurabilityArg::Full => Self::Full,
            DurabilityArg::Normal => Self::Normal,
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "clap wants a fallible parser")]
fn secret(text: &str) -> Result<SecretString, std::convert::Infallible> {
    Ok(SecretString::from(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_are_absolute_files() {
        assert_eq!("sqlite:///data/c.db".parse(), Ok(Database::Sqlite("/data/c.db".into())));
        for bad in ["sqlite://c.db", "postgres://host/db", "", "sqlite:///"] {
            assert!(bad.parse::<Database>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_is_not_printed() {
        let cli = Cli::parse_from(["cadre-api", "--security-key", "very-secret-very-secret-very-secret"]);
        assert!(!format!("{:?}", cli.config).contains("very-secret"));
        assert_eq!(cli.config.operator_user().unwrap(), "system:serviceaccount:cadre-system:cadre-operator");
    }
}
