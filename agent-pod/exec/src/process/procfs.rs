//! What `/proc` says about processes.

use std::collections::{HashMap, HashSet};

use nix::unistd::Pid;

/// A process. Together with the time it started it is never mistaken for a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) pid: Pid,
    /// Clock ticks after boot.
    pub(super) started: u64,
}

/// A process and its place among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) process: Process,
    pub(super) parent: Pid,
    pub(super) group: Pid,
    pub(super) zombie: bool,
}

/// All processes that can be seen, by number.
pub(super) type Table = HashMap<Pid, Entry>;

/// Reads the whole table. What vanishes meanwhile is left out.
pub(super) fn table() -> Table {
    let Ok(folder) = std::fs::read_dir("/proc") else { return Table::new() };
    let pids = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().map(Pid::from_raw));
    pids.filter_map(|pid| Some((pid, entry(pid)?))).collect()
}

/// Reads this process and what descends from it, whatever else runs on the machine. A child that ends meanwhile may hide
/// others from this look: whoever must not miss one reads the whole [`table`].
pub(super) fn family() -> Table {
    let (mut family, mut waiting) = (Table::new(), vec![Pid::this()]);
    while let Some(pid) = waiting.pop() {
        let Some(children) = children(pid) else {
            // The kernel may have been built without these lists.
            if family.is_empty() {
                return table();
            }
            continue;
        };
        if let Some(entry) = entry(pid) {
            family.insert(pid, entry);
            waiting.extend(children.into_iter().filter(|child| !family.contains_key(child)));
        }
    }
    family
}

/// Children of this process, those that have ended and were not reaped among them.
pub(super) fn children_of_this() -> Vec<Pid> {
    let me = Pid::this();
    let looked_up = || table().values().filter(|entry| entry.parent == me).map(|entry| entry.process.pid).collect();
    children(me).unwrap_or_else(looked_up)
}

/// Children of a process, of all of its threads.
fn children(pid: Pid) -> Option<Vec<Pid>> {
    let mut children = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let Ok(list) = std::fs::read_to_string(thread.ok()?.path().join("children")) else {
            // A thread that has ended has none; the first one's list is always there.
            continue;
        };
        children.extend(list.split_whitespace().filter_map(|pid| pid.parse().ok().map(Pid::from_raw)));
    }
    let first = std::path::PathBuf::from(format!("/proc/{pid}/task/{pid}/children"));
    first.exists().then_some(children)
}

/// Reads one process.
pub(super) fn entry(pid: Pid) -> Option<Entry> {
    parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Fields of `/proc/PID/stat` (proc_pid_stat(5)); the name, which may hold anything, ends at the last parenthesis.
fn parse(pid: Pid, stat: &str) -> Option<Entry> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse().ok().map(Pid::from_raw);
    Some(Entry {
        process: Process { pid, started: fields.get(19)?.parse().ok()? },
        parent: number(1)?,
        group: number(2)?,
        zombie: matches!(*fields.first()?, "Z" | "X"),
    })
}

/// Adds to `members` every living process that descends from one of them, or from one of `roots`.
pub(super) fn close_over(table: &Table, members: &mut HashSet<Process>) {
    let mut children: HashMap<Pid, Vec<&Entry>> = HashMap::new();
    for entry in table.values() {
        children.entry(entry.parent).or_default().push(entry);
    }
    let mut waiting: Vec<Pid> = members.iter().map(|process| process.pid).collect();
    while let Some(pid) = waiting.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if members.insert(child.process) {
                waiting.push(child.process.pid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_forge_fields() {
        let stat = "7 (a) S 1 1 (x) Z 3 4 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0";
        let entry = parse(Pid::from_raw(7), stat).unwrap();
        assert_eq!((entry.parent, entry.group, entry.zombie), (Pid::from_raw(3), Pid::from_raw(4), true));
        assert_eq!(entry.process.started, 99);
        assert_eq!(parse(Pid::from_raw(7), "7 (a"), None);
    }

    #[test]
    fn a_family_is_this_process_and_its_descendants() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let family = family();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(family.contains_key(&Pid::this()) && family[&pid].parent == Pid::this());
        assert!(!family.contains_key(&nix::unistd::getppid()));
    }

    #[test]
    fn this_process_is_in_the_table() {
        let me = Pid::this();
        let entry = table()[&me];
        assert_eq!((entry.parent, entry.zombie), (nix::unistd::getppid(), false));
    }
}
