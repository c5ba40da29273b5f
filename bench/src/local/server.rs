//! The servers that are measured: started, weighed, ended.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use http::Method;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use super::postgres::Postgres;
use crate::client::{Client, Target};
use crate::process::{self, Usage};

/// Longest start.
const START: Duration = Duration::from_secs(60);
/// Time to end by itself.
const FAREWELL: Duration = Duration::from_secs(10);
/// Variable that tells a server its database.
const DATABASE: &str = "BENCH_DATABASE";
/// Pause between two looks at a server that starts.
const LOOK: Duration = Duration::from_micros(300);

/// Where a server keeps its record.
pub enum Record {
    /// A file; `normal` where a power cut may take the last moments.
    Sqlite {
        /// Whether it may.
        normal: bool,
    },
    /// A PostgreSQL of its own.
    Postgres(Postgres),
}

impl Record {
    /// One that nobody else uses.
    ///
    /// # Errors
    /// When PostgreSQL does not start.
    pub async fn postgres() -> Result<Self> {
        Ok(Self::Postgres(tokio::task::spawn_blocking(Postgres::start).await??))
    }
}

/// A server of this machine.
pub struct Server {
    child: Child,
    pid: u32,
    address: SocketAddr,
    started: Duration,
    record: Record,
    _data: TempDir,
}

/// What a server and its workers have used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Used {
    /// The server's own process.
    pub server: Usage,
    /// Its children together.
    pub workers: Usage,
    /// Its PostgreSQL, where there is one. The memory is counted wrong, since its processes share most of it.
    pub database: Usage,
}

impl Used {
    /// Resident memory of all, in KiB.
    pub fn rss_kib(&self) -> u64 {
        self.server.rss_kib + self.workers.rss_kib
    }

    /// Processor time since another look: server, workers, database.
    pub fn cpu_since(&self, before: &Self) -> [Duration; 3] {
        let since = |now: Usage, then: Usage| now.cpu.saturating_sub(then.cpu);
        let Self { server, workers, database } = *self;
        [since(server, before.server), since(workers, before.workers), since(database, before.database)]
    }
}

impl Server {
    /// Starts `cadre dev` with agents `own` (scripted), `many` (the same, with tools) and `wire` (asks the model server).
    ///
    /// # Errors
    /// When it does not start.
    pub async fn cadre(program: &Path, model: SocketAddr, record: Record) -> Result<Self> {
        let data = tempfile::tempdir()?;
        let manifests = include_str!("manifests.yaml").replace("MODEL_URL", &format!("http://{model}/v1"));
        std::fs::write(data.path().join("bench.yaml"), manifests)?;
        let address = free().await?;
        let mut command = Command::new(program);
        command.arg("dev").arg(data.path()).args(["--listen", &address.to_string()]);
        let mut url = None;
        match &record {
            Record::Sqlite { normal: false } => {}
            Record::Sqlite { normal: true } => {
                command.args(["--durability", "normal"]);
            }
            Record::Postgres(postgres) => {
                command.args(["--database-env", DATABASE]);
                url = Some(format!("postgres://cadre@{}/postgres", postgres.folder().replace('/', "%2F")));
            }
        }
        Self::start(command, address, url, record, data).await
    }

    /// Starts agno's AgentOS with agents `wire` and `events`.
    ///
    /// # Errors
    /// When it does not start.
    pub async fn peer(python: &Path, model: SocketAddr, record: Record) -> Result<Self> {
        let data = tempfile::tempdir()?;
        let script = data.path().join("agentos.py");
        std::fs::write(&script, include_str!("../../peer/agentos.py"))?;
        let address = free().await?;
        let mut command = Command::new(python);
        let database = match &record {
            Record::Sqlite { .. } => data.path().join("agno.db").display().to_string(),
            Record::Postgres(postgres) => format!("postgresql+psycopg://cadre@/postgres?host={}", postgres.folder()),
        };
        command.arg(&script).arg(database).arg(format!("http://{model}/v1")).arg(address.port().to_string());
        Self::start(command, address, None, record, data).await
    }

    async fn start(
        mut command: Command,
        address: SocketAddr,
        url: Option<String>,
        record: Record,
        data: TempDir,
    ) -> Result<Self> {
        // Nothing of the caller's: no key, no proxy.
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", data.path());
        command.env("AGNO_TELEMETRY", "false").current_dir(data.path());
        if let Some(url) = url {
            command.env(DATABASE, url);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let program = command.as_std().get_program().display().to_string();
        let began = Instant::now();
        let mut child = command.spawn().with_context(|| format!("can't start {program}"))?;
        let pid = child.id().context("a server ended at once")?;
        let target = Target { address, agent: String::new(), key: None };
        while !healthy(&target).await {
            if let Some(status) = child.try_wait()? {
                bail!("{program} ended at its start: {status}");
            }
            anyhow::ensure!(began.elapsed() < START, "{program} does not answer");
            tokio::time::sleep(LOOK).await;
        }
        Ok(Self { child, pid, address, started: began.elapsed(), record, _data: data })
    }

    /// Time from the start to the first `/health`.
    pub fn started(&self) -> Duration {
        self.started
    }

    /// One of its agents.
    pub fn target(&self, agent: &str) -> Target {
        Target { address: self.address, agent: agent.to_owned(), key: None }
    }

    /// Its worker process.
    pub fn worker(&self) -> Option<u32> {
        process::family(self.pid).into_iter().nth(1)
    }

    /// What it has used until now.
    pub fn used(&self) -> Used {
        let mut used = Used::default();
        for (index, pid) in process::family(self.pid).into_iter().enumerate() {
            let Some(usage) = process::usage(pid) else { continue };
            let part = if index == 0 { &mut used.server } else { &mut used.workers };
            *part = part.plus(usage);
        }
        if let Record::Postgres(postgres) = &self.record {
            let database = process::family(postgres.pid()).into_iter().filter_map(process::usage);
            used.database = database.fold(Usage::default(), Usage::plus);
        }
        used
    }

    /// Ends it.
    ///
    /// # Errors
    /// When it can't be waited for.
    pub async fn stop(mut self) -> Result<()> {
        if let Ok(pid) = i32::try_from(self.pid) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        if tokio::time::timeout(FAREWELL, self.child.wait()).await.is_err() {
            self.child.kill().await?;
        }
        Ok(())
    }
}

async fn healthy(target: &Target) -> bool {
    let Ok(mut client) = Client::connect(target).await else { return false };
    client.call(Method::GET, "/health", None).await.is_ok_and(|(status, _)| status.is_success())
}

/// An address that nobody listens on.
async fn free() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?.local_addr()?)
}
