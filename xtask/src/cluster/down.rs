//! Stops the cluster and removes what it made.

use std::time::Duration;

use anyhow::Result;

use super::cgroup::{self, Hierarchies};
use super::layout::Layout;
use super::network::NODES;
use super::process::Process;
use super::progress::Progress;
use super::{host, mounts, node, supervisor, up};

/// The supervisor gives its services less than this.
const PATIENCE: Duration = Duration::from_secs(10);

/// Leaves nothing of the cluster on this machine but the built programs.
///
/// # Errors
/// When something can't be ended or removed: the message says what. It can be run again.
pub fn run(layout: &Layout) -> Result<()> {
    host::require_root()?;
    let progress = Progress::start();
    if let Some(parent) = layout.root().parent() {
        std::fs::create_dir_all(parent)?;
    }
    let lock = up::locked(layout)?;
    stop(layout, &progress)?;
    mounts::remove_folder(layout.root())?;
    drop(lock);
    let _ = std::fs::remove_file(layout.lock());
    progress.say("the cluster is gone");
    Ok(())
}

/// Ends all processes, mounts and networks, also when the supervisor was killed before. The data stay.
///
/// # Errors
/// When something can't be ended or removed.
pub fn stop(layout: &Layout, progress: &Progress) -> Result<()> {
    let hierarchies = Hierarchies::detect()?;
    if let Some(supervisor) = Process::in_file(&layout.pid_file(supervisor::NAME)) {
        supervisor.end(PATIENCE)?;
        progress.say("the supervisor has ended its services");
    }
    hierarchies.kill(&cgroup::top())?;
    for node in NODES {
        node::cut_power(layout, node, &hierarchies)?;
    }
    progress.say("the nodes are off");
    host::disconnect(layout)?;
    host::tidy_namespaces();
    host::tidy_shared_folders(layout);
    hierarchies.remove(&cgroup::top())?;
    mounts::remove_folder(&layout.run())
}
