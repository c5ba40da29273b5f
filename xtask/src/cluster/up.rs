//! Starts the cluster, or checks the one that runs.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cadre_e2e::pki::{Pki, Request};
use cadre_e2e::{binaries, kubeconfig, wait};

use super::addons::Kubectl;
use super::cgroup::{self, Hierarchies};
use super::config::{arguments, files};
use super::layout::Layout;
use super::network::{API_SERVICE, HOST, NODES};
use super::process::Process;
use super::progress::Progress;
use super::services::{self, Gate};
use super::{down, go, host, node, pause, probe, supervisor};

/// The name of the cluster and its context in the kubeconfig.
const NAME: &str = "cadre";

/// Brings the cluster up: a running one is checked, a half-dead one is stopped and started with its data.
///
/// # Errors
/// When the machine can't run it, or a part doesn't come up: the message names the log to read.
pub fn run(layout: &Layout, egress: bool) -> Result<()> {
    let progress = Progress::start();
    prepare(&progress)?;
    fs::create_dir_all(layout.root()).with_context(|| format!("can't make {}", layout.root().display()))?;
    let _lock = locked(layout)?;
    if is_healthy(layout)? {
        if egress && !has_egress(layout) {
            add_egress(layout, &progress)?;
        }
        check_nodes(layout, &progress)?;
        // A build may have put newer ones into other folders.
        link_programs(layout)?;
        progress.say("the cluster is up");
        return announce(layout);
    }
    down::stop(layout, &progress)?;
    start(layout, egress || has_egress(layout), &progress)?;
    announce(layout)
}

/// Makes all that is needed and nothing that runs.
///
/// # Errors
/// When the machine can't run it, or a part can't be built.
pub fn prepare(progress: &Progress) -> Result<()> {
    host::prepare(progress)?;
    go::build_all(keep_go_cache())?;
    pause::archive()?;
    probe::archive()?;
    Ok(())
}

/// Whether Go's caches stay after a build.
pub fn keep_go_cache() -> bool {
    std::env::var("CADRE_KEEP_GO_CACHE").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}

/// Waits for other commands that change the cluster; the lock ends with the returned file.
///
/// # Errors
/// When the lock can't be made.
pub fn locked(layout: &Layout) -> Result<File> {
    let path = layout.lock();
    let file = File::create(&path).with_context(|| format!("can't make {}", path.display()))?;
    file.lock().context("can't lock the cluster")?;
    Ok(file)
}

/// Whether the supervisor, every service that should run and the API are alive, and the nodes that are on are Ready.
fn is_healthy(layout: &Layout) -> Result<bool> {
    if Process::in_file(&layout.pid_file(supervisor::NAME)).is_none() {
        return Ok(false);
    }
    let nodes: Vec<_> = NODES.into_iter().filter(|node| !layout.node(*node).off().exists()).collect();
    let kubectl = Kubectl::new(layout)?;
    // One that restarts just now may be back in a moment.
    let healthy = wait::until("the cluster", Duration::from_secs(60), "", || {
        let mut ready = kubectl.succeeds("get --raw /readyz")?;
        for node in &nodes {
            ready = ready && kubectl.is_ready(*node)?;
        }
        Ok(ready)
    });
    Ok(healthy.is_ok())
}

/// Whether pods may reach the internet; once allowed, it stays so until `down`.
fn has_egress(layout: &Layout) -> bool {
    fs::read_to_string(layout.corefile()).is_ok_and(|text| text == files::corefile(layout, true))
}

fn add_egress(layout: &Layout, progress: &Progress) -> Result<()> {
    host::connect(layout, true)?;
    fs::write(layout.corefile(), files::corefile(layout, true))?;
    // The supervisor starts it again, with the new file.
    if let Some(coredns) = Process::in_file(&layout.pid_file("coredns")) {
        coredns.end(Duration::from_secs(10))?;
    }
    progress.say("pods may reach the internet from now on");
    Kubectl::new(layout)?.wait_for_first_pod()
}

/// Gives nodes the cluster's own images where a newer checkout brought others, and tells which nodes are off.
fn check_nodes(layout: &Layout, progress: &Progress) -> Result<()> {
    for node in NODES {
        if layout.node(node).off().exists() {
            let name = node.name();
            progress.say(&format!("{name} is off: `cargo xtask cluster node restart {name}` starts it"));
        } else {
            node::wait_for_containerd(layout, node)?;
        }
    }
    Ok(())
}

fn start(layout: &Layout, egress: bool, progress: &Progress) -> Result<()> {
    for folder in [layout.run(), layout.logs(), layout.volumes()] {
        fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    }
    // etcd refuses a folder that others can read.
    fs::create_dir_all(layout.etcd())?;
    fs::set_permissions(layout.etcd(), fs::Permissions::from_mode(0o700))?;
    make_identities(layout)?;
    fs::write(layout.corefile(), files::corefile(layout, egress))?;
    link_programs(layout)?;
    host::connect(layout, egress)?;
    let hierarchies = Hierarchies::detect()?;
    hierarchies.create(&cgroup::top())?;
    hierarchies.create_leaf(&cgroup::control_plane())?;
    for node in NODES {
        node::set_up(layout, node, &hierarchies)?;
        let _ = fs::remove_file(layout.node(node).off());
    }
    fs::write(layout.services(), serde_json::to_vec_pretty(&services::all(layout, &hierarchies)?)?)?;
    progress.say("certificates, networks and control groups are made");
    start_supervisor(layout)?;
    open_gates(layout, progress)
}

