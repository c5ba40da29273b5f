//! The cluster's control groups: one for each node and one for the control plane, so that all their processes are found.
//!
//! Both kinds of kernels are met: version 1 with one hierarchy for each controller, and version 2 with a single one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use cadre_e2e::wait;
use nix::sys::signal::Signal;

use super::network::Node;
use super::process::Process;

/// The group above all of the cluster's.
const TOP: &str = "/cadre-cluster";

/// The group of a node; its pods are below it.
pub fn node(node: Node) -> String {
    format!("{TOP}/{}", node.name())
}

/// The group of the node's own programs. Version 2 wants processes in leaves only.
pub fn node_programs(node: Node) -> String {
    format!("{}/programs", self::node(node))
}

/// The group of the control plane.
pub fn control_plane() -> String {
    format!("{TOP}/control-plane")
}

/// The group above all of the cluster's.
pub fn top() -> String {
    TOP.to_owned()
}

/// Where the machine's hierarchies are mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hierarchies {
    /// Version 1: a mount for each controller, or for several together.
    Each {
        /// All mounts, the named one of systemd included.
        mounts: Vec<PathBuf>,
        /// The mount of the pids controller, in which we look for processes.
        pids: PathBuf,
        /// A mount of version 2 without controllers, in which runc makes groups too.
        bare: Option<PathBuf>,
    },
    /// Version 2: one mount for all.
    Unified(PathBuf),
}

impl Hierarchies {
    /// Looks at this machine's mounts.
    ///
    /// # Errors
    /// When there are no control groups that Kubernetes could use.
    pub fn detect() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        Self::in_mounts(&mounts)
            .context("no control groups are mounted (neither cgroup2 nor cgroup with pids): Kubernetes needs them")
    }

    fn in_mounts(mounts: &str) -> Option<Self> {
        let mut each = Vec::new();
        let mut pids = None;
        let mut unified = None;
        for line in mounts.lines() {
            let fields: Vec<_> = line.split(' ').collect();
            let [_, path, kind, options, ..] = fields[..] else { continue };
            match kind {
                "cgroup" => {
                    if options.split(',').any(|option| option == "pids") {
                        pids = Some(PathBuf::from(path));
                    }
                    each.push(PathBuf::from(path));
                }
                "cgroup2" => unified = unified.or(Some(PathBuf::from(path))),
                _ => {}
            }
        }
        // With both, the controllers are in version 1 and version 2 is empty.
        match pids {
            Some(pids) => Some(Self::Each { mounts: each, pids, bare: unified }),
            None => unified.map(Self::Unified),
        }
    }

    /// Makes a group with every controller, for groups below it.
    ///
    /// # Errors
    /// When the machine forbids it.
    pub fn create(&self, group: &str) -> Result<()> {
        self.create_leaf(group)?;
        match self {
            Self::Each { .. } => Ok(()),
            Self::Unified(mount) => delegate(mount, group),
        }
    }

    /// Makes a group for processes.
    ///
    /// # Errors
    /// When the machine forbids it.
    pub fn create_leaf(&self, group: &str) -> Result<()> {
        for mount in self.mounts() {
            let path = below(mount, group);
            fs::create_dir_all(&path).with_context(|| format!("can't make the control group {}", path.display()))?;
        }
        match self {
            Self::Each { mounts, .. } => mounts.iter().try_for_each(|mount| inherit_cpuset(mount, group)),
            Self::Unified(_) => Ok(()),
        }
    }

    /// The file through which a process joins a group.
    pub fn entrance(&self, group: &str) -> PathBuf {
        below(self.tracking(), group).join("cgroup.procs")
    }

    /// All processes in a group and below it.
    pub fn processes(&self, group: &str) -> Vec<Process> {
        let folders = folders_below(&below(self.tracking(), group));
        let lists = folders.iter().filter_map(|folder| fs::read_to_string(folder.join("cgroup.procs")).ok());
        let pids: Vec<i32> =
            lists.flat_map(|list| list.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>()).collect();
        pids.into_iter().filter_map(Process::of).collect()
    }

    /// Ends every process in a group and below it, at once.
    ///
    /// # Errors
    /// When one survives.
    pub fn kill(&self, group: &str) -> Result<()> {
        let what = format!("all processes of {group} to end");
        wait::until(&what, Duration::from_secs(60), "one hangs in the kernel (see `ps`)", || {
            let processes = self.processes(group);
            processes.iter().for_each(|process| process.signal(Signal::SIGKILL));
            Ok(processes.is_empty())
        })
    }

    /// Removes a group without processes and all below it.
    ///
    /// # Errors
    /// When the kernel still holds a part of it.
    pub fn remove(&self, group: &str) -> Result<()> {
        let bare = match self {
            Self::Each { bare, .. } => bare.as_ref(),
            Self::Unified(_) => None,
        };
        for mount in self.mounts().iter().chain(bare) {
            let path = below(mount, group);
            // The kernel lets go of a dead process's group a moment later.
            wait::until("a control group to be free", Duration::from_secs(60), &path.display().to_string(), || {
                for folder in folders_below(&path).iter().rev() {
                    let _ = fs::remove_dir(folder);
                }
                Ok(!path.exists())
            })?;
        }
        Ok(())
    }

    fn mounts(&self) -> &[PathBuf] {
        match self {
            Self::Each { mounts, .. } => mounts,
            Self::Unified(mount) => std::slice::from_ref(mount),
        }
    }

    fn tracking(&self) -> &Path {
        match self {
            Self::Each { pids, .. } => pids,
            Self::Unified(mount) => mount,
        }
    }
}

