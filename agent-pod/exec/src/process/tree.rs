//! Every process that descends from this one: which command it belongs to, reaping, and ending.
//!
//! This process is the reaper of all its descendants (as PID 1, or as "child subreaper"), so whatever loses its parent
//! becomes its child. A command's processes are its process group, the descendants seen at any sample, and orphans that
//! appeared during its life and belong to no other command. An orphan that left its group and its parent between two
//! samples may so be counted to a command that runs beside its own: a command that is ended leaves nothing behind.
//!
//! Samples are taken while a command runs, and when one begins: nobody asks whose a process is as long as none runs, and
//! what was left in the background costs nothing.

use std::collections::{HashMap, HashSet};
use std::io;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::procfs::{Process, Table, close_over, entry, family, table};

/// Time between two looks at the processes of running commands.
const SAMPLE: Duration = Duration::from_millis(100);
/// Time between two looks at processes that are being ended.
const POLL: Duration = Duration::from_millis(10);
/// Time that processes get between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_millis(500);
/// How long SIGKILL is repeated: new processes may appear while others are killed.
const KILLING: Duration = Duration::from_secs(5);

/// Number of a started command.
pub(super) type Key = u64;

/// A command that was started.
pub(super) struct Started {
    pub(super) key: Key,
    pub(super) exit: oneshot::Receiver<ExitStatus>,
    pub(super) stdout: Option<ChildStdout>,
    pub(super) stderr: Option<ChildStderr>,
}

/// All commands and their processes.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    state: Mutex<State>,
    /// Rings when a command begins.
    began: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: Key,
    /// How often everything was ended.
    generation: u64,
    commands: HashMap<Key, Tracked>,
    /// Processes of former commands that had lost their parents when the next command began.
    left_over: HashSet<Process>,
}

#[derive(Debug)]
struct Tracked {
    main: Process,
    /// Until it is reaped.
    child: Option<(Child, oneshot::Sender<ExitStatus>)>,
    members: HashSet<Process>,
    /// Whether its answer is still to come.
    running: bool,
    /// Whether it was ended along with all others.
    ended: bool,
}

/// Reaps and samples until it is dropped.
///
/// # Errors
/// When signals cannot be received.
pub(crate) async fn supervise(processes: Arc<Processes>) -> io::Result<()> {
    let mut children = signal(SignalKind::child())?;
    let mut ticks = interval(SAMPLE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let running = processes.state().is_running();
        tokio::select! {
            _ = children.recv() => processes.state().child_ended(),
            _ = ticks.tick(), if running => processes.state().look(),
            () = processes.began.notified(), if !running => ticks.reset(),
        }
    }
}

impl Processes {
    /// How often everything was ended: whoever prepares to spawn takes it first.
    pub(super) fn generation(&self) -> u64 {
        self.state().generation
    }

    /// Starts a command, which must make a process group of its own. Refused when everything was ended since
    /// `generation`.
    pub(super) fn spawn(&self, command: &mut Command, generation: u64) -> io::Result<Started> {
        // Held until the child is known, or it might be reaped as an orphan.
        let mut state = self.state();
        if state.generation != generation {
            return Err(io::Error::other("all commands were ended meanwhile"));
        }
        state.settle();
        let mut child = command.spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        let main = entry(pid).map_or(Process { pid, started: 0 }, |entry| entry.process);
        let (sender, exit) = oneshot::channel();
        state.next += 1;
        let (key, members) = (state.next, HashSet::from([main]));
        let tracked = Tracked { main, child: Some((child, sender)), members, running: true, ended: false };
        state.commands.insert(key, tracked);
        self.began.notify_one();
        Ok(Started { key, exit, stdout, stderr })
    }

    /// Ends a command with all its processes: SIGTERM, and SIGKILL for what is left after a short time.
    pub(super) async fn stop(&self, key: Key) {
        end(|signal| self.state().signal_command(key, signal)).await;
    }

