//! The child processes of `cadre dev`: an engine, and the exec-servers that it starts. Both are this program.

use std::ffi::OsString;
use std::io::{BufRead as _, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cadre_agent::config::{Endpoint, Enforcement, EngineConfig, ExecSource, TokenSource};
use cadre_agent::exec_main::{ExecConfig, exec_main};
use cadre_agent::service::engine_main;
use cadre_api::placement::process::ProcessOptions;
use clap::Args;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::failure::Failure;

/// Variables that workers get from this process; nothing else goes to them (security rule 4).
const KEPT: [&str; 5] = ["PATH", "LANG", "LC_ALL", "TZ", "CADRE_LOG"];

/// Time that an engine gets after its parent is gone.
const LEAVE_TIME: Duration = Duration::from_secs(10);

/// An engine of `cadre dev`.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// The worker port.
    #[arg(long)]
    api: Endpoint,
    /// Where workspaces are.
    #[arg(long)]
    workspaces: PathBuf,
}

/// How workers are started. Their sockets go below `sockets` too: what a killed worker leaves goes with that folder.
pub fn options(program: PathBuf, sockets: &Path, link: &Path, workspaces: &Path, workers: u32) -> ProcessOptions {
    let mut endpoint = OsString::from("unix:");
    endpoint.push(link);
    let args = ["__worker".into(), "--api".into(), endpoint, "--workspaces".into(), workspaces.into()];
    let kept = KEPT.iter().filter_map(|name| Some((OsString::from(*name), std::env::var_os(name)?)));
    let env = kept.chain([("TMPDIR".into(), sockets.into())]).collect();
    ProcessOptions { program, args: args.into(), env, workers, workspaces: workspaces.to_owned() }
}

/// Runs an engine until its parent is gone. The token is the first line of standard input; its end is the parent's.
///
/// # Errors
/// When a folder or socket can't be made.
pub async fn worker(args: WorkerArgs) -> Result<u8, Failure> {
    logs();
    // A Ctrl-C at the terminal is for the parent, which ends its workers in order.
    let _ = nix::unistd::setsid();
    let stop = CancellationToken::new();
    let token = parent(stop.clone()).await.map_err(|_| Failure::Other("there is no token".to_owned()))?;
    let program = std::env::current_exe()?;
    let exec = ExecSource::Spawn { program, args: vec!["__exec".to_owned()], workspaces_dir: args.workspaces };
    let config = EngineConfig {
        api: args.api,
        token: TokenSource::Text(token),
        sandbox: None,
        exec,
        probe: None,
        enforcement: Enforcement::BestEffort,
        alive_file: None,
    };
    tokio::select! {
        ended = engine_main(config, stop.clone()) => Ok(ended?.code()),
        () = too_long_after(stop) => Ok(0),
    }
}

/// The engine would wait for a tool longer than anybody waits for it here.
async fn too_long_after(gone: CancellationToken) {
    gone.cancelled().await;
    tokio::time::sleep(LEAVE_TIME).await;
}

/// Reads standard input on a thread of its own: the runtime would wait for a read that never ends.
fn parent(gone: CancellationToken) -> oneshot::Receiver<String> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let mut input = std::io::stdin().lock();
        let mut line = String::new();
        if input.read_line(&mut line).is_ok_and(|read| read > 0) {
            let _ = sender.send(line.trim().to_owned());
            let mut rest = [0; 64];
            while matches!(input.read(&mut rest), Ok(1..)) {}
        }
        gone.cancel();
    });
    receiver
}

/// Runs an exec-server.
///
/// # Errors
/// When it can't run.
pub async fn exec(config: ExecConfig) -> Result<(), Failure> {
    logs();
    exec_main(config).await.map_err(|error| Failure::Other(format!("exec-server: {error}")))
}

/// Errors only, in the developer's terminal; `CADRE_LOG` asks for more. Tools' processes are not given it.
fn logs() {
    let filter = EnvFilter::try_from_env("CADRE_LOG").unwrap_or_else(|_| EnvFilter::new("error"));
    let _ = tracing_subscriber::fmt().compact().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}
