//! One command, from the start to the account of how it ended.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cadre_protocol::exec::{ExecBody, ExecErrorCode, MAX_OUTPUT_BYTES};
use tokio::net::unix::pipe;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::capture::Capture;
use super::tree::{Processes, Started};
use crate::room::Room;
use crate::workspace::{Failure, RelPath, Snapshot, Workspace};

/// Where programs are looked for. The image's own environment is ignored.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How long output is waited for after a command ended: a child in the background may hold its pipes for ever.
const DRAIN: Duration = Duration::from_millis(300);
/// How long the exit of a killed command is waited for: it may hang in the kernel.
const EXIT: Duration = Duration::from_secs(5);
/// Longest time-out.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// How commands are started.
#[derive(Debug, Clone)]
pub(crate) struct Shell {
    program: PathBuf,
    environment: Vec<(String, OsString)>,
    workspace: PathBuf,
    run_as: Option<(u32, u32)>,
}

impl Shell {
    /// `program` is the shell; without it `bash` is looked for, then `sh`.
    pub(crate) fn new(
        program: Option<&Path>,
        [workspace, home, tmp]: [&Path; 3],
        user: &str,
        run_as: Option<(u32, u32)>,
        more: &[(String, String)],
    ) -> Self {
        let found = || PATH.split(':').map(|folder| Path::new(folder).join("bash")).find(|path| path.is_file());
        let program = program.map(Path::to_path_buf).or_else(found).unwrap_or_else(|| PathBuf::from("/bin/sh"));
        let own: [(&str, OsString); 6] = [
            ("HOME", home.into()),
            ("PATH", PATH.into()),
            ("LANG", "C.UTF-8".into()),
            ("TERM", "dumb".into()),
            ("TMPDIR", tmp.into()),
            ("USER", user.into()),
        ];
        // Later ones win.
        let environment = own
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .chain(more.iter().map(|(name, value)| (name.clone(), value.into())))
            .collect();
        Self { program, environment, workspace: workspace.to_path_buf(), run_as }
    }

    fn command(&self, text: &str, cwd: &RelPath, folder: &OwnedFd) -> std::process::Command {
        let mut command = std::process::Command::new(&self.program);
        command
            .arg("-c")
            .arg(text)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env(
                "PWD",
                if cwd.to_path() == Path::new(".") {
                    self.workspace.clone()
                } else {
                    self.workspace.join(cwd.to_path())
                },
            )
            // The descriptor that was checked, not the path, which may lead elsewhere by now.
            .current_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if let Some((user, group)) = self.run_as {
            command.uid(user).gid(group);
        }
        command
    }
}

/// What commands run with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) processes: &'a Processes,
    pub(crate) shell: &'a Shell,
    pub(crate) room: &'a Room,
}

/// A command to run.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) text: String,
    pub(crate) cwd: Option<String>,
    pub(crate) timeout: Duration,
    pub(crate) max_output: usize,
}

/// Why a command is no longer running.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    Exit,
    TimeOut,
    Kill,
    /// A folder is nearly full, in words.
    Full(String),
}

/// How a command ended.
#[derive(Debug)]
struct Finished {
    status: Option<ExitStatus>,
    end: End,
    stdout: (String, bool),
    stderr: (String, bool),
}

impl Command {
    /// Runs it to its end, its time-out, `kill` or a folder that it has filled, and says what it did.
    pub(crate) async fn answer(
        self,
        Site { processes, shell, room }: Site<'_>,
        workspace: &Arc<Workspace>,
        kill: CancellationToken,
    ) -> Result<ExecBody, Failure> {
        let generation = processes.generation();
        let cwd = RelPath::parse(self.cwd.as_deref().unwrap_or_default())?;
        let (folder, before) = look(workspace, cwd.clone()).await?;
        let mut command = shell.command(&self.text, &cwd, &folder);
        let started = processes.spawn(&mut command, generation).map_err(|error| {
            Failure::new(ExecErrorCode::Spawn, format!("the command could not be started: {error}"))
        })?;
        drop(folder);
        let finished = self.follow(processes, started, kill, room.until_crowded()).await?;
        let workspace = Arc::clone(workspace);
        let effect = blocking(move || workspace.effect_since(&before)).await?;
        let Finished { status, end, stdout, stderr } = finished;
        Ok(ExecBody::Exited {
            code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            timed_out: end == End::TimeOut,
            killed: end == End::Kill,
            full: match end {
                End::Full(words) => Some(words),
                End::Exit | End::TimeOut | End::Kill => None,
            },
            truncated: stdout.1 || stderr.1,
            stdout: stdout.0,
            stderr: stderr.0,
            effect,
        })
    }

    async fn follow(
        &self,
        processes: &Processes,
        started: Started,
        kill: CancellationToken,
        crowded: impl Future<Output = String>,
    ) -> Result<Finished, Failure> {
        let Started { key, mut exit, stdout, stderr } = started;
        let max = self.max_output.min(MAX_OUTPUT_BYTES);
        let captures = capture(stdout, max).and_then(|stdout| Ok((stdout, capture(stderr, max)?)));
        let (mut stdout, mut stderr) = match captures {
            Ok(captures) => captures,
            Err(failure) => {
                processes.stop(key).await;
                processes.release(key);
                return Err(failure);
            }
        };
        let (exited, mut end) = tokio::select! {
            biased;
            status = &mut exit => (status.ok(), End::Exit),
            () = kill.cancelled() => (None, End::Kill),
            () = sleep(self.timeout.min(MAX_TIMEOUT)) => (None, End::TimeOut),
            words = crowded => (None, End::Full(words)),
        };
        let status = if end == End::Exit {
            exited
        } else {
            processes.stop(key).await;
            timeout(EXIT, exit).await.ok().and_then(Result::ok)
        };
        // Whether the streams ended or not, what came so far is what there is.
        let _ = timeout(DRAIN, async { tokio::join!(stdout.ended(), stderr.ended()) }).await;
        if processes.release(key) {
            end = End::Kill;
        }
        Ok(Finished { status, end, stdout: stdout.text(), stderr: stderr.text() })
    }
}

fn capture(stream: Option<impl Into<OwnedFd>>, max: usize) -> Result<Capture, Failure> {
    let failed =
        |why: String| Failure::new(ExecErrorCode::Spawn, format!("the command's output cannot be read: {why}"));
    let stream = stream.ok_or_else(|| failed("there is no pipe".to_owned()))?;
    let receiver = pipe::Receiver::from_owned_fd(stream.into()).map_err(|error| failed(error.to_string()))?;
    Ok(Capture::start(receiver, max))
}

async fn look(workspace: &Arc<Workspace>, cwd: RelPath) -> Result<(OwnedFd, Snapshot), Failure> {
    let workspace = Arc::clone(workspace);
    blocking(move || Ok((workspace.open_cwd(&cwd)?, workspace.snapshot()))).await?
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    let failed = |_| Failure::new(ExecErrorCode::Io, "the workspace could not be looked at");
    tokio::task::spawn_blocking(work).await.map_err(failed)
}