    /// Ends every process that descends from this one, in the same way.
    pub(crate) async fn stop_all(&self) {
        self.state().end_all();
        end(|signal| self.state().signal_descendants(signal)).await;
    }

    /// A command's answer is complete: what it left running in the background is only watched. Returns whether it was
    /// ended along with all others.
    pub(super) fn release(&self, key: Key) -> bool {
        let mut state = self.state();
        let Some(tracked) = state.commands.get_mut(&key) else { return false };
        tracked.running = false;
        tracked.ended
    }

    /// Whether the answer to a command is still to come.
    pub(crate) fn are_running(&self) -> bool {
        self.state().is_running()
    }

    /// Whether something of a command is there, running or left behind.
    pub(crate) fn are_there(&self) -> bool {
        let state = self.state();
        !state.left_over.is_empty() || state.commands.values().any(|it| it.running || !it.members.is_empty())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Signals until nothing is left. `signal` sends to what is there now (`None` only looks) and says how many that are.
async fn end(signal: impl Fn(Option<Signal>) -> usize) {
    let mut left = signal(Some(Signal::SIGTERM));
    let asked = Instant::now();
    while left > 0 && asked.elapsed() < GRACE {
        sleep(POLL).await;
        left = signal(None);
    }
    let killing = Instant::now();
    while left > 0 && killing.elapsed() < KILLING {
        signal(Some(Signal::SIGKILL));
        sleep(POLL).await;
        left = signal(None);
    }
}

impl State {
    fn end_all(&mut self) {
        self.generation += 1;
        self.commands.values_mut().for_each(|tracked| tracked.ended = true);
    }

    /// Whether a command's answer is still to come.
    fn is_running(&self) -> bool {
        self.commands.values().any(|tracked| tracked.running)
    }

    /// Takes the statuses of children that have ended: those of commands for who waits for them, orphans' for nobody.
    fn reap(&mut self) {
        // The same child is found until it is reaped.
        while let Some(pid) = ended_child() {
            let command = self.commands.values_mut().find(|tracked| tracked.child.is_some() && tracked.main.pid == pid);
            let reaped = match command {
                Some(tracked) => tracked.reap(),
                None => waitpid(pid, Some(WaitPidFlag::WNOHANG)).is_ok(),
            };
            if !reaped {
                return;
            }
        }
    }

    fn child_ended(&mut self) {
        self.reap();
        // While one runs, the samples see to it.
        if !self.is_running() {
            self.look();
        }
    }

    /// Samples, if there is anything to sample, and forgets what is over.
    fn look(&mut self) {
        if self.commands.is_empty() && self.left_over.is_empty() {
            return;
        }
        self.reap();
        self.sample(&family());
        self.commands.retain(|_, tracked| tracked.running || tracked.child.is_some() || !tracked.members.is_empty());
    }

    /// Makes up for the samples that were not taken while no command ran: whatever has no known command now is none of
    /// the next one's.
    fn settle(&mut self) {
        if self.is_running() {
            return;
        }
        self.reap();
        let table = family();
        self.sample(&table);
        self.left_over.extend(self.strays(&table, 0));
    }

    fn sample(&mut self, table: &Table) {
        for tracked in self.commands.values_mut() {
            let main = tracked.main;
            tracked.members.retain(|process| alive(table, *process));
            tracked.members.extend(
                table
                    .values()
                    .filter(|entry| entry.group == main.pid && !entry.zombie && entry.process.started >= main.started)
                    .map(|entry| entry.process),
            );
            close_over(table, &mut tracked.members);
        }
        self.left_over.retain(|process| alive(table, *process));
        close_over(table, &mut self.left_over);
    }

    /// Orphans of nobody knows which command, born since `started`.
    fn strays(&self, table: &Table, started: u64) -> HashSet<Process> {
        let (me, mains) = (Pid::this(), self.mains());
        let commands = self.commands.values().map(|tracked| &tracked.members);
        let known: HashSet<Process> = commands.chain([&self.left_over]).flatten().copied().collect();
        let mut strays: HashSet<Process> = table
            .values()
            .filter(|entry| entry.parent == me && !entry.zombie && !mains.contains(&entry.process.pid))
            .map(|entry| entry.process)
            .filter(|process| process.started >= started && !known.contains(process))
            .collect();
        close_over(table, &mut strays);
        strays
    }

    fn signal_command(&mut self, key: Key, signal: Option<Signal>) -> usize {
        self.reap();
        let table = table();
        self.sample(&table);
        let Some(main) = self.commands.get(&key).map(|tracked| tracked.main) else { return 0 };
        let strays = self.strays(&table, main.started);
        let Some(tracked) = self.commands.get_mut(&key) else { return 0 };
        tracked.members.extend(strays);
        let waited = tracked.child.is_some();
        let group =
            waited || table.values().any(|entry| entry.group == main.pid && tracked.members.contains(&entry.process));
        if let (true, Some(signal)) = (group, signal) {
            // Reaches, in one step, what the group forks meanwhile. It may be gone by now.
            let _ = killpg(main.pid, signal);
        }
        send(&table, &tracked.members, signal).max(usize::from(waited))
    }

    fn signal_descendants(&mut self, signal: Option<Signal>) -> usize {
        self.reap();
        let table = table();
        let Some(me) = table.get(&Pid::this()) else { return 0 };
        let mut members = HashSet::from([me.process]);
        close_over(&table, &mut members);
        members.remove(&me.process);
        send(&table, &members, signal)
    }

    fn mains(&self) -> HashSet<Pid> {
        let waiting = self.commands.values().filter(|tracked| tracked.child.is_some());
        waiting.map(|tracked| tracked.main.pid).collect()
    }
}

impl Tracked {
    /// Takes the status of its main process; false when that is not to be had.
    fn reap(&mut self) -> bool {
        let Some((child, _)) = &mut self.child else { return false };
        let Ok(Some(status)) = child.try_wait() else { return false };
        if let Some((_, exit)) = self.child.take() {
            // Nobody waits when the server is stopping.
            let _ = exit.send(status);
        }
        true
    }
}

/// A child that has ended and was not reaped.
fn ended_child() -> Option<Pid> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::All, flags).ok()?.pid()
}

