//! The API server in a cluster.

use cadre_api::config::{Cli, Command};
use clap::Parser;
use tracing_subscriber::EnvFilter;

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    if matches!(cli.command, Some(Command::Openapi)) {
        return print(&cadre_api::openapi::document());
    }
    let filter = EnvFilter::try_from_env("CADRE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(std::io::stderr).init();
    // Before any client is built: each of them would otherwise have to choose a TLS provider.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        anyhow::bail!("another TLS provider is installed already");
    }
    let runtime = cadre_api::runtime::runtime()?;
    match cli.command {
        Some(Command::Migrate) => runtime.block_on(cadre_api::cluster::migrate(&cli.config)),
        Some(Command::Openapi) => Ok(()),
        None => runtime.block_on(cadre_api::cluster::serve(cli.config)),
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}
