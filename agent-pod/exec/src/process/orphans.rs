//! What an exec-server leaves when it is killed, ended by the process that started it.
//!
//! An exec-server ends what it runs, but not when it is killed: by a command of the same user, for example. In a pod all
//! processes of its container go with it. Elsewhere the process that starts exec-servers takes over what loses them:
//! every child that it did not start is such an orphan, so it must start nothing else.

use std::collections::HashSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::procfs::children_of_this;

/// Time between two looks at orphans that are being ended.
const POLL: Duration = Duration::from_millis(10);
/// How long SIGKILL is repeated: each that ends may leave further ones.
const KILLING: Duration = Duration::from_secs(5);

/// The exec-servers that this process has started and not yet been told the end of.
static SERVERS: Mutex<Option<HashSet<Pid>>> = Mutex::new(None);

/// An exec-server that was started.
#[derive(Debug)]
pub struct Started {
    /// It.
    pub child: Child,
    pid: Option<Pid>,
}

fn servers() -> MutexGuard<'static, Option<HashSet<Pid>>> {
    SERVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes this process the one that takes over what loses its exec-server.
///
/// # Errors
/// When the kernel refuses.
pub fn take_over() -> io::Result<()> {
    Ok(set_child_subreaper(true)?)
}

/// Starts an exec-server.
///
/// # Errors
/// When it can't be started.
pub fn start(command: &mut Command) -> io::Result<Started> {
    // Held until the child is known, or it might be taken for an orphan.
    let mut servers = servers();
    let child = command.spawn()?;
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
    servers.get_or_insert_default().extend(pid);
    Ok(Started { child, pid })
}

impl Started {
    /// It has ended and was waited for: ends what it left.
    pub async fn clean_up(self) {
        if let (Some(pid), Some(servers)) = (self.pid, servers().as_mut()) {
            servers.remove(&pid);
        }
        let began = Instant::now();
        while end_orphans() > 0 && began.elapsed() < KILLING {
            sleep(POLL).await;
        }
    }
}

/// Kills and reaps the present orphans; says how many there were.
fn end_orphans() -> usize {
    let servers = servers();
    let is_server = |pid: &Pid| servers.as_ref().is_some_and(|servers| servers.contains(pid));
    let orphans: Vec<Pid> = children_of_this().into_iter().filter(|pid| !is_server(pid)).collect();
    for pid in &orphans {
        // One that has ended is a zombie: it takes the signal and waits to be reaped.
        let _ = kill(*pid, Signal::SIGKILL);
        let _ = waitpid(*pid, Some(WaitPidFlag::WNOHANG));
    }
    orphans.len()
}
