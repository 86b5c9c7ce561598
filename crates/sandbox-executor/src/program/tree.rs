//! Whole process trees: which processes a job started, also those that left its group, its session and their parent.
//!
//! Every process of a job carries a mark that it inherits and that anyone may read: a limit that means nothing here (see
//! `mark`). A process can only lower it. Marks go down from job to job, so what lies below is
//! a later job's mark or nobody's; what carries nobody's mark hides, and belongs to whichever job is being ended.

use std::{
    collections::HashSet,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    process::{Pid, Signal, getrlimit, kill_process},
};

use super::{
    census::{Census, Process},
    mark::Carrier,
    sys,
};

/// The least mark, where we may set more.
const LEAST_OF_MANY: u64 = 1 << 16;
/// The least mark where even that is above what we may set.
const LEAST_OF_FEW: u64 = 1;
/// Rounds of looking for what is left to kill.
const ROUNDS: u32 = 200;
/// After so many rounds something forks as fast as it is killed, and is stopped first.
const PATIENT_ROUNDS: u32 = 2;

/// Where somebody else counts processes a look at all of them is quick, or they leave us no time for it.
const QUICK: Duration = Duration::from_millis(200);
/// Who is being born while others are stopped is stopped the next time.
const STOPS: u32 = 3;

/// The mark of a job's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub u64);

/// Which processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members {
    /// Those of a job: what has its mark, what is in the session or group of its first process while that lives, what
    /// descends from either, and what hides.
    Job {
        /// Its mark.
        mark: Mark,
        /// Its first process, if that number is still its own.
        first: Option<i32>,
    },
    /// All but the executor.
    All,
}

/// What is known about jobs at one moment.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The first processes of those that run. One that was just made has no mark yet, and does not hide.
    pub first: HashSet<i32>,
    /// The number of the last one.
    pub last_job: u32,
}

/// The processes of this sandbox.
pub struct Tree {
    census: Census,
    own: i32,
    marks: std::ops::Range<u64>,
    /// How many there are, ourselves included, where this sandbox's own kernel counts them for us (gVisor). There many
    /// processes that start and end take the time of a single program, which is ours too: each call that we make waits for
    /// theirs. So we make few.
    tally: Option<OwnedFd>,
}

impl Tree {
    /// Looks at `/proc`, and at the count if there is one.
    pub fn new(tally: Option<OwnedFd>) -> Self {
        let highest = getrlimit(Carrier::here().resource()).maximum.unwrap_or(u64::from(u32::MAX));
        let least = if highest > 2 * LEAST_OF_MANY { LEAST_OF_MANY } else { LEAST_OF_FEW };
        let marks = least..highest.max(least + 1);
        Self { census: Census::new(), own: std::process::id() as i32, marks, tally }
    }

    /// The mark for a job. Numbers come again only after hundreds of thousands of jobs.
    pub fn mark(&self, job: u32) -> Mark {
        Mark(self.marks.end - 1 - u64::from(job) % self.different_marks())
    }

    fn different_marks(&self) -> u64 {
        self.marks.end - self.marks.start
    }

    /// Whether a job has or had this mark. Jobs that were forgotten count too: what they left running is no secret.
    fn is_given(&self, mark: u64, last_job: u32) -> bool {
        if u64::from(last_job) >= self.different_marks() {
            return self.marks.contains(&mark);
        }
        (self.mark(last_job).0..=self.mark(1).0).contains(&mark)
    }

    /// Sends a signal once to all that are there now.
    pub fn signal(&self, members: Members, known: &Known, signal: i32) {
        if members == Members::All && self.own == 1 {
            sys::signal_namespace(signal);
            return;
        }
        let _still = self.stand_still();
        let mut pids = self.members(members, known);
        // First processes first: a shell whose children are killed before it would end by itself, and not by a signal.
        pids.sort_by_key(|pid| !known.first.contains(pid));
        pids.into_iter().for_each(|pid| send(pid, signal));
    }

