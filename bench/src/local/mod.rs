//! `cadre dev`, alone and beside agno's AgentOS.

use anyhow::Result;

use crate::table::Table;

/// Which programs.
#[derive(Debug, clap::Args)]
#[group(id = "local_arguments", multiple = true)]
pub struct Arguments {}

/// Measures.
///
/// # Errors
/// When a server can't be started or a run ends badly.
pub async fn measure(_arguments: &Arguments, _peer: bool, _table: &mut Table) -> Result<()> {
    Ok(())
}
