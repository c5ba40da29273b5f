//! `version`.

use clap::Args;
use serde::Deserialize;

use crate::connect::Connection;
use crate::failure::Failure;
use crate::render::{clean::clean, terminal};

/// Show the versions of this program and of the server
#[derive(Debug, Args)]
pub struct VersionArgs {
    /// Only this program's.
    #[arg(long)]
    client: bool,
}

#[derive(Deserialize)]
struct Info {
    os_id: String,
    os_version: String,
    agno_version: String,
    agent_count: u64,
}

/// Shows versions.
///
/// # Errors
/// When the server can't be asked.
pub async fn version(args: &VersionArgs, connection: &Connection) -> Result<(), Failure> {
    terminal::answer(&format!("client  {}\n", env!("CARGO_PKG_VERSION")))?;
    if args.client {
        return Ok(());
    }
    let server = connection.server().await?;
    let Info { os_id, os_version, agno_version, agent_count } = server.api.get("/info").await?;
    let line = format!(
        "server  {os_version}  {os_id}, {agent_count} agents, API of AgentOS {agno_version}, {}\n",
        server.api.place()
    );
    Ok(terminal::answer(&clean(&line))?)
}