/// Follows the start step by step and lets the services begin that need the step.
fn open_gates(layout: &Layout, progress: &Progress) -> Result<()> {
    let kubectl = Kubectl::new(layout)?;
    for node in NODES {
        node::wait_for_containerd(layout, node)?;
    }
    progress.say("containerd of both nodes is up");
    kubectl.wait_for_api()?;
    kubectl.apply_addons()?;
    File::create(Gate::ControlPlane.file(layout))?;
    progress.say("the control plane is up");
    kubectl.wait_for_objects()?;
    File::create(Gate::Nodes.file(layout))?;
    for node in NODES {
        kubectl.wait_for_ready(node)?;
    }
    progress.say("both nodes are Ready");
    kubectl.wait_for_first_pod()?;
    progress.say("DNS answers; pods can be made");
    Ok(())
}

fn start_supervisor(layout: &Layout) -> Result<()> {
    // A copy of ourselves: a build may replace the original at any time. Renamed, for the old one may still be busy.
    let staged = layout.supervisor().with_extension("new");
    fs::copy(std::env::current_exe()?, &staged)?;
    fs::rename(&staged, layout.supervisor())?;
    let log = File::options().create(true).append(true).open(layout.log(supervisor::NAME))?;
    Command::new(layout.supervisor())
        .args(["cluster", "supervise"])
        .arg(layout.root())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("can't start the supervisor")?;
    let hint = format!("read {}", layout.log(supervisor::NAME).display());
    let file = layout.pid_file(supervisor::NAME);
    wait::until("the supervisor", Duration::from_secs(120), &hint, || Ok(Process::in_file(&file).is_some()))
}

/// Certificates for all, and a kubeconfig for each that calls the API.
fn make_identities(layout: &Layout) -> Result<()> {
    let pki = Pki::open(&layout.pki())?;
    fs::set_permissions(layout.pki(), fs::Permissions::from_mode(0o700))?;
    let masters = Some("system:masters");
    let api: Vec<_> =
        ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
            .map(|name| format!("DNS:{name}"))
            .into_iter()
            .chain([HOST, API_SERVICE].map(|address| format!("IP:{address}")))
            .collect();
    let loopback = ["IP:127.0.0.1".to_owned()];
    pki.sign(Request { name: "etcd", user: "etcd", group: None, server: &loopback })?;
    pki.sign(Request { name: "etcd-client", user: "kube-apiserver", group: None, server: &[] })?;
    pki.sign(Request { name: "apiserver", user: "kube-apiserver", group: None, server: &api })?;
    pki.sign(Request { name: "apiserver-kubelet", user: "kube-apiserver-kubelet", group: masters, server: &[] })?;
    pki.sign(Request { name: "front-proxy", user: "front-proxy", group: None, server: &[] })?;
    let mut callers = vec![
        ("admin".to_owned(), "admin".to_owned(), masters, vec![]),
        ("controller-manager".into(), "system:kube-controller-manager".into(), None, vec![]),
        ("scheduler".into(), "system:kube-scheduler".into(), None, vec![]),
        ("kube-proxy".into(), "system:kube-proxy".into(), None, vec![]),
        ("kube-router".into(), "cadre-cluster:kube-router".into(), None, vec![]),
        ("coredns".into(), "cadre-cluster:coredns".into(), None, vec![]),
        ("volumes".into(), "cadre-cluster:volumes".into(), None, vec![]),
    ];
    for node in NODES {
        let names = vec![format!("DNS:{}", node.name()), format!("IP:{}", node.address())];
        callers.push((node.name(), format!("system:node:{}", node.name()), Some("system:nodes"), names));
    }
    for (name, user, group, server) in &callers {
        pki.sign(Request { name, user, group: *group, server })?;
        kubeconfig::write(&layout.component_kubeconfig(name), NAME, &arguments::api_url(), &pki, name)?;
    }
    kubeconfig::write(&layout.kubeconfig(), NAME, &arguments::api_url(), &pki, "admin")
}

/// Links kubectl and helm into a folder that a user can put on the search path.
fn link_programs(layout: &Layout) -> Result<()> {
    fs::create_dir_all(layout.bin())?;
    for program in ["kubectl", "helm"] {
        replace_link(&binaries::program(program)?, &layout.bin().join(program))?;
    }
    Ok(())
}

/// Makes a link, in place of what is there.
///
/// # Errors
/// When it can't be made.
pub fn replace_link(target: &Path, link: &Path) -> Result<()> {
    let _ = fs::remove_file(link);
    symlink(target, link).with_context(|| format!("can't link {}", link.display()))
}

fn announce(layout: &Layout) -> Result<()> {
    let kubeconfig = layout.kubeconfig();
    ensure!(kubeconfig.exists(), "{} is gone: run `cargo xtask cluster down` and `up` again", kubeconfig.display());
    eprintln!("\n  export KUBECONFIG={}\n  export PATH={}:$PATH", kubeconfig.display(), layout.bin().display());
    Ok(())
}
