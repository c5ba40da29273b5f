//! One node's life: set up, power cut, start again.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cadre_e2e::wait;
use nix::sys::signal::Signal;

use super::addons::Kubectl;
use super::cgroup::{self, Hierarchies};
use super::config::files;
use super::layout::{Layout, NodeLayout};
use super::network::Node;
use super::progress::Progress;
use super::{host, images, mounts, process, services, supervisor};

const LIMIT: Duration = Duration::from_secs(300);

/// Makes what a node's programs need before they start: network, control groups, configuration.
///
/// # Errors
/// When the machine refuses.
pub fn set_up(layout: &Layout, node: Node, hierarchies: &Hierarchies) -> Result<()> {
    host::plug_in(node)?;
    hierarchies.create(&cgroup::node(node))?;
    hierarchies.create_leaf(&cgroup::node_programs(node))?;
    write_configuration(layout, node)
}

fn write_configuration(layout: &Layout, node: Node) -> Result<()> {
    let paths = layout.node(node);
    for folder in [paths.cni(), paths.kubelet_root(), paths.pod_logs(), paths.containerd_root()] {
        fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    }
    // The logs of pods may hold what users wrote.
    fs::set_permissions(paths.root(), fs::Permissions::from_mode(0o711))?;
    fs::write(paths.containerd_config(), files::containerd(&paths, &host::cni_programs()?))?;
    fs::write(paths.cni().join("10-cadre.conflist"), files::cni(node, &paths).to_string())?;
    fs::write(paths.kubelet_config(), format!("{:#}", files::kubelet(node, layout)))?;
    fs::write(paths.resolv_conf(), files::resolv_conf())?;
    Ok(())
}

/// Waits until a node's containerd answers, and gives it the cluster's own images.
///
/// # Errors
/// When it doesn't come up in time.
pub fn wait_for_containerd(layout: &Layout, node: Node) -> Result<()> {
    let paths = layout.node(node);
    let log = layout.log(&services::name_on(node, "containerd"));
    let what = format!("containerd of {}", node.name());
    wait::until(&what, LIMIT, &format!("read {}", log.display()), || {
        Ok(paths.containerd_socket().exists() && images::ctr(&paths).arg("version").output()?.status.success())
    })?;
    for archive in [super::pause::archive()?, super::probe::archive()?] {
        images::import(layout, node, &archive)?;
    }
    Ok(())
}

/// Ends all of a node at once and removes what a power cut would: processes, mounts, network. Its disk stays.
///
/// # Errors
/// When something of it can't be ended.
pub fn cut_power(layout: &Layout, node: Node, hierarchies: &Hierarchies) -> Result<()> {
    let paths = layout.node(node);
    end_processes(&paths, node, hierarchies)?;
    remove_shared_traces(&paths);
    mounts::unmount_below(paths.root())?;
    host::unplug(node)?;
    mounts::remove_folder(&paths.containerd_state())?;
    // Addresses of pods that are gone: a machine keeps these in memory.
    mounts::remove_folder(&paths.addresses())?;
    hierarchies.remove(&cgroup::node(node))
}

fn end_processes(paths: &NodeLayout, node: Node, hierarchies: &Hierarchies) -> Result<()> {
    let folder = format!("{}/", paths.root().display());
    let what = format!("all processes of {} to end", node.name());
    wait::until(&what, Duration::from_secs(60), "one hangs in the kernel (see `ps`)", || {
        hierarchies.kill(&cgroup::node(node))?;
        let shims = process::with_argument(&folder);
        let shims: Vec<_> = shims.into_iter().filter(|shim| shim.runs("containerd-shim")).collect();
        shims.iter().for_each(|shim| shim.signal(Signal::SIGKILL));
        Ok(shims.is_empty() && hierarchies.processes(&cgroup::node(node)).is_empty())
    })
}

/// What a node's containers leave in folders that all containerds of a machine share; each task's folder tells which.
fn remove_shared_traces(paths: &NodeLayout) {
    let tasks = paths.containerd_state().join("io.containerd.runtime.v2.task/k8s.io");
    for task in fs::read_dir(tasks).into_iter().flatten().flatten() {
        let address = fs::read_to_string(task.path().join("address")).unwrap_or_default();
        if let Some(socket) =
            address.trim().strip_prefix("unix://").filter(|path| path.starts_with("/run/containerd/s/"))
        {
            let _ = fs::remove_file(Path::new(socket));
        }
        let loopback = format!("{}/cni-loopback-{}-lo", host::CNI_RESULTS, task.file_name().display());
        let _ = fs::remove_file(Path::new(&loopback));
    }
}

/// Cuts a node's power and leaves it off.
///
/// # Errors
/// When the cluster isn't up.
pub fn kill(layout: &Layout, node: Node) -> Result<()> {
    require_running(layout)?;
    let _lock = super::up::locked(layout)?;
    let progress = Progress::start();
    // From now on the supervisor starts nothing of this node.
    File::create(layout.node(node).off())?;
    cut_power(layout, node, &Hierarchies::detect()?)?;
    progress.say(&format!("{} is off; the control plane notices within 20 s", node.name()));
    Ok(())
}

/// Starts a node again, after cutting its power if it runs, and waits until it is Ready.
///
/// # Errors
/// When the cluster isn't up, or the node doesn't become Ready in time.
pub fn restart(layout: &Layout, node: Node) -> Result<()> {
    require_running(layout)?;
    let _lock = super::up::locked(layout)?;
    let progress = Progress::start();
    let hierarchies = Hierarchies::detect()?;
    File::create(layout.node(node).off())?;
    cut_power(layout, node, &hierarchies)?;
    let kubectl = Kubectl::new(layout)?;
    let before = kubectl.last_sign_of_life(node)?;
    set_up(layout, node, &hierarchies)?;
    fs::remove_file(layout.node(node).off())?;
    progress.say(&format!("{} starts", node.name()));
    wait_for_containerd(layout, node)?;
    kubectl.wait_for_sign_of_life(node, &before)?;
    kubectl.wait_for_ready(node)?;
    progress.say(&format!("{} is Ready", node.name()));
    Ok(())
}

fn require_running(layout: &Layout) -> Result<()> {
    let running = process::Process::in_file(&layout.pid_file(supervisor::NAME)).is_some();
    ensure!(running, "the cluster isn't up: run `cargo xtask cluster up`");
    host::require_root()
}
