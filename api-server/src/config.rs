//! What the server is told: flags and environment.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use cadre_store::sqlite::Durability;
use clap::{Args, Parser, Subcommand, ValueEnum};
use secrecy::{ExposeSecret as _, SecretString};

use crate::domain::Limits;
use crate::domain::shares::NamespaceShares;
use crate::domain::upkeep::Retention;

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
    /// Prints the OpenAPI document and ends.
    Openapi,
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
    /// Where the record is: `sqlite:///absolute/path` or `postgres://user:password@host/database`.
    // Any text is taken here, because complaints about arguments repeat them: see `Self::database`.
    #[arg(long, env = "CADRE_DATABASE", hide_env_values = true, default_value = "sqlite:///data/cadre.db")]
    #[arg(value_parser = secret)]
    pub database: SecretString,
    /// What a power loss may take of a SQLite file. PostgreSQL's own settings say it for PostgreSQL.
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
    /// Most sessions that run at once over all replicas; further ones wait. 0: no limit.
    #[arg(long, env = "CADRE_MAX_RUNNING", default_value_t = 0)]
    pub max_running: u32,
    /// Most waiting runs of one namespace. 0: no limit.
    #[arg(long, env = "CADRE_NAMESPACE_MAX_QUEUE_DEPTH", default_value_t = 1_000)]
    pub namespace_max_queue_depth: u32,
    /// Most sessions of one namespace that run at once over all replicas. 0: no limit.
    #[arg(long, env = "CADRE_NAMESPACE_MAX_RUNNING", default_value_t = 0)]
    pub namespace_max_running: u32,
    /// Most open streams and waiting requests of one namespace, of this replica. 0: no limit.
    #[arg(long, env = "CADRE_NAMESPACE_MAX_STREAMS", default_value_t = 2_000)]
    pub namespace_max_streams: u32,
    /// Most bytes of files of one namespace's runs. 0: no limit.
    #[arg(long, env = "CADRE_NAMESPACE_MAX_FILE_BYTES", default_value_t = 5 << 30)]
    pub namespace_max_file_bytes: u64,
    /// Most Sandboxes of one namespace's sessions at once; further runs wait. 0: no limit.
    #[arg(long, env = "CADRE_NAMESPACE_MAX_SANDBOXES", default_value_t = 500)]
    pub namespace_max_sandboxes: u32,
    /// Hours that an idempotency key is remembered, at least until its run has ended.
    #[arg(long, env = "CADRE_IDEMPOTENCY_HOURS", default_value_t = 24, value_parser = clap::value_parser!(u32).range(1..=87_600))]
    pub idempotency_hours: u32,
    /// Days that a run is kept after its end; sessions that are left without one go too. 0: for ever.
    #[arg(long, env = "CADRE_RETAIN_RUN_DAYS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=36_500))]
    pub retain_run_days: u32,
    /// Seconds that a request without streaming waits for its answer before it gets 202.
    #[arg(long, env = "CADRE_WAIT_SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub wait_seconds: u64,
    /// Private address ranges that models and the http tool may be reached at, comma-separated.
    #[arg(long, env = "CADRE_EGRESS_ALLOW_CIDRS", value_delimiter = ',')]
    pub egress_allow_cidrs: Vec<ipnet::IpNet>,
    /// Ranges of the cluster in public space that are closed to them, comma-separated.
    #[arg(long, env = "CADRE_CLUSTER_CIDRS", value_delimiter = ',')]
    pub cluster_cidrs: Vec<ipnet::IpNet>,
    /// OTLP collector for traces of runs, by HTTP: the base that `/v1/traces` is added to. None are sent when absent.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,
}

impl Config {
    /// The domain's bounds.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            max_queue_depth: self.max_queue_depth,
            max_running: self.max_running,
            shares: NamespaceShares {
                max_queue_depth: self.namespace_max_queue_depth,
                max_running: self.namespace_max_running,
                max_streams: self.namespace_max_streams,
                max_file_bytes: self.namespace_max_file_bytes,
                max_sandboxes: self.namespace_max_sandboxes,
            },
            retention: Retention::new(self.idempotency_hours, self.retain_run_days),
            ..Limits::default()
        }
    }

    /// Where the record is.
    ///
    /// # Errors
    /// When it is no URL of a database that can be used. The message doesn't repeat it.
    pub fn database(&self) -> Result<Database, InvalidSetting> {
        self.database.expose_secret().parse()
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
#[derive(Debug, Clone)]
pub enum Database {
    /// A file.
    Sqlite(PathBuf),
    /// The URL of a PostgreSQL, password included.
    Postgres(SecretString),
}

impl FromStr for Database {
    type Err = InvalidSetting;

    fn from_str(text: &str) -> Result<Self, InvalidSetting> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return if wants_encryption(text) {
                Err(InvalidSetting(
                    "connections to PostgreSQL can't be encrypted: leave sslmode out of the database's URL, or set it to disable",
                ))
            } else {
                Ok(Self::Postgres(text.to_owned().into()))
            };
        }
        match text.strip_prefix("sqlite://") {
            Some(path) if path.starts_with('/') && path.len() > 1 => Ok(Self::Sqlite(path.into())),
            _ => Err(InvalidSetting("the database must be sqlite:///absolute/path or postgres://user@host/database")),
        }
    }
}

/// Whether a URL asks for more than PostgreSQL's default, which is to encrypt where both sides can.
fn wants_encryption(url: &str) -> bool {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    url::form_urlencoded::parse(query.as_bytes())
        .any(|(name, value)| name == "sslmode" && !matches!(&*value, "disable" | "prefer"))
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
    fn databases_are_absolute_files_or_servers() {
        let file = "sqlite:///data/c.db".parse().unwrap();
        assert!(matches!(file, Database::Sqlite(path) if path.as_os_str() == "/data/c.db"));
        for url in ["postgres://u:p@host/db", "postgresql://u@%2Frun/db", "postgres://u@host/db?sslmode=disable"] {
            assert!(matches!(url.parse(), Ok(Database::Postgres(_))), "{url}");
        }
        for bad in ["sqlite://c.db", "mysql://host/db", "", "sqlite:///", "host=h user=u"] {
            assert!(bad.parse::<Database>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_database_that_must_be_reached_by_tls_is_refused() {
        for mode in ["require", "verify-ca", "verify-full"] {
            let url = format!("postgres://u:p@host/db?connect_timeout=3&sslmode={mode}");
            let refused = url.parse::<Database>().unwrap_err();
            assert!(refused.to_string().contains("sslmode"), "{refused}");
        }
    }

    #[test]
    fn a_password_is_not_printed() {
        for url in ["postgres://u:very-secret@host/db", "postgres://u:very-secret@h/d?sslmode=require", "x:very-secret"]
        {
            let cli = Cli::try_parse_from(["cadre-api", "--database", url]).unwrap();
            let printed = format!("{:?} {:?}", cli.config, cli.config.database());
            assert!(!printed.contains("very-secret"), "{printed}");
        }
        let help = <Cli as clap::CommandFactory>::command().render_long_help().to_string();
        assert!(help.contains("[env: CADRE_DATABASE]"), "{help}");
    }

    #[test]
    fn a_key_is_not_printed() {
        let cli = Cli::parse_from(["cadre-api", "--security-key", "very-secret-very-secret-very-secret"]);
        assert!(!format!("{:?}", cli.config).contains("very-secret"));
        assert_eq!(cli.config.operator_user().unwrap(), "system:serviceaccount:cadre-system:cadre-operator");
    }
}