    /// Kills all, and all that they start meanwhile. `look` is called between rounds: it reaps, and says what is known.
    pub async fn kill(&self, members: Members, look: impl Fn() -> Known) {
        for round in 0..ROUNDS {
            let known = look();
            if members == Members::All && self.own == 1 && self.tally.is_some() {
                if self.count() == 0 {
                    return;
                }
                self.stop_all();
                self.signal(members, &known, libc::SIGKILL);
                tokio::time::sleep(Duration::from_millis(1 + u64::from(round.min(10)))).await;
                continue;
            }
            let still = self.stand_still();
            let left = self.members(members, &known);
            if left.is_empty() {
                return;
            }
            if round >= PATIENT_ROUNDS {
                // What is stopped keeps its place among the processes that may be, so nothing new can be forked.
                left.iter().for_each(|&pid| send(pid, libc::SIGSTOP));
                self.members(members, &known).into_iter().for_each(|pid| send(pid, libc::SIGSTOP));
            }
            self.signal(members, &known, libc::SIGKILL);
            drop(still);
            look();
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
            self.signal(Members::All, &Known::default(), libc::SIGKILL);
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        let mut text = [0; 16];
        let counted = self.tally.as_ref().and_then(|tally| {
            let length = rustix::io::pread(tally, &mut text, 0).ok()?;
            std::str::from_utf8(&text[..length]).ok()?.trim().parse::<usize>().ok()
        });
        if let Some(counted) = counted {
            return counted.saturating_sub(1);
        }
        self.members(Members::All, &Known::default()).len()
    }

    fn members(&self, members: Members, known: &Known) -> Vec<i32> {
        let mut processes = self.census.take();
        // As PID 1 everything that we see is ours. Elsewhere only what descends from us is: we are its reaper.
        if self.own != 1 {
            let ours = processes.descendants(|process| process.parent == self.own);
            processes.keep(|pid| ours.contains(&pid));
        }
        processes.keep(|pid| pid != self.own);
        let Members::Job { mark, first } = members else { return processes.pids().collect() };
        processes.look_for_marks(&self.census);
        let mut chosen = processes.descendants(|process| {
            let of_first = |first| [process.pid, process.group, process.session].contains(&first);
            process.mark == Some(mark.0) || first.is_some_and(of_first)
        });
        let of_others = processes.descendants(|process| known.first.contains(&process.pid));
        let hiding = processes.pids().filter(|pid| !of_others.contains(pid));
        let hiding: Vec<_> =
            hiding.filter(|pid| processes.get(*pid).is_some_and(|one| self.hides(one, known))).collect();
        chosen.extend(hiding);
        chosen.into_iter().collect()
    }

    /// Where processes leave us no time to look at all of them, they stand still until this is dropped.
    fn stand_still(&self) -> Option<Still> {
        let alone = self.tally.is_some() && self.own == 1;
        let crowded = alone && self.census.take_before(Instant::now() + QUICK).is_none();
        crowded.then(|| {
            self.stop_all();
            Still
        })
    }

    fn stop_all(&self) {
        (0..STOPS).for_each(|_| sys::signal_namespace(libc::SIGSTOP));
    }

    /// What was put into the sandbox from outside has no parent in it. Nothing inside can make itself look like that.
    fn hides(&self, process: &Process, known: &Known) -> bool {
        process.parent != 0 && process.mark.is_some_and(|mark| !self.is_given(mark, known.last_job))
    }
}

/// Everything but us is stopped.
struct Still;

impl Drop for Still {
    fn drop(&mut self) {
        sys::signal_namespace(libc::SIGCONT);
    }
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

    /// Opened at the start, while the file still belongs to us, or by whoever started us.
    pub fn new(passed: Option<OwnedFd>) -> Self {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(CWD, "/proc/self/oom_score_adj", flags, Mode::empty()).ok().or(passed);
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
        let before = Tree::new(None).count();
        let mut child = std::process::Command::new("sleep").arg("5").spawn().unwrap_or_else(|error| panic!("{error}"));
        let tree = Tree::new(None);
        assert!(tree.census.take().pids().count() > tree.count());
        assert_eq!(tree.count(), before + 1);
        let _ = (child.kill(), child.wait());
    }

    #[test]
    fn a_lowered_mark_is_nobodys_unless_a_later_job_has_it() {
        let tree = Tree::new(None);
        assert!(tree.mark(1).0 > tree.mark(2).0);
        for job in 1..=5 {
            assert!(tree.is_given(tree.mark(job).0, 5));
        }
        for mark in [0, tree.mark(6).0, tree.marks.start, tree.mark(1).0 + 1, u64::MAX] {
            assert!(!tree.is_given(mark, 5), "{mark}");
        }
        assert!(!tree.is_given(tree.mark(1).0, 0));
        assert!(tree.is_given(tree.marks.start, u32::MAX) || tree.marks.end > u64::from(u32::MAX));
    }
}
