//! What `/proc` says about the processes there are. What follows from it is in `tree`.

use std::{
    collections::{HashMap, HashSet},
    io::Read,
    os::fd::OwnedFd,
    time::Instant,
};

use rustix::fs::{Dir, Mode, OFlags, open, openat};

use super::mark::Carrier;

/// Where processes are looked at.
pub struct Census {
    proc: Option<OwnedFd>,
}

/// A living process.
#[derive(Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// Who started it, or inherited it.
    pub parent: i32,
    /// Its group.
    pub group: i32,
    /// Its session.
    pub session: i32,
    /// Its limit that carries marks, once that was looked for.
    pub mark: Option<u64>,
}

/// All processes at one moment, more or less.
pub struct Processes(HashMap<i32, Process>);

impl Census {
    /// Opens `/proc`.
    pub fn new() -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self { proc: open("/proc", flags, Mode::empty()).ok() }
    }

    /// Every living process that we see.
    pub fn take(&self) -> Processes {
        self.take_while(|| true).unwrap_or_else(|| Processes(HashMap::new()))
    }

    /// The same, if that does not take longer.
    pub fn take_before(&self, end: Instant) -> Option<Processes> {
        self.take_while(|| Instant::now() < end)
    }

    fn take_while(&self, go_on: impl Fn() -> bool) -> Option<Processes> {
        let folder = self.proc.as_ref()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let entries = openat(folder, ".", flags, Mode::empty()).and_then(Dir::new);
        let pids = entries.ok()?.flatten().filter_map(|entry| entry.file_name().to_str().ok()?.parse::<i32>().ok());
        let mut found = HashMap::new();
        for pid in pids {
            if !go_on() {
                return None;
            }
            found.extend(self.read(pid, "stat").and_then(|stat| living(pid, &stat)).map(|process| (pid, process)));
        }
        Some(Processes(found))
    }

    fn mark(&self, pid: i32) -> Option<u64> {
        let text = self.read(pid, "limits")?;
        let line = text.lines().find_map(|line| line.strip_prefix(Carrier::here().name()))?;
        // The second is the hard limit, which cannot be raised again.
        let limit = line.split_whitespace().nth(1)?;
        Some(limit.parse().unwrap_or(u64::MAX))
    }

    fn read(&self, pid: i32, name: &str) -> Option<String> {
        let folder = self.proc.as_ref()?;
        let file = openat(folder, format!("{pid}/{name}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut bytes = Vec::with_capacity(2048);
        std::fs::File::from(file).take(4096).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Processes {
    /// Their numbers.
    pub fn pids(&self) -> impl Iterator<Item = i32> {
        self.0.keys().copied()
    }

    /// One of them.
    pub fn get(&self, pid: i32) -> Option<&Process> {
        self.0.get(&pid)
    }

    /// Leaves out the others.
    pub fn keep(&mut self, which: impl Fn(i32) -> bool) {
        self.0.retain(|&pid, _| which(pid));
    }

    /// Looks for the mark of each.
    pub fn look_for_marks(&mut self, census: &Census) {
        self.0.values_mut().for_each(|process| process.mark = census.mark(process.pid));
    }

    /// Those for which this is true, and all that descend from them.
    pub fn descendants(&self, of: impl Fn(&Process) -> bool) -> HashSet<i32> {
        let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
        for process in self.0.values() {
            children.entry(process.parent).or_default().push(process.pid);
        }
        let mut waiting: Vec<i32> = self.0.values().filter(|process| of(process)).map(|process| process.pid).collect();
        let mut found = HashSet::new();
        while let Some(pid) = waiting.pop() {
            if found.insert(pid) {
                waiting.extend(children.remove(&pid).unwrap_or_default());
            }
        }
        found
    }
}

/// The process of a line of `/proc/PID/stat`, if it lives. Its name may hold anything, so it is skipped from behind.
fn living(pid: i32, stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let number = |index: usize| fields.get(index)?.parse::<i32>().ok();
    let process = Process { pid, parent: number(1)?, group: number(2)?, session: number(3)?, mark: None };
    // A process whose first thread has ended looks dead, but its other threads run.
    let dead = matches!(*fields.first()?, "Z" | "X") && number(17).is_none_or(|threads| threads <= 1);
    (!dead).then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_fake_a_parent() {
        let parent = |stat| living(12, stat).map(|process| process.parent);
        assert_eq!(parent("12 (a) S 7 1 (b) R 99) S 42 1 1 0"), Some(42));
        assert_eq!(parent("12 (gone) Z 42 1 1 0"), None);
        assert_eq!(parent("nonsense"), None);
    }

    #[test]
    fn a_process_that_lost_only_its_first_thread_lives() {
        let stat = |threads| format!("12 (x) Z 42 7 8 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 99");
        let process = Process { pid: 12, parent: 42, group: 7, session: 8, mark: None };
        assert_eq!(living(12, &stat(2)), Some(process));
        assert_eq!(living(12, &stat(1)), None);
    }

    #[test]
    fn descendants_are_found_even_in_circles() {
        let process = |(pid, parent)| (pid, Process { pid, parent, group: 0, session: 0, mark: None });
        let processes = Processes([(2, 1), (3, 2), (4, 3), (5, 1), (6, 7), (7, 6)].map(process).into());
        assert_eq!(processes.descendants(|process| process.pid == 2), HashSet::from([2, 3, 4]));
        assert_eq!(processes.descendants(|process| process.pid == 6), HashSet::from([6, 7]));
    }
}
