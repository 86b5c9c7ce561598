//! Whole process trees: which processes a job started, also those that left its group, its session and their parent.
//!
//! Every process of a job carries a mark that it inherits and that anyone may read: the limit of bytes in message
//! queues, which means nothing here. A process can lower it and so leave its job, but not the sandbox.

use std::{collections::HashMap, io::Read, os::fd::OwnedFd, time::Duration};

use rustix::{
    fs::{CWD, Dir, Mode, OFlags, open, openat},
    process::{Pid, Resource, Signal, getrlimit, kill_process},
};

use super::sys;

/// The first mark. Limits can only be lowered, and this is below what every system starts with.
const FIRST_MARK: u64 = 1 << 16;
/// Marks where even that is above what we may set.
const LEAST_MARK: u64 = 1;
/// Rounds of looking for what is left to kill.
const ROUNDS: u32 = 200;
/// After so many rounds something forks as fast as it is killed, and is stopped first.
const PATIENT_ROUNDS: u32 = 2;

/// The mark of a job's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub u64);

/// Which processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members {
    /// Those with this mark.
    Marked(Mark),
    /// All but the executor.
    All,
}

/// The processes of this sandbox.
pub struct Tree {
    proc: Option<OwnedFd>,
    own: i32,
    marks: std::ops::Range<u64>,
}

impl Tree {
    /// Looks at `/proc`.
    pub fn new() -> Self {
        let highest = getrlimit(Resource::Msgqueue).maximum.unwrap_or(u64::from(u32::MAX));
        let first = if highest > 2 * FIRST_MARK { FIRST_MARK } else { LEAST_MARK };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self {
            proc: open("/proc", flags, Mode::empty()).ok(),
            own: std::process::id() as i32,
            marks: first..highest.max(first + 1),
        }
    }

    /// The mark for a job. Numbers come again only after hundreds of thousands of jobs.
    pub fn mark(&self, job: u32) -> Mark {
        Mark(self.marks.start + u64::from(job) % (self.marks.end - self.marks.start))
    }

    /// Sends a signal once to all that are there now.
    pub fn signal(&self, members: Members, signal: i32) {
        if members == Members::All && self.own == 1 {
            sys::signal_namespace(signal);
            return;
        }
        for pid in self.members(members) {
            send(pid, signal);
        }
    }

    /// Kills all, and all that they start meanwhile. `reap` is called between rounds.
    pub async fn kill(&self, members: Members, reap: impl Fn()) {
        for round in 0..ROUNDS {
            let left = self.members(members);
            if left.is_empty() {
                return;
            }
            if round >= PATIENT_ROUNDS {
                // What is stopped keeps its place among the processes that may be, so nothing new can be forked.
                left.iter().for_each(|&pid| send(pid, libc::SIGSTOP));
                self.members(members).into_iter().for_each(|pid| send(pid, libc::SIGSTOP));
            }
            self.signal(members, libc::SIGKILL);
            reap();
            let pause = Duration::from_millis(u64::from(round.min(10)));
            if round > 0 {
                tokio::time::sleep(pause).await;
            } else {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Ends everything, without waiting. For the moment before we end ourselves.
    pub fn kill_everything(&self) {
        for _ in 0..PATIENT_ROUNDS {
            self.signal(Members::All, libc::SIGKILL);
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.members(Members::All).len()
    }

    fn members(&self, members: Members) -> Vec<i32> {
        let parents = self.processes();
        let ours = |mut pid: i32| {
            // As PID 1 everything that we see is ours. Elsewhere only what descends from us is: we are its reaper.
            for _ in 0..if self.own == 1 { 0 } else { parents.len() } {
                match parents.get(&pid) {
                    Some(&parent) if parent == self.own => return true,
                    Some(&parent) => pid = parent,
                    None => return false,
                }
            }
            self.own == 1
        };
        let chosen = |pid: i32| match members {
            Members::All => true,
            Members::Marked(mark) => self.mark_of(pid) == Some(mark),
        };
        parents.keys().copied().filter(|&pid| pid != self.own && ours(pid) && chosen(pid)).collect()
    }

    /// Every living process with its parent.
    fn processes(&self) -> HashMap<i32, i32> {
        let Some(folder) = self.proc.as_ref() else { return HashMap::new() };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(entries) = openat(folder, ".", flags, Mode::empty()).and_then(Dir::new) else { return HashMap::new() };
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str().ok()?.parse::<i32>().ok());
        pids.filter_map(|pid| Some((pid, parent(&self.read(pid, "stat")?)?))).collect()
    }

    fn mark_of(&self, pid: i32) -> Option<Mark> {
        let text = self.read(pid, "limits")?;
        let line = text.lines().find_map(|line| line.strip_prefix("Max msgqueue size"))?;
        line.split_whitespace().next()?.parse().ok().map(Mark)
    }

    fn read(&self, pid: i32, name: &str) -> Option<String> {
        let folder = self.proc.as_ref()?;
        let file = openat(folder, format!("{pid}/{name}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut bytes = Vec::with_capacity(2048);
        std::fs::File::from(file).take(4096).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The parent in a line of `/proc/PID/stat`, if the process lives. Its name may hold anything, so it is skipped from
/// behind.
fn parent(stat: &str) -> Option<i32> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(parent)
}

fn send(pid: i32, signal: i32) {
    if let (Some(pid), Some(signal)) = (Pid::from_raw(pid), Signal::from_named_raw(signal)) {
        let _ = kill_process(pid, signal);
    }
}

/// Where this process's readiness to be killed for memory is set, see [`Sacrifice`].
pub struct Sacrifice {
    file: Option<OwnedFd>,
    own: String,
}

impl Sacrifice {
    const OF_COMMANDS: i32 = 500;

    /// Opened at the start, while the file still belongs to us.
    pub fn new() -> Self {
        let file = openat(CWD, "/proc/self/oom_score_adj", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok();
        let mut text = [0; 16];
        let length = file.as_ref().and_then(|file| rustix::io::pread(file, &mut text, 0).ok()).unwrap_or(0);
        let own = String::from_utf8_lossy(&text[..length]).trim().to_owned();
        Self { file: file.filter(|_| own.parse::<i32>().is_ok_and(|own| own < Self::OF_COMMANDS)), own }
    }

    /// What is started meanwhile is killed before us when memory runs out. It is inherited, and each process may set
    /// it back as far as it was, so we lend it for this moment.
    pub fn lend<T>(&self, start: impl FnOnce() -> T) -> T {
        self.write(&Self::OF_COMMANDS.to_string());
        let result = start();
        self.write(&self.own);
        result
    }

    fn write(&self, value: &str) {
        if let Some(file) = &self.file {
            let _ = rustix::io::pwrite(file, value.as_bytes(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_children_are_ours() {
        let before = Tree::new().count();
        let mut child = std::process::Command::new("sleep").arg("5").spawn().unwrap_or_else(|error| panic!("{error}"));
        let tree = Tree::new();
        assert!(tree.processes().len() > tree.count());
        assert_eq!(tree.count(), before + 1);
        let _ = (child.kill(), child.wait());
    }

    #[test]
    fn a_name_cannot_fake_a_parent() {
        assert_eq!(parent("12 (a) S 7 1 (b) R 99) S 42 1 1 0"), Some(42));
        assert_eq!(parent("12 (gone) Z 42 1"), None);
        assert_eq!(parent("nonsense"), None);
    }
}
