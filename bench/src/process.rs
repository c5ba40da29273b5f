//! Memory, processor time and start of processes of this machine, from /proc.

use std::fs;
use std::time::{Duration, Instant};

/// What a process has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory, in KiB.
    pub rss_kib: u64,
    /// Processor time, user and kernel.
    pub cpu: Duration,
}

impl Usage {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { rss_kib: self.rss_kib + other.rss_kib, cpu: self.cpu + other.cpu }
    }
}

/// Kernel's ticks in a second, in what /proc says. It is 100 on every architecture that Linux has today.
const TICKS: u64 = 100;

/// The machine's load over the last minute.
pub fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// What a process has used until now.
pub fn usage(pid: u32) -> Option<Usage> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let rss_kib = rss.split_whitespace().next()?.parse().ok()?;
    Some(Usage { rss_kib, cpu: cpu(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)? })
}

/// Fields of /proc/PID/stat from the third on: the second may hold blanks.
fn fields(stat: &str) -> Option<Vec<&str>> {
    Some(stat.rsplit_once(')')?.1.split_whitespace().collect())
}

fn cpu(stat: &str) -> Option<Duration> {
    let fields = fields(stat)?;
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 1000 / TICKS))
}

/// When a process was started, to ten milliseconds.
pub fn started(pid: u32) -> Option<Instant> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let start_ticks: u64 = fields(&stat)?.get(19)?.parse().ok()?;
    let uptime: f64 = fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()?;
    let now = Instant::now();
    let age = Duration::from_secs_f64(uptime).checked_sub(Duration::from_millis(start_ticks * 1000 / TICKS))?;
    now.checked_sub(age)
}

/// Processes of this machine.
fn all() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A process and all that it has started, itself first.
pub fn family(pid: u32) -> Vec<u32> {
    let parent = |pid: u32| -> Option<u32> {
        fields(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?.get(1)?.parse().ok()
    };
    let parents: Vec<(u32, u32)> = all().filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child));
        next += 1;
    }
    found
}

/// A process in a pod's cgroup.
#[derive(Debug, Clone)]
pub struct PodProcess {
    /// Its id on this machine.
    pub pid: u32,
    /// Its command line.
    pub command: String,
}

/// Processes of a pod, if its node is this machine.
pub fn of_pod(uid: &str) -> Vec<PodProcess> {
    let mark = format!("pod{uid}");
    // With the systemd driver the UID's dashes are underscores.
    let other = mark.replace('-', "_");
    let in_pod = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/cgroup"))
            .is_ok_and(|text| text.contains(&mark) || text.contains(&other))
    };
    let describe = |pid: u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        PodProcess { pid, command: String::from_utf8_lossy(&command).replace('\0', " ") }
    };
    all().filter(in_pod).map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_does_not_move_the_fields() {
        let stat = "7 (a b) c) S 3 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 1 0 4000 0 0";
        assert_eq!(cpu(stat), Some(Duration::from_secs(2)));
        assert_eq!(fields(stat).unwrap()[19], "4000");
    }

    #[test]
    fn this_process_is_found() {
        let pid = std::process::id();
        assert!(usage(pid).unwrap().rss_kib > 0);
        assert!(started(pid).unwrap() <= Instant::now());
        assert_eq!(family(pid)[0], pid);
        assert!(of_pod("00000000-0000-0000-0000-000000000000").is_empty());
    }
}
