//! Processes that we started: pid files that survive the reuse of numbers, and ending them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use cadre_e2e::wait;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A process, told apart from a later one with the same number by the time of its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    started: u64,
}

impl Process {
    /// The living process of a number.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Self { pid, started: start_time(&stat)? })
    }

    /// The living process that a pid file names.
    pub fn in_file(path: &Path) -> Option<Self> {
        let text = fs::read_to_string(path).ok()?;
        let (pid, started) = text.trim().split_once(' ')?;
        let noted = Self { pid: pid.parse().ok()?, started: started.parse().ok()? };
        noted.is_alive().then_some(noted)
    }

    /// Writes a pid file.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn note(self, path: &Path) -> Result<()> {
        Ok(fs::write(path, format!("{} {}\n", self.pid, self.started))?)
    }

    /// Whether it still runs.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Whether its program's file name starts so.
    pub fn runs(self, program: &str) -> bool {
        let file = fs::read_link(format!("/proc/{}/exe", self.pid)).unwrap_or_default();
        file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(program))
    }

    /// Sends a signal, unless it is gone.
    pub fn signal(self, signal: Signal) {
        if self.is_alive() {
            // It may end in between, which is what we want.
            let _ = kill(Pid::from_raw(self.pid), signal);
        }
    }

    /// Asks it to end, and makes it end after `patience`.
    ///
    /// # Errors
    /// When it survives even that.
    pub fn end(self, patience: Duration) -> Result<()> {
        self.signal(Signal::SIGTERM);
        if wait::until("the process to end", patience, "", || Ok(!self.is_alive())).is_ok() {
            return Ok(());
        }
        self.signal(Signal::SIGKILL);
        let what = format!("process {} to end", self.pid);
        wait::until(&what, Duration::from_secs(60), "it hangs in the kernel", || Ok(!self.is_alive()))
    }
}

/// Field 22 of `/proc/PID/stat`; nothing for a zombie, which no longer runs.
fn start_time(stat: &str) -> Option<u64> {
    // The program's name may hold spaces and parentheses; the fields after it don't.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The processes whose command line holds `text`, such as a socket's path.
pub fn with_argument(text: &str) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let matches = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        *pid != own && String::from_utf8_lossy(&line).contains(text)
    };
    pids.filter(matches).filter_map(Process::of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_after_strange_names() {
        let rest = "1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 11 12";
        assert_eq!(start_time(&format!("7 (a) b (c) S {rest}")), Some(98765));
        assert_eq!(start_time(&format!("7 (sh) Z {rest}")), None);
    }

    #[test]
    fn a_pid_file_of_another_time_names_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.pid");
        let own = Process::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        own.note(&file).unwrap();
        assert_eq!(Process::in_file(&file), Some(own));
        Process { started: own.started + 1, ..own }.note(&file).unwrap();
        assert_eq!(Process::in_file(&file), None);
    }

    #[test]
    fn a_process_ends_when_asked() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let process = Process::of(i32::try_from(child.id()).unwrap()).unwrap();
        process.end(Duration::from_secs(60)).unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
