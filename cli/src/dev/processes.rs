//! The child processes of `cadre dev`: an engine, and the exec-servers that it starts. Both are this program.

use std::ffi::OsString;
use std::io::{BufRead as _, Read as _};
use std::path::{Path, PathBuf};

use cadre_agent::config::{Endpoint, Enforcement, EngineConfig, ExecSource, TokenSource};
use cadre_agent::exec_main::{ExecConfig, exec_main};
use cadre_agent::service::engine_main;
use cadre_api::placement::process::ProcessOptions;
use clap::Args;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;

/// Variables that workers get from this process; nothing else goes to them (security rule 4).
const KEPT: [&str; 6] = ["PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "CADRE_LOG"];

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

/// How workers are started.
pub fn options(program: PathBuf, link: &Path, workspaces: &Path, workers: u32) -> ProcessOptions {
    let mut endpoint = OsString::from("unix:");
    endpoint.push(link);
    let args = ["__worker".into(), "--api".into(), endpoint, "--workspaces".into(), workspaces.into()];
    let mut env: Vec<(OsString, OsString)> =
        KEPT.iter().filter_map(|name| Some(((*name).into(), std::env::var_os(name)?))).collect();
    if !env.iter().any(|(name, _)| name == "CADRE_LOG") {
        env.push(("CADRE_LOG".into(), "error".into()));
    }
    ProcessOptions { program, args: args.into(), env, workers }
}

/// Runs an engine until its parent is gone. The token is the first line of standard input; its end is the parent's.
///
/// # Errors
/// When a folder or socket can't be made.
pub async fn worker(args: WorkerArgs) -> Result<u8, Failure> {
    cadre_agent::logs::start();
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
    Ok(engine_main(config, stop).await?.code())
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
    cadre_agent::logs::start();
    exec_main(config).await.map_err(|error| Failure::Other(format!("exec-server: {error}")))
}
