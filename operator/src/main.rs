//! The operator's program.

use std::time::Duration;

use anyhow::Context as _;
use cadre_operator::config::Settings;
use cadre_operator::run;
use clap::Parser;
use kube::{Client, Config};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Longest silence on a connection to the Kubernetes API: above the 290 s after which a watch ends by itself, so that only
/// connections are given up that are dead.
const SILENCE: Duration = Duration::from_secs(295);

/// Turns Cadre's resources into pods, policies, submissions and status.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    settings: Settings,
    /// What is logged, for example `info` or `cadre_operator=debug`.
    #[arg(long, env = "CADRE_LOG", default_value = "info")]
    log: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Cli { settings, log } = Cli::parse();
    // Before any client: kube and reqwest take the process's provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let filter = tracing_subscriber::EnvFilter::try_new(log).context("the log filter")?;
    tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(std::io::stderr).init();
    let mut config = Config::infer().await.context("find the Kubernetes API")?;
    config.read_timeout = Some(SILENCE);
    let client = Client::try_from(config).context("find the Kubernetes API")?;
    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone())?);
    run::run(client, settings, stop).await
}

fn stop_on_signal(stop: CancellationToken) -> std::io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        stop.cancel();
    })
}
