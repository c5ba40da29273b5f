//! Starts exec-server as this test program again, and the client beside it.

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cadre_exec::client::{ExecClient, ExecListener};
use cadre_exec::room::Bounded;
use cadre_exec::server::{ServerConfig, run};
use cadre_protocol::exec::{ExecBody, ExecOp};
use cadre_protocol::ids::Epoch;
use tempfile::TempDir;

/// Names the folder of a sandbox for the process that is exec-server.
const FOLDER: &str = "CADRE_TEST_SANDBOX";
/// The number of the user and group that commands run as, for the same process.
const USER: &str = "CADRE_TEST_USER";
/// In the server's environment, and never in a command's.
pub const CANARY: &str = "canary-b1946ac9";
/// Bytes that the workspace may hold.
pub const LIMIT: u64 = 64 << 20;
/// Generous: the machine may be busy.
pub const SOON: Duration = Duration::from_secs(60);

/// exec-server itself, when started by [`Sandbox::serve`]; a test that does nothing otherwise.
#[test]
fn exec_server_process() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let config = ServerConfig {
        socket: folder.join("socket"),
        workspace: folder.join("workspace"),
        home: folder.join("home"),
        tmp: folder.join("tmp"),
        run_as: std::env::var(USER).ok().map(|user| (user.parse().unwrap(), user.parse().unwrap())),
        shell: None,
        bounded: vec![Bounded { path: folder.join("workspace"), limit: LIMIT }],
        env: vec![("CADRE_TEST_GIVEN".into(), "given".into())],
    };
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(async {
        run(config).await.unwrap();
    });
    assert!(!nix::sys::prctl::get_dumpable().unwrap());
    let left = processes().into_iter().filter(|(_, parent)| *parent == std::process::id()).count();
    assert_eq!(left, 0, "nothing that was started outlives the server");
}

pub struct Sandbox {
    pub folder: TempDir,
    pub server: Child,
}

impl Sandbox {
    /// A server that looks for an engine, and an engine's client of this epoch.
    pub async fn start() -> (Self, ExecClient) {
        let folder = tempfile::tempdir().unwrap();
        let server = Self::serve(folder.path());
        Self::greet(folder, server).await
    }

    /// The same, with commands of another user. Only root can do that.
    pub async fn start_as(user: u32) -> (Self, ExecClient) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let server = Self::program(folder.path()).env(USER, user.to_string()).spawn().unwrap();
        Self::greet(folder, server).await
    }

    async fn greet(folder: TempDir, server: Child) -> (Self, ExecClient) {
        let sandbox = Self { folder, server };
        let client = sandbox.engine(1);
        client.wait_connected(SOON).await.unwrap();
        (sandbox, client)
    }

    /// The process that is exec-server.
    pub fn serve(folder: &Path) -> Child {
        Self::program(folder).spawn().unwrap()
    }

    fn program(folder: &Path) -> Command {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program
            .args(["--exact", "support::exec_server_process", "--nocapture"])
            .env(FOLDER, folder)
            .env("CADRE_TEST_CANARY", CANARY)
            .stdout(Stdio::null());
        program
    }

    /// An engine that listens.
    pub fn engine(&self, epoch: u64) -> ExecClient {
        let client = ExecListener::bind(&self.socket()).unwrap().start();
        client.set_epoch(Epoch(epoch));
        client
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub fn workspace(&self, path: &str) -> PathBuf {
        self.folder.path().join("workspace").join(path)
    }

    /// Numbers that a command wrote to a file of the workspace, once there are `count`.
    pub async fn pids(&self, file: &str, count: usize) -> Vec<u32> {
        let read = || -> Vec<u32> {
            let text = std::fs::read_to_string(self.workspace(file)).unwrap_or_default();
            text.lines().filter_map(|line| line.parse().ok()).collect()
        };
        eventually("the processes wrote their numbers", || read().len() >= count).await;
        read()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Descendants first: with their reaper gone nobody would know whose they are.
        let mut doomed = HashSet::from([self.server.id()]);
        let table = processes();
        while let Some((pid, _)) = table.iter().find(|(pid, parent)| doomed.contains(parent) && !doomed.contains(pid)) {
            doomed.insert(*pid);
        }
        for pid in doomed {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        let _ = self.server.wait();
    }
}

/// Processes and their parents.
fn processes() -> Vec<(u32, u32)> {
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

/// Whether a process is there, be it as a zombie that nobody reaped.
pub fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Waits for a condition.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    let wait = async {
        while !condition() {
            ticks.tick().await;
        }
    };
    assert!(tokio::time::timeout(SOON, wait).await.is_ok(), "waited too long until {what}");
}

pub fn command(text: &str, timeout: Duration) -> ExecOp {
    let timeout_ms = u64::try_from(timeout.as_millis()).unwrap();
    ExecOp::Run { command: text.to_owned(), cwd: None, timeout_ms, max_output_bytes: 16 << 10 }
}

/// A command's standard output, after it ended well.
pub async fn output(client: &ExecClient, text: &str) -> String {
    match client.request(command(text, SOON)).await.unwrap() {
        ExecBody::Exited { code: Some(0), stdout, .. } => stdout,
        other => panic!("{text}: {other:?}"),
    }
}
