//! The command line: `kubectl cadre …`, and `cadre dev` for a machine without a cluster.
//!
//! Owns flags, the way to the API server and what people see. Must not have logic that the API lacks.

mod api;
mod commands;
mod connect;
mod dev;
mod failure;
mod follow;
mod forward;
mod interrupt;
mod multipart;
mod render;
mod transport;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use commands::{approve, cancel, completion, continuing, credential, logs, run, runs, version};
use connect::Connection;
use failure::Failure;

/// Run AI agents on Kubernetes.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Runs(runs::RunsArgs),
    Logs(logs::LogsArgs),
    Cancel(cancel::CancelArgs),
    Approve(approve::ApproveArgs),
    Reject(approve::RejectArgs),
    Continue(continuing::ContinueArgs),
    Credential(credential::CredentialArgs),
    Dev(dev::DevArgs),
    Version(version::VersionArgs),
    Completion(completion::CompletionArgs),
    #[command(name = "__worker", hide = true)]
    Worker(dev::processes::WorkerArgs),
    #[command(name = "__exec", hide = true)]
    Exec(cadre_agent::exec_main::ExecConfig),
}

/// The program, under whichever name it was started.
#[must_use]
pub fn main() -> ExitCode {
    let shown = program();
    let name = if shown == "cadre" { "cadre" } else { "kubectl-cadre" };
    let command = Cli::command().name(name).bin_name(shown);
    let cli = match Cli::from_arg_matches(&command.clone().get_matches()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    // An error means that another part has chosen one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match dispatch(cli, command, name) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

/// What people type to start this program.
fn program() -> &'static str {
    let program = std::env::args_os().next();
    let program = program.as_deref().map(Path::new).and_then(Path::file_stem).and_then(|name| name.to_str());
    if program == Some("kubectl-cadre") { "kubectl cadre" } else { "cadre" }
}

fn dispatch(cli: Cli, command: clap::Command, name: &str) -> Result<ExitCode, Failure> {
    let runtime = match cli.command {
        Command::Dev(_) => cadre_api::runtime::runtime(),
        _ => tokio::runtime::Builder::new_current_thread().enable_all().build(),
    };
    let runtime = runtime.map_err(|error| Failure::Other(format!("no runtime: {error}")))?;
    let connection = &cli.connection;
    runtime.block_on(async {
        match cli.command {
            Command::Run(args) => return run::run(args, connection).await.map(ExitCode::from),
            Command::Runs(args) => runs::runs(&args, &connection.server().await?).await?,
            Command::Logs(args) => logs::logs(&args, &connection.server().await?).await?,
            Command::Continue(args) => return continuing::go_on(args, connection).await.map(ExitCode::from),
            Command::Approve(args) => return approve::approve(args, connection).await.map(ExitCode::from),
            Command::Reject(args) => return approve::reject(args, connection).await.map(ExitCode::from),
            Command::Cancel(args) => cancel::cancel(&args, &connection.server().await?).await?,
            Command::Credential(args) => credential::credential(&args, connection).await?,
            Command::Version(args) => version::version(&args, connection).await?,
            Command::Completion(args) => completion::completion(&args, command, name)?,
            Command::Dev(args) => dev::dev(args).await.map_err(|error| Failure::Other(format!("{error:#}")))?,
            Command::Worker(args) => return dev::processes::worker(args).await.map(ExitCode::from),
            Command::Exec(config) => dev::processes::exec(config).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}
