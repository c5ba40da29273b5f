//! What the cluster needs of this machine, and what it changes there.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::command::{command, output, run, succeeds};
use super::layout::Layout;
use super::network::{self, BRIDGE, BRIDGE_NETWORK, HOST, NODES, Node, PODS};
use super::progress::Progress;

/// Programs that must be there, and the Debian packages that have them.
const NEEDED: [(&str, &str); 14] = [
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("ipset", "ipset"),
    ("conntrack", "conntrack"),
    ("socat", "socat"),
    ("ethtool", "ethtool"),
    ("openssl", "openssl"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("modprobe", "kmod"),
    ("cc", "gcc libc6-dev"),
    // Makes the sandbox image, which is loaded into the nodes.
    ("mmdebstrap", "mmdebstrap"),
];
const CNI_FOLDERS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
const CNI_PACKAGE: &str = "containernetworking-plugins";
/// Kernel modules that may have to be loaded, and what exists when they are.
const MODULES: [(&str, &str); 2] = [("overlay", "/sys/module/overlay"), ("br_netfilter", "/proc/sys/net/bridge")];
/// Where CNI notes the network of each container.
pub const CNI_RESULTS: &str = "/var/lib/cni/results";
/// Folders that kubelet and containerd make in any case; each is removed only when it is empty.
const SHARED_FOLDERS: [&str; 11] = [
    "/var/log/containers",
    CNI_RESULTS,
    "/var/lib/cni",
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet",
    "/usr/libexec/kubernetes/kubelet-plugins/volume/exec",
    "/usr/libexec/kubernetes/kubelet-plugins/volume",
    "/usr/libexec/kubernetes/kubelet-plugins",
    "/usr/libexec/kubernetes",
    "/run/containerd/s",
    "/run/containerd",
];
/// The mark on firewall rules of ours.
const MARK: &str = "cadre-cluster";
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

/// Refuses machines on which the cluster can't run, and installs what is missing where that is possible.
///
/// # Errors
/// When the machine isn't Linux, the user isn't root, or something is missing: the message says what to do.
pub fn prepare(progress: &Progress) -> Result<()> {
    ensure!(
        cfg!(target_os = "linux"),
        "the cluster needs Linux; use CADRE_CLUSTER=current with a cluster that you have"
    );
    require_root()?;
    let missing = missing_packages();
    if !missing.is_empty() {
        install(&missing, progress)?;
    }
    for (module, sign) in MODULES {
        if !Path::new(sign).exists() {
            run(&format!("modprobe {module}")).with_context(|| format!("this kernel lacks the module {module}"))?;
        }
    }
    Ok(())
}

/// Refuses to go on without the rights that namespaces, mounts and control groups need.
///
/// # Errors
/// When the user isn't root.
pub fn require_root() -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "the cluster needs root (namespaces, mounts, control groups): use sudo, or CADRE_CLUSTER=current with a cluster that you have"
    );
    Ok(())
}

/// The folder with the plugins that connect pods to the network.
///
/// # Errors
/// When there is none.
pub fn cni_programs() -> Result<PathBuf> {
    CNI_FOLDERS
        .map(PathBuf::from)
        .into_iter()
        .find(|folder| folder.join("bridge").exists())
        .context("no CNI plugins are installed")
}

/// Whether a program is on the search path.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn missing_packages() -> Vec<&'static str> {
    let mut missing: Vec<_> = NEEDED.iter().filter(|(program, _)| !has(program)).map(|(_, package)| *package).collect();
    if cni_programs().is_err() {
        missing.push(CNI_PACKAGE);
    }
    missing.dedup();
    missing
}

