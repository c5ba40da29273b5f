//! The exec-server as a process: its flags, and its end with its parent.

use std::path::PathBuf;
use std::time::Duration;

use cadre_exec::room::Bounded;
use cadre_exec::server::{self, ServerConfig, ServerError};
use clap::Args;
use nix::sys::signal::{Signal, raise};
use tokio::io::AsyncReadExt;

/// Time for an orderly end.
const LEAVE_TIME: Duration = Duration::from_secs(5);

/// Flags of exec-server.
#[derive(Debug, Clone, Args)]
pub struct ExecConfig {
    /// Socket of the engine.
    #[arg(long, env = "CADRE_EXEC_SOCKET")]
    pub socket: PathBuf,
    /// The workspace folder.
    #[arg(long, env = "CADRE_WORKSPACE")]
    pub workspace: PathBuf,
    /// HOME of commands; the workspace if absent.
    #[arg(long, env = "CADRE_EXEC_HOME")]
    pub home: Option<PathBuf>,
    /// TMPDIR of commands.
    #[arg(long, env = "CADRE_EXEC_TMP", default_value = "/tmp")]
    pub tmp: PathBuf,
    /// User and group of commands, as UID:GID; exec-server's own if absent.
    #[arg(long, env = "CADRE_EXEC_RUN_AS", value_parser = user_and_group)]
    pub run_as: Option<(u32, u32)>,
    /// Shell that runs commands; bash or sh if absent.
    #[arg(long, env = "CADRE_EXEC_SHELL")]
    pub shell: Option<PathBuf>,
    /// A folder and the bytes that it may hold, as PATH=BYTES: a command that fills it is ended.
    #[arg(long, value_name = "PATH=BYTES", value_parser = bounded)]
    pub bounded: Vec<Bounded>,
    /// Name of a variable that commands see, with the value that it has here. Commands see no other one.
    #[arg(long = "env", value_name = "NAME")]
    pub env: Vec<String>,
    /// End when standard input ends: the parent holds its other end.
    #[arg(long)]
    pub die_with_parent: bool,
}

fn user_and_group(text: &str) -> Result<(u32, u32), String> {
    let parsed = text.split_once(':').and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
    parsed.ok_or_else(|| "expected UID:GID".to_owned())
}

fn bounded(text: &str) -> Result<Bounded, String> {
    let parsed =
        text.rsplit_once('=').and_then(|(path, limit)| Some(Bounded { path: path.into(), limit: limit.parse().ok()? }));
    parsed.ok_or_else(|| "expected PATH=BYTES".to_owned())
}

/// Runs an exec-server until its process is told to end, or its parent is gone.
///
/// # Errors
/// When it can't run.
pub async fn exec_main(config: ExecConfig) -> Result<(), ServerError> {
    let ExecConfig { socket, workspace, home, tmp, run_as, shell, bounded, env, die_with_parent } = config;
    let env = env.into_iter().filter_map(|name| std::env::var(&name).ok().map(|value| (name, value))).collect();
    let home = home.unwrap_or_else(|| workspace.clone());
    let server = server::run(ServerConfig { socket, workspace, home, tmp, run_as, shell, bounded, env });
    if !die_with_parent {
        return server.await;
    }
    tokio::select! {
        ended = server => ended,
        () = after_the_parent() => Ok(()),
    }
}

/// Waits for the parent's end, then asks for the orderly end that ends all commands too; returns when that takes too
/// long.
async fn after_the_parent() {
    let mut input = tokio::io::stdin();
    let mut buffer = [0; 64];
    while matches!(input.read(&mut buffer).await, Ok(1..)) {}
    // It can fail only for a signal that does not exist.
    let _ = raise(Signal::SIGTERM);
    tokio::time::sleep(LEAVE_TIME).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_numbers() {
        assert_eq!(user_and_group("1000:1001"), Ok((1000, 1001)));
        assert!(user_and_group("me:us").is_err() && user_and_group("1").is_err());
    }

    #[test]
    fn bounds_are_bytes() {
        assert_eq!(bounded("/a=b=10"), Ok(Bounded { path: "/a=b".into(), limit: 10 }));
        assert!(bounded("/a").is_err() && bounded("/a=1Gi").is_err());
    }
}
