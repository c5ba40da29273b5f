//! The agent pod's program: the engine, the exec-server of its sandbox container, the installer, the liveness check.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context as _;
use cadre_agent::config::{Endpoint, Enforcement, EngineConfig, ExecSource, TokenSource};
use cadre_agent::exec_main::{ExecConfig, exec_main};
use cadre_agent::service::engine_main;
use cadre_agent::{alive, logs};
use cadre_protocol::worker::SandboxIdentity;
use clap::{Args, Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Engine and sandbox of an agent pod.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Carries out runs.
    Engine(EngineArgs),
    /// Runs commands in the sandbox container.
    ExecServer(ExecConfig),
    /// Copies this program to a path.
    Install {
        /// Where to.
        target: PathBuf,
    },
    /// Succeeds if the engine of this container lives.
    Check {
        /// File that the engine touches.
        #[arg(long, env = "CADRE_ALIVE_FILE", default_value = ALIVE_FILE)]
        alive_file: PathBuf,
    },
}

const ALIVE_FILE: &str = "/tmp/cadre-engine-alive";

#[derive(Args)]
struct EngineArgs {
    /// Worker port of the API server: ws://host:port or unix:/path.
    #[arg(long, env = "CADRE_API")]
    api: Endpoint,
    /// File with the bearer token, read at each dial.
    #[arg(long, env = "CADRE_TOKEN_FILE", required_unless_present = "token")]
    token_file: Option<PathBuf>,
    /// The bearer token itself, for local workers. Only from the environment, which other users can't read.
    #[arg(long, env = "CADRE_TOKEN", hide_env_values = true, hide = true, conflicts_with = "token_file")]
    token: Option<String>,
    /// Namespace of the pod's Sandbox.
    #[arg(long, env = "CADRE_SANDBOX_NAMESPACE", requires = "sandbox_name")]
    sandbox_namespace: Option<String>,
    /// Name of the pod's Sandbox.
    #[arg(long, env = "CADRE_SANDBOX_NAME", requires = "sandbox_namespace")]
    sandbox_name: Option<String>,
    /// Socket to which exec-server connects; absent where there is no sandbox container.
    #[arg(long, env = "CADRE_EXEC_SOCKET")]
    socket: Option<PathBuf>,
    /// Where workspaces of local sessions go: starts an exec-server for each session.
    #[arg(long, env = "CADRE_WORKSPACES_DIR", conflicts_with = "socket")]
    workspaces_dir: Option<PathBuf>,
    /// Address that the pod's network must refuse.
    #[arg(long, env = "CADRE_PROBE")]
    probe: Option<SocketAddr>,
    /// What follows when it does not: Required or BestEffort.
    #[arg(long, env = "CADRE_ENFORCEMENT", default_value = "Required")]
    enforcement: Enforcement,
    /// File to touch for `check`.
    #[arg(long, env = "CADRE_ALIVE_FILE", default_value = ALIVE_FILE)]
    alive_file: PathBuf,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Engine(args) => engine(args),
        Command::ExecServer(config) => exec_server(config),
        Command::Install { target } => cadre_exec::install(&target).context("install").map(|()| ExitCode::SUCCESS),
        Command::Check { alive_file } => check(&alive_file),
    };
    result.unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::FAILURE
    })
}

fn engine(args: EngineArgs) -> anyhow::Result<ExitCode> {
    logs::start();
    let config = args.config()?;
    // One thread does: the engine waits nearly all the time, and a pod is for one session.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exit = runtime.block_on(async {
        let stop = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let stopped = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            stopped.cancel();
        });
        engine_main(config, stop).await
    })?;
    Ok(ExitCode::from(exit.code()))
}

impl EngineArgs {
    fn config(self) -> anyhow::Result<EngineConfig> {
        let exec = match (self.socket, self.workspaces_dir) {
            (Some(socket), _) => ExecSource::Socket(socket),
            (None, Some(workspaces_dir)) => {
                let program = std::env::current_exe().context("find this program")?;
                ExecSource::Spawn { program, args: vec!["exec-server".into()], workspaces_dir }
            }
            (None, None) => ExecSource::None,
        };
        let token = match (self.token_file, self.token) {
            (Some(path), _) => TokenSource::File(path),
            (None, token) => TokenSource::Text(token.context("a token is needed")?),
        };
        let sandbox = self.sandbox_namespace.zip(self.sandbox_name);
        Ok(EngineConfig {
            api: self.api,
            token,
            sandbox: sandbox.map(|(namespace, name)| SandboxIdentity { namespace, name }),
            exec,
            probe: self.probe,
            enforcement: self.enforcement,
            alive_file: Some(self.alive_file),
        })
    }
}

fn exec_server(config: ExecConfig) -> anyhow::Result<ExitCode> {
    logs::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(exec_main(config)).context("exec-server")?;
    Ok(ExitCode::SUCCESS)
}

fn check(alive_file: &Path) -> anyhow::Result<ExitCode> {
    alive::check(alive_file, SystemTime::now()).context("the engine gives no sign of life")?;
    Ok(ExitCode::SUCCESS)
}
