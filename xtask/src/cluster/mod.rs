//! A real Kubernetes with two nodes on one machine: control plane, DNS, enforced NetworkPolicies, volumes.
//!
//! `network`, `layout`, `config` and `services` are pure: they say what the cluster consists of.
//! The other modules do it. Everything lives below one folder, one cgroup, two network namespaces and one bridge,
//! all with names of ours, so that `down` finds what `up` made and nothing else.
//! With `CADRE_CLUSTER=current` the user's present kube context takes the cluster's place (`current`).

mod addons;
mod cgroup;
pub mod command;
mod config;
mod current;
mod down;
mod go;
pub mod host;
mod images;
mod layout;
mod mounts;
mod network;
mod node;
mod pause;
mod probe;
mod process;
pub mod progress;
mod services;
mod status;
mod supervisor;
mod up;

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

use layout::Layout;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Build the cluster's programs (once; some minutes)
    Build {
        /// Keep Go's build and module caches (gigabytes) for the next build
        #[arg(long, env = "CADRE_KEEP_GO_CACHE", value_parser = clap::builder::FalseyValueParser::new())]
        keep_cache: bool,
    },
    /// Start the cluster, or check and repair the one that runs
    Up {
        /// Let pods reach the internet through this machine's address
        #[arg(long, env = "CADRE_CLUSTER_EGRESS", value_parser = clap::builder::FalseyValueParser::new())]
        egress: bool,
    },
    /// Stop the cluster and remove all that it made on this machine
    Down,
    /// Show what runs
    Status,
    /// Print the path of the kubeconfig
    Kubeconfig,
    /// End and revive single nodes
    #[command(subcommand)]
    Node(NodeAction),
    /// Load OCI archives into every node
    Load {
        /// Archives as `cargo xtask images` writes them
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
    /// Run etcd and kube-apiserver alone, on loopback, until interrupted
    Apiserver,
    /// Keep the cluster's programs running (started by `up`)
    #[command(hide = true)]
    Supervise { root: PathBuf },
}

#[derive(Subcommand)]
enum NodeAction {
    /// Cut a node's power: all its processes end at once, and it stays off
    Kill { name: String },
    /// Start a node again, after cutting its power if it runs
    Restart { name: String },
}

/// Does what the command line asks for.
///
/// # Errors
/// With a message that says what is missing or which log to read.
pub fn run(arguments: Arguments) -> Result<()> {
    if let Action::Supervise { root } = &arguments.action {
        return supervisor::run(&Layout::new(root));
    }
    if let Some(current) = current::Current::from_environment()? {
        return run_on_current(&current, &arguments.action);
    }
    let layout = Layout::in_cache()?;
    match arguments.action {
        Action::Build { keep_cache } => go::build_all(keep_cache),
        Action::Up { egress } => up::run(&layout, egress),
        Action::Down => down::run(&layout),
        Action::Status => status::print(&layout),
        Action::Kubeconfig => print_line(layout.kubeconfig().display()),
        Action::Node(NodeAction::Kill { name }) => node::kill(&layout, network::node(&name)?),
        Action::Node(NodeAction::Restart { name }) => node::restart(&layout, network::node(&name)?),
        Action::Load { archives } => images::load(&layout, &archives),
        Action::Apiserver => status::run_control_plane(),
        Action::Supervise { .. } => Ok(()),
    }
}

/// Starts the cluster, or checks the user's own.
///
/// # Errors
/// As `cluster up`.
pub fn up(egress: bool) -> Result<()> {
    run(Arguments { action: Action::Up { egress } })
}

/// Makes all that starting the cluster needs, or checks the user's own.
///
/// # Errors
/// As `cluster up`.
pub fn prepare() -> Result<()> {
    match current::Current::from_environment()? {
        Some(current) => current.prepare(&Layout::in_cache()?.bin()),
        None => up::prepare(&progress::Progress::start()),
    }
}

/// Builds the cluster's programs, if they aren't there.
///
/// # Errors
/// As `cluster build`.
pub fn build() -> Result<()> {
    run(Arguments { action: Action::Build { keep_cache: false } })
}

/// Loads archives into the cluster's nodes.
///
/// # Errors
/// As `cluster load`.
pub fn load(archives: &[PathBuf]) -> Result<()> {
    run(Arguments { action: Action::Load { archives: archives.to_vec() } })
}

/// The name by which the cluster finds a loaded image.
///
/// # Errors
/// When `CADRE_CLUSTER` names no cluster.
pub fn image_name(image: &str) -> Result<String> {
    let current = current::Current::from_environment()?;
    Ok(current.map_or_else(|| image.to_owned(), |current| current.name(image)))
}

/// The kubeconfig of the cluster.
///
/// # Errors
/// When there is no place for it.
pub fn kubeconfig() -> Result<PathBuf> {
    match current::Current::from_environment()? {
        Some(current) => Ok(current.kubeconfig()),
        None => Ok(Layout::in_cache()?.kubeconfig()),
    }
}

/// The folder with kubectl and helm.
///
/// # Errors
/// When there is no place for it.
pub fn bin_folder() -> Result<PathBuf> {
    Ok(Layout::in_cache()?.bin())
}

fn run_on_current(current: &current::Current, action: &Action) -> Result<()> {
    match action {
        Action::Up { .. } | Action::Status => current.check(),
        Action::Load { archives } => current.load(archives),
        Action::Kubeconfig => print_line(current.kubeconfig().display()),
        Action::Build { keep_cache } => go::build_all(*keep_cache),
        Action::Apiserver => status::run_control_plane(),
        Action::Down | Action::Node(_) | Action::Supervise { .. } => {
            anyhow::bail!(
                "CADRE_CLUSTER=current names a cluster that is not ours to stop: unset it for Cadre's own cluster"
            )
        }
    }
}

fn print_line(line: impl std::fmt::Display) -> Result<()> {
    use std::io::Write;
    // Unlike `println!`, this ends quietly when a pager has seen enough.
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
