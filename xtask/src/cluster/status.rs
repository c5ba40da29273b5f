//! Shows what runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use cadre_e2e::ControlPlane;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::addons::Kubectl;
use super::layout::Layout;
use super::network::NODES;
use super::process::Process;
use super::services::Service;
use super::{print_line, supervisor};

/// Prints every service and node.
///
/// # Errors
/// When the cluster isn't up, so that scripts can ask.
pub fn print(layout: &Layout) -> Result<()> {
    let alive = Process::in_file(&layout.pid_file(supervisor::NAME));
    let supervisor = alive.context("the cluster isn't up: run `cargo xtask cluster up`")?;
    print_line(format_args!("{:<26} process {}", supervisor::NAME, supervisor.pid))?;
    let services: Vec<Service> = serde_json::from_slice(&std::fs::read(layout.services())?)?;
    let mut dead = 0;
    for service in services {
        let off = service.unless.as_ref().is_some_and(|file| file.exists());
        let state = match Process::in_file(&layout.pid_file(&service.name)) {
            Some(process) => format!("process {}", process.pid),
            None if off => "off".to_owned(),
            None => {
                dead += 1;
                format!("not running: read {}", layout.log(&service.name).display())
            }
        };
        print_line(format_args!("{:<26} {state}", service.name))?;
    }
    let kubectl = Kubectl::new(layout)?;
    for node in NODES {
        let ready = if kubectl.is_ready(node)? { "Ready" } else { "not Ready" };
        print_line(format_args!("{:<26} {ready}", node.name()))?;
    }
    print_line(format_args!("{:<26} {}", "kubeconfig", layout.kubeconfig().display()))?;
    ensure!(dead == 0, "{dead} services don't run: `cargo xtask cluster up` repairs that");
    Ok(())
}

/// Runs etcd and kube-apiserver alone until SIGINT or SIGTERM, and prints their kubeconfig's path.
///
/// # Errors
/// When they don't come up.
pub fn run_control_plane() -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let plane = ControlPlane::start()?;
    print_line(plane.kubeconfig().display())?;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    Ok(())
}