/// Installs Debian packages.
///
/// # Errors
/// When there is no `apt-get`, or it fails.
pub fn install(packages: &[&str], progress: &Progress) -> Result<()> {
    let names = packages.join(" ");
    ensure!(has("apt-get"), "these programs are missing; the Debian packages that have them are: {names}");
    progress.say(&format!("installing the Debian packages {names}"));
    let apt = |arguments: &str| {
        output(command("apt-get").args(arguments.split(' ')).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    // Never removes another package to make room, such as Docker's own containerd.
    let install = format!("install --yes --no-install-recommends --no-remove {names}");
    if apt(&install).is_err() {
        apt("update")?;
        apt(&install)?;
    }
    Ok(())
}

/// Makes the bridge, and lets packets pass between its links.
///
/// # Errors
/// When another network has our addresses, or the kernel refuses.
pub fn connect(layout: &Layout, egress: bool) -> Result<()> {
    if let Some((ours, route)) = network::conflict(&run("ip -4 route show")?) {
        bail!("this machine already uses addresses of {ours}, which the cluster needs: {route}");
    }
    if !Path::new("/sys/class/net").join(BRIDGE).exists() {
        run(&format!("ip link add {BRIDGE} type bridge"))?;
    }
    run(&format!("ip address replace {HOST}/{} dev {BRIDGE}", BRIDGE_NETWORK.prefix))?;
    run(&format!("ip link set {BRIDGE} up"))?;
    change_setting(layout, FORWARDING, "1")?;
    open_firewall(egress)
}

/// Undoes [`connect`].
///
/// # Errors
/// When the kernel refuses.
pub fn disconnect(layout: &Layout) -> Result<()> {
    close_firewall()?;
    if Path::new("/sys/class/net").join(BRIDGE).exists() {
        run(&format!("ip link delete {BRIDGE}"))?;
    }
    for node in NODES {
        // Absent when the cluster was not up.
        succeeds(&format!("ip route delete unreachable {}", node.pods()));
    }
    restore_settings(layout)
}

/// Makes a node's network namespace with a cable to the bridge, and the routes to its pods.
///
/// # Errors
/// When the kernel refuses.
pub fn plug_in(node: Node) -> Result<()> {
    let (namespace, link, address) = (node.namespace(), node.link(), node.address());
    run(&format!("ip netns add {namespace}"))?;
    run(&format!("ip link add {link} type veth peer name eth0 netns {namespace}"))?;
    run(&format!("ip link set {link} master {BRIDGE} up"))?;
    run(&format!("ip route replace {} via {address} dev {BRIDGE}", node.pods()))?;
    let inside = |line: &str| run(&format!("ip -n {namespace} {line}"));
    inside(&format!("address add {address}/{} dev eth0", BRIDGE_NETWORK.prefix))?;
    inside("link set eth0 up")?;
    inside("link set lo up")?;
    inside(&format!("route add default via {HOST}"))?;
    for other in node.others() {
        inside(&format!("route add {} via {}", other.pods(), other.address()))?;
    }
    // Policies and services are rules of iptables, which must also see what the pods' bridge passes on.
    for setting in ["net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"] {
        let write = format!("echo 1 > /proc/sys/{setting}");
        output(command("nsenter").arg(format!("--net=/run/netns/{namespace}")).args(["sh", "-c", &write]))?;
    }
    Ok(())
}

/// Removes a node's network namespace, with the cable and the routes.
///
/// From then on, until [`plug_in`] or [`disconnect`], packets to its pods are refused: by the machine's default route they
/// would go to strangers, who may answer.
///
/// # Errors
/// When the kernel refuses.
pub fn unplug(node: Node) -> Result<()> {
    // Without our bridge the addresses are not ours.
    if Path::new("/sys/class/net").join(BRIDGE).exists() {
        run(&format!("ip route replace unreachable {}", node.pods()))?;
    }
    if Path::new("/sys/class/net").join(node.link()).exists() {
        run(&format!("ip link delete {}", node.link()))?;
    }
    if Path::new("/run/netns").join(node.namespace()).exists() {
        run(&format!("ip netns delete {}", node.namespace()))?;
    }
    Ok(())
}

/// Removes what the last network namespace leaves: `ip netns` mounts its folder on itself.
pub fn tidy_namespaces() {
    let folder = Path::new("/run/netns");
    if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none()) {
        let _ = super::mounts::unmount_below(folder);
        let _ = fs::remove_dir(folder);
    }
}

/// Removes what kubelet and containers' programs keep outside of the cluster's folder.
pub fn tidy_shared_folders(layout: &Layout) {
    for node in NODES {
        let prefix = format!("{}-", node.namespace());
        remove_entries(CNI_RESULTS, |path| name_of(path).starts_with(&prefix));
    }
    let is_ours = |path: &Path| fs::read_link(path).is_ok_and(|target| target.starts_with(layout.root()));
    remove_entries("/var/log/containers", is_ours);
    // Somebody else's kubelet would answer.
    remove_entries("/var/lib/kubelet/device-plugins", |path| {
        name_of(path) == "kubelet.sock" && UnixStream::connect(path).is_err()
    });
    for folder in SHARED_FOLDERS {
        let _ = fs::remove_dir(folder);
    }
}

fn name_of(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

fn remove_entries(folder: &str, is_ours: impl Fn(&Path) -> bool) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()).filter(|path| is_ours(path)) {
        let _ = fs::remove_file(path);
    }
}

fn change_setting(layout: &Layout, setting: &str, value: &str) -> Result<()> {
    let before = fs::read_to_string(setting)?.trim().to_owned();
    if before == value {
        return Ok(());
    }
    let saved = BTreeMap::from([(setting, before)]);
    serde_json::to_writer(File::create(layout.saved_settings())?, &saved)?;
    fs::write(setting, value).with_context(|| format!("can't change {setting}"))
}

fn restore_settings(layout: &Layout) -> Result<()> {
    let Ok(text) = fs::read(layout.saved_settings()) else { return Ok(()) };
    let saved: BTreeMap<String, String> = serde_json::from_slice(&text)?;
    for (setting, value) in saved {
        fs::write(&setting, value).with_context(|| format!("can't restore {setting}"))?;
    }
    Ok(fs::remove_file(layout.saved_settings())?)
}

/// Adds rules where the machine's own would drop the cluster's packets, and address translation for `egress`.
fn open_firewall(egress: bool) -> Result<()> {
    close_firewall()?;
    let mut rules = Vec::new();
    for (chain, peer) in [("INPUT", ""), ("FORWARD", " -o cadre0")] {
        if !run(&format!("iptables --wait -S {chain}"))?.contains(&format!("-P {chain} ACCEPT")) {
            rules.push(format!("-I {chain} -i {BRIDGE}{peer}"));
        }
    }
    for rule in rules {
        run(&format!("iptables --wait {rule} -m comment --comment {MARK} -j ACCEPT"))?;
    }
    if egress {
        for direction in ["-i", "-o"] {
            run(&format!("iptables --wait -I FORWARD {direction} {BRIDGE} -m comment --comment {MARK} -j ACCEPT"))?;
        }
        for source in [BRIDGE_NETWORK, PODS] {
            let rule = format!("-t nat -A POSTROUTING -s {source} ! -o {BRIDGE}");
            run(&format!("iptables --wait {rule} -m comment --comment {MARK} -j MASQUERADE"))?;
        }
    }
    Ok(())
}

/// Removes every rule with our mark.
fn close_firewall() -> Result<()> {
    for table in ["filter", "nat"] {
        for rule in run(&format!("iptables --wait -t {table} -S"))?.lines().filter(|line| line.contains(MARK)) {
            let delete = rule.replacen("-A ", "-D ", 1);
            run(&format!("iptables --wait -t {table} {delete}"))?;
        }
    }
    Ok(())
}
