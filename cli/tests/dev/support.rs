//! A folder that is served, and what one does with it.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const CADRE: &str = env!("CARGO_BIN_EXE_cadre");
/// Longest wait for anything; generous, because machines are busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder with manifests, and room for other files beside it.
pub struct Folder {
    root: TempDir,
}

impl Folder {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("manifests")).unwrap();
        Self { root }
    }

    pub fn quickstart() -> Self {
        let folder = Self::new();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart");
        for entry in std::fs::read_dir(source).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, folder.manifests().join(path.file_name().unwrap())).unwrap();
        }
        folder
    }

    pub fn manifests(&self) -> PathBuf {
        self.root.path().join("manifests")
    }

    pub fn beside(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// As a whole: whoever looks meanwhile must not find half of it.
    pub fn write(&self, name: &str, text: &str) {
        let whole = self.beside("whole");
        std::fs::write(&whole, text).unwrap();
        std::fs::rename(whole, self.manifests().join(name)).unwrap();
    }

    /// An agent `worker` whose five shell commands note their number in a ledger. The third one waits for a gate.
    pub fn with_gate(self) -> Self {
        let (ledger, gate) = (self.beside("ledger"), self.beside("gate"));
        let (ledger, gate) = (ledger.display(), gate.display());
        let mut turns = String::new();
        for n in 1..=5 {
            let wait = if n == 3 {
                format!("; until [ -e {gate} ] || [ ! -e {ledger} ]; do sleep 0.05; done")
            } else {
                String::new()
            };
            turns.push_str(&format!(
                "    - text: \"Step {n}. \"\n      tools:\n      - {{name: shell, arguments: {{command: \"echo {n} >> {ledger}{wait}\"}}}}\n"
            ));
        }
        self.write(
            "worker.yaml",
            &format!(
                "apiVersion: cadre.dev/v1alpha1\nkind: Model\nmetadata: {{name: five}}\nspec:\n  provider: Scripted\n  \
                 model: five\n  script: |\n{turns}    - text: All five are done.\n---\n\
                 apiVersion: cadre.dev/v1alpha1\nkind: Agent\nmetadata: {{name: worker}}\nspec:\n  modelRef: {{name: five}}\n  \
                 instructions: Count.\n  tools:\n  - {{type: Builtin, builtin: {{name: Shell}}}}\n"
            ),
        );
        self
    }

    pub fn open_gate(&self) {
        std::fs::write(self.beside("gate"), "").unwrap();
    }

    pub fn ledger(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.beside("ledger")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// All workspaces' files with this name.
    pub fn in_workspaces(&self, name: &str) -> Vec<PathBuf> {
        let workspaces = std::fs::read_dir(self.manifests().join(".cadre/workspaces")).unwrap();
        workspaces.map(|entry| entry.unwrap().path().join(name)).filter(|path| path.exists()).collect()
    }
}

/// A running `cadre dev`.
pub struct Dev {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
    pub url: String,
}

impl Dev {
    pub fn start(folder: &Folder) -> Self {
        Self::start_at(folder, "127.0.0.1:0", &[])
    }

    pub fn start_at(folder: &Folder, listen: &str, env: &[(&str, &str)]) -> Self {
        let mut child = Command::new(CADRE)
            .arg("dev")
            .arg(folder.manifests())
            .args(["--listen", listen])
            .envs(env.iter().copied())
            .env_remove("OS_SECURITY_KEY")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut dev = Self { child, lines, said: Vec::new(), url: String::new() };
        let first = dev.hear("Cadre serves ");
        dev.url = first.trim_start_matches("Cadre serves ").to_owned();
        dev.hear("This is no sandbox");
        dev
    }

    /// Waits for a line that contains this.
    pub fn hear(&mut self, wanted: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("{wanted:?} was never said, only {:#?}", self.said));
            self.said.push(line.clone());
            if line.contains(wanted) {
                return line;
            }
        }
    }

    pub fn said(&self, wanted: &str) -> bool {
        self.said.iter().any(|line| line.contains(wanted))
    }

    /// A `cadre` command against this server.
    pub fn cadre(&self, args: &[&str]) -> Command {
        let mut command = Command::new(CADRE);
        command.args(args).args(["--server", &self.url]).env_remove("CADRE_TOKEN").env_remove("CADRE_SERVER");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A request as it is; the status and the rest.
    pub fn http(&self, head: &str) -> String {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        write!(stream, "{head}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            signal(self.child.id(), "TERM");
            let _ = self.child.wait();
        }
    }
}

/// A port for a server that goes and comes back. The kernel gives it to nobody meanwhile: it lies below those that it
/// chooses from.
pub fn lasting_port() -> u16 {
    let tries = std::iter::repeat_with(|| 12_000 + u16::try_from(RandomState::new().hash_one(0) % 20_000).unwrap());
    tries.into_iter().find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

/// A finished command's streams.
pub fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

pub fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
}

/// Waits until something is so.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(found) = look() {
            return found;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    panic!("never happened: {what}")
}

/// Processes below one, with their command lines.
pub fn below(pid: u32) -> Vec<(u32, String)> {
    let all: Vec<(u32, u32, String)> = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            Some((pid, parent, String::from_utf8_lossy(&line).replace('\0', " ")))
        })
        .collect();
    let mut found = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for (pid, _, line) in all.iter().filter(|(_, of, _)| *of == parent) {
            parents.push(*pid);
            found.push((*pid, line.clone()));
        }
    }
    found
}