fn alive(table: &Table, process: Process) -> bool {
    table.get(&process.pid).is_some_and(|entry| entry.process == process && !entry.zombie)
}

/// Sends to those that are alive, and counts them.
fn send(table: &Table, members: &HashSet<Process>, signal: Option<Signal>) -> usize {
    let living = members.iter().filter(|process| alive(table, **process));
    living
        .inspect(|process| {
            if let Some(signal) = signal {
                // One that ended since the look is what was wanted.
                let _ = kill(process.pid, signal);
            }
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::super::procfs::Entry;
    use super::*;

    fn process(pid: i32) -> Process {
        Process { pid: Pid::from_raw(pid), started: u64::try_from(pid).unwrap() }
    }

    fn table_of(entries: &[(i32, Pid)]) -> Table {
        let entry = |(pid, parent): &(i32, Pid)| {
            let process = process(*pid);
            (process.pid, Entry { process, parent: *parent, group: process.pid, zombie: false })
        };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn what_an_earlier_command_left_is_never_a_later_ones() {
        let (me, first) = (Pid::this(), Pid::from_raw(11));
        let mut state = State { left_over: HashSet::from([process(11)]), ..State::default() };
        // 12 is a child of what was left; 13 is nobody's.
        let seen = table_of(&[(11, me), (12, first), (13, me)]);
        state.sample(&seen);
        assert_eq!(state.strays(&seen, 12), HashSet::from([process(13)]));
        let later = table_of(&[(12, me), (13, me)]);
        state.sample(&later);
        assert_eq!(state.strays(&later, 12), HashSet::from([process(13)]), "also once its parent has gone");
    }
}