fn below(mount: &Path, group: &str) -> PathBuf {
    mount.join(group.trim_start_matches('/'))
}

/// A folder and all below it, parents first.
fn folders_below(top: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![top.to_owned()];
    while let Some(folder) = open.pop() {
        if let Ok(entries) = fs::read_dir(&folder) {
            open.extend(
                entries
                    .flatten()
                    .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                    .map(|entry| entry.path()),
            );
            found.push(folder);
        }
    }
    found
}

/// A new group of version 1 has no processors and no memory until it is told.
fn inherit_cpuset(mount: &Path, group: &str) -> Result<()> {
    let mut parent = mount.to_owned();
    for name in group.trim_matches('/').split('/') {
        let child = parent.join(name);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let (from, to) = (parent.join(file), child.join(file));
            if to.exists() && fs::read_to_string(&to)?.trim().is_empty() {
                fs::write(&to, fs::read_to_string(from)?)?;
            }
        }
        parent = child;
    }
    Ok(())
}

/// In version 2 every parent hands its controllers down, the group itself included: pods will be below it.
fn delegate(mount: &Path, group: &str) -> Result<()> {
    let available = fs::read_to_string(mount.join("cgroup.controllers"))?;
    let wanted: Vec<_> = available.split_whitespace().map(|controller| format!("+{controller}")).collect();
    let mut folder = mount.to_owned();
    let mut names = group.trim_matches('/').split('/');
    loop {
        for controller in &wanted {
            fs::write(folder.join("cgroup.subtree_control"), controller)
                .with_context(|| format!("can't use {controller} below {}", folder.display()))?;
        }
        match names.next() {
            Some(name) => folder.push(name),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_seen_even_with_an_empty_version_2() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
            cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
            cgroup /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0\n\
            cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0\n\
            cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let expected = Hierarchies::Each {
            mounts: ["cpu,cpuacct", "pids", "systemd"].map(|name| Path::new("/sys/fs/cgroup").join(name)).into(),
            pids: "/sys/fs/cgroup/pids".into(),
            bare: Some("/sys/fs/cgroup/unified".into()),
        };
        assert_eq!(Hierarchies::in_mounts(mounts), Some(expected));
    }

    #[test]
    fn version_2_alone_is_seen() {
        let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nsdelegate 0 0\nproc /proc proc rw 0 0\n";
        assert_eq!(Hierarchies::in_mounts(mounts), Some(Hierarchies::Unified("/sys/fs/cgroup".into())));
        assert_eq!(Hierarchies::in_mounts("proc /proc proc rw 0 0\n"), None);
    }

    #[test]
    fn version_2_hands_controllers_down_to_the_group() {
        let folder = tempfile::tempdir().unwrap();
        let hierarchies = Hierarchies::Unified(folder.path().to_owned());
        fs::write(folder.path().join("cgroup.controllers"), "pids\n").unwrap();
        hierarchies.create("/cadre-cluster/node-1").unwrap();
        for group in ["", "cadre-cluster", "cadre-cluster/node-1"] {
            let file = folder.path().join(group).join("cgroup.subtree_control");
            assert_eq!(fs::read_to_string(file).unwrap(), "+pids", "in {group:?}");
        }
    }

    #[test]
    fn version_1_gives_processors_and_memory() {
        let folder = tempfile::tempdir().unwrap();
        let group = folder.path().join("cadre-cluster");
        fs::create_dir(&group).unwrap();
        for (path, value) in [(folder.path(), "0-1\n"), (&group, "\n")] {
            fs::write(path.join("cpuset.cpus"), value).unwrap();
            fs::write(path.join("cpuset.mems"), value).unwrap();
        }
        inherit_cpuset(folder.path(), "/cadre-cluster").unwrap();
        assert_eq!(fs::read_to_string(group.join("cpuset.cpus")).unwrap(), "0-1\n");
    }
}
