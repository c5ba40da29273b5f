//! etcd and kube-apiserver alone, on loopback, for tests that need a real API but no pods.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::pki::{Pki, Request};
use crate::{binaries, cache, kubeconfig, wait};

/// Generous: several start at once, on few cores.
const LIMIT: Duration = Duration::from_secs(300);

const LOWEST_PORT: u64 = 12_000;
const PORTS: u64 = 20_000;
const MOST_TRIES: usize = 1000;

/// A running etcd and kube-apiserver with a folder of their own. They end when this is dropped, and also when the process dies.
///
/// No controllers run: namespaces that are deleted stay in `Terminating`, and no owner is garbage-collected.
#[derive(Debug)]
pub struct ControlPlane {
    folder: PathBuf,
    stop: Option<mpsc::Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl ControlPlane {
    /// Starts one and waits until it answers.
    ///
    /// # Errors
    /// When the programs aren't built, or one of them doesn't come up: the message names its log.
    pub fn start() -> Result<Self> {
        let folder = new_folder()?;
        let (stop, stopped) = mpsc::channel();
        let (started, outcome) = mpsc::channel();
        let keeper_folder = folder.clone();
        // A child's death signal is bound to the thread that started it, so one thread starts and keeps the children.
        let keeper = std::thread::spawn(move || match Children::start(&keeper_folder) {
            Ok(children) => {
                let _ = started.send(Ok(()));
                let _ = stopped.recv();
                drop(children);
            }
            Err(error) => drop(started.send(Err(error))),
        });
        let plane = Self { folder, stop: Some(stop), keeper: Some(keeper) };
        outcome.recv().map_err(|_| anyhow!("the control plane's thread is gone"))??;
        plane.wait_until_ready()?;
        Ok(plane)
    }

    /// The one that all tests of a test binary share. Tests that use it keep to namespaces of their own.
    ///
    /// # Errors
    /// When it could not be started.
    pub fn shared() -> Result<&'static Self> {
        static SHARED: OnceLock<Result<ControlPlane, String>> = OnceLock::new();
        SHARED
            .get_or_init(|| Self::start().map_err(|error| format!("{error:#}")))
            .as_ref()
            .map_err(|error| anyhow!("{error}"))
    }

    /// The kubeconfig of an administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// `kubectl`, set to this control plane.
    ///
    /// # Errors
    /// When it isn't built.
    pub fn kubectl(&self) -> Result<Command> {
        let mut kubectl = Command::new(binaries::program("kubectl")?);
        kubectl.arg("--kubeconfig").arg(self.kubeconfig()).stdin(Stdio::null());
        Ok(kubectl)
    }

    fn wait_until_ready(&self) -> Result<()> {
        let hint = format!("read {}", self.folder.join("kube-apiserver.log").display());
        wait::until("kube-apiserver to be ready", LIMIT, &hint, || {
            let output = self.kubectl()?.args(["get", "--raw", "/readyz"]).output()?;
            // Objects of a test need its namespace `default`, which the server makes a moment after it is ready.
            Ok(output.status.success()
                && self.kubectl()?.args(["get", "namespace", "default"]).output()?.status.success())
        })
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

struct Children {
    running: Vec<Child>,
}

impl Children {
    fn start(folder: &Path) -> Result<Self> {
        let pki = certificates(folder)?;
        let [etcd, peers, api] = free_ports()?;
        kubeconfig::write(
            &folder.join("kubeconfig"),
            "control-plane",
            &format!("https://127.0.0.1:{api}"),
            &pki,
            "admin",
        )?;
        let mut children = Self { running: Vec::new() };
        children.spawn(folder, "etcd", &etcd_arguments(folder, etcd, peers))?;
        children.spawn(folder, "kube-apiserver", &api_arguments(&pki, etcd, api))?;
        Ok(children)
    }

    fn spawn(&mut self, folder: &Path, name: &str, arguments: &[String]) -> Result<()> {
        let log = File::create(folder.join(format!("{name}.log")))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(binaries::program(name)?)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("can't start {name} through setpriv (Debian package util-linux)"))?;
        self.running.push(child);
        Ok(())
    }
}

impl Drop for Children {
    /// The folder goes with them, so nothing is gained by a graceful end.
    fn drop(&mut self) {
        for child in self.running.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn certificates(folder: &Path) -> Result<Pki> {
    let pki = Pki::open(&folder.join("pki"))?;
    let names = ["DNS:localhost", "IP:127.0.0.1"].map(str::to_owned);
    pki.sign(Request { name: "apiserver", user: "kube-apiserver", group: None, server: &names })?;
    pki.sign(Request { name: "admin", user: "admin", group: Some("system:masters"), server: &[] })?;
    Ok(pki)
}

fn etcd_arguments(folder: &Path, port: u16, peers: u16) -> Vec<String> {
    vec![
        format!("--data-dir={}", folder.join("etcd").display()),
        format!("--listen-client-urls=http://127.0.0.1:{port}"),
        format!("--advertise-client-urls=http://127.0.0.1:{port}"),
        format!("--listen-peer-urls=http://127.0.0.1:{peers}"),
        "--log-level=warn".into(),
        // The data are thrown away in any case.
        "--unsafe-no-fsync".into(),
    ]
}

fn api_arguments(pki: &Pki, etcd: u16, port: u16) -> Vec<String> {
    let file = |flag: &str, path: PathBuf| format!("--{flag}={}", path.display());
    vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".into(),
        "--advertise-address=127.0.0.1".into(),
        "--endpoint-reconciler-type=none".into(),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        "--authorization-mode=RBAC".into(),
        // Without a controller that makes service accounts, no pod object could be created.
        "--disable-admission-plugins=ServiceAccount".into(),
        // Some clusters have it: who makes an object with an owner needs a right on the owner's finalizers.
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement".into(),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
        file("service-account-key-file", pki.service_account_public_key()),
        file("service-account-signing-key-file", pki.key("sa")),
        file("client-ca-file", pki.certificate("ca")),
        file("tls-cert-file", pki.certificate("apiserver")),
        file("tls-private-key-file", pki.key("apiserver")),
    ]
}

/// Ports that are free now. They are held together for a moment, so that no two are the same. The kernel gives none of them
/// to others before they are used: they lie below those that it chooses from.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let tries =
        (0..MOST_TRIES).filter_map(|_| u16::try_from(LOWEST_PORT + RandomState::new().hash_one(N) % PORTS).ok());
    let listeners: Vec<_> = tries.filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).take(N).collect();
    ensure!(listeners.len() == N, "this machine has no free ports from {LOWEST_PORT} on");
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

/// A new folder named after this process; folders of processes that are gone are removed.
fn new_folder() -> Result<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let parent = cache::root()?.join("control-planes");
    fs::create_dir_all(&parent).with_context(|| format!("can't make {}", parent.display()))?;
    for entry in fs::read_dir(&parent)? {
        let entry = entry?;
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.split('-').next()).unwrap_or_default();
        if owner.is_empty() || !Path::new("/proc").join(owner).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let folder = parent.join(format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    Ok(folder)
}
