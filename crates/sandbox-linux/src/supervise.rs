//! Limits that no cgroup holds for an ordinary user: memory and fractions of a processor by looking at the sandbox's
//! processes, disk space as [`crate::disk`] measures it. What goes over is stopped, and the verdict says why.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    fs::{Dir, Mode, OFlags},
    process::Signal,
};
use sandbox_core::{Bytes, Usage};
use sandbox_executor::boot::Verdicts;

use crate::{
    disk::Stop,
    plan::Watch,
    pressure::{self, Memory, Shortage},
};

/// How often processes are looked at: nothing runs, all is well, the limit is near.
const IDLE: Duration = Duration::from_millis(250);
const CALM: Duration = Duration::from_millis(100);
const NEAR: Duration = Duration::from_millis(10);
/// What is stopped keeps its place among the processes that may be, so this is more than enough for any that forks.
const STILL_ROUNDS: u32 = 20;

/// Looks after one sandbox.
pub struct Supervisor {
    watch: Watch,
    proc: OwnedFd,
    page: OwnedFd,
    verdicts: Verdicts,
    processor: Processor,
    due: Instant,
}

/// Time used within the current period, and whether its processes are stopped for the rest of it.
struct Processor {
    since: Instant,
    used: Duration,
    stopped: bool,
}

/// All processes of a sandbox, at one moment.
#[derive(Default)]
struct Census {
    processes: Vec<Process>,
    /// Processor time of those that have ended and were the executor's to bury.
    ended: Duration,
}

struct Process {
    number: String,
    private: u64,
    /// Its own, and that of children that have ended.
    cpu: Duration,
    threads: u32,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    Stopped,
    Other,
}

impl Supervisor {
    /// `proc` is the sandbox's own `/proc`, `page` is where verdicts go.
    pub fn new(watch: Watch, proc: OwnedFd, page: OwnedFd) -> Self {
        let processor = Processor { since: Instant::now(), used: Duration::ZERO, stopped: false };
        Self { watch, proc, page, verdicts: Verdicts::default(), processor, due: Instant::now() }
    }

    /// When it wants to look again, if it has processes to look at.
    pub fn due(&self) -> Option<Instant> {
        self.watch.processes().then_some(self.due)
    }

    /// Looks at the processes, and stops what is over.
    pub fn look(&mut self, now: Instant) {
        let census = Census::take(self.proc.as_fd());
        self.due = now + if census.processes.is_empty() { IDLE } else { CALM };
        if let Some(limit) = self.watch.memory {
            let used = census.memory();
            if used > limit.0 {
                self.verdicts.memory += 1;
                self.verdicts.memory_used = used;
                self.publish();
                census.kill_largest(self.proc.as_fd());
                self.due = now + NEAR;
            } else if used > limit.0 / 10 * 6 {
                self.due = now + NEAR;
            }
            self.relieve(&census, used, now);
        }
        if let Some(limit) = self.watch.pids
            && census.threads() > limit
        {
            // Whoever is over the number is ended; the kernel would have refused to start it.
            census.signal_all(self.proc.as_fd(), Signal::KILL);
            self.due = now + NEAR;
        }
        if let Some(millis) = self.watch.cpu_millis {
            self.throttle(&census, millis, now);
        }
    }

    /// Ends everything in the sandbox but its executor because of the files that it keeps.
    pub fn stop_writing(&mut self, stop: Stop) {
        self.verdicts.disk += 1;
        self.verdicts.disk_used = stop.used.unwrap_or(u64::MAX);
        self.verdicts.trouble = stop.trouble;
        self.publish();
        let census = Census::take(self.proc.as_fd());
        census.processes.iter().for_each(|process| process.signal(self.proc.as_fd(), Signal::KILL));
    }

    /// The sandbox's `/proc`.
    pub fn proc(&self) -> BorrowedFd<'_> {
        self.proc.as_fd()
    }

    /// The limit for files.
    pub fn disk(&self) -> Option<Bytes> {
        self.watch.disk
    }

    /// Does something while nothing in the sandbox moves, but for what was standing still anyway.
    pub fn while_still<T>(&self, act: impl FnOnce() -> T) -> T {
        let mut stopped: Vec<Process> = Vec::new();
        for _ in 0..STILL_ROUNDS {
            let is_new = |process: &Process| {
                process.state != State::Stopped && stopped.iter().all(|known| known.number != process.number)
            };
            let new: Vec<_> = Census::take(self.proc.as_fd()).processes.into_iter().filter(is_new).collect();
            if new.is_empty() {
                break;
            }
            new.iter().for_each(|process| process.signal(self.proc.as_fd(), Signal::STOP));
            stopped.extend(new);
        }
        let result = act();
        stopped.iter().for_each(|process| process.signal(self.proc.as_fd(), Signal::CONT));
        result
    }

    /// What its processes use.
    pub fn usage(&self) -> Usage {
        let census = Census::take(self.proc.as_fd());
        let pids = census.threads();
        let cpu = census.cpu();
        Usage { memory: Bytes(census.memory()), cpu, pids, disk: Bytes(0) }
    }

    /// Looks for memory that is in nobody's sum when the machine runs short of it.
    fn relieve(&mut self, census: &Census, used: u64, now: Instant) {
        let shortage = Memory::of_machine().map_or(Shortage::None, Memory::shortage);
        if shortage == Shortage::None || census.processes.is_empty() {
            return;
        }
        self.due = now + NEAR;
        let numbers = census.processes.iter().map(|process| process.number.as_str());
        if shortage == Shortage::Now
            && let Some(number) = pressure::culprit(self.proc.as_fd(), numbers)
        {
            self.verdicts.memory += 1;
            self.verdicts.memory_used = used;
            self.publish();
            signal(self.proc.as_fd(), number, Signal::KILL);
        }
    }

    /// In every tenth of a second the sandbox may use its share; then its processes wait for the next.
    fn throttle(&mut self, census: &Census, millis: u32, now: Instant) {
        let period = Duration::from_millis(100);
        let used = census.cpu();
        if now - self.processor.since >= period {
            if self.processor.stopped {
                census.signal_all(self.proc.as_fd(), Signal::CONT);
            }
            self.processor = Processor { since: now, used, stopped: false };
        } else if !self.processor.stopped && used.saturating_sub(self.processor.used) * 1000 > period * millis {
            census.signal_all(self.proc.as_fd(), Signal::STOP);
            self.processor.stopped = true;
        }
        if !census.processes.is_empty() {
            self.due = now + NEAR;
        }
    }

    fn publish(&self) {
        let _ = rustix::io::pwrite(&self.page, &self.verdicts.to_bytes(), 0);
    }
}

impl Census {
    fn take(proc: BorrowedFd<'_>) -> Self {
        let Ok(entries) = Dir::read_from(proc) else { return Self::default() };
        let numbers = entries.flatten().filter_map(|entry| {
            let name = entry.file_name().to_str().ok()?;
            (name.bytes().all(|byte| byte.is_ascii_digit()) && name != "1").then(|| name.to_owned())
        });
        let processes = numbers.filter_map(|number| Process::look(proc, number)).collect();
        let ended = read(proc, "1/stat").and_then(|stat| time(&numbers_of(&stat)?, 13));
        Self { processes, ended: ended.unwrap_or_default() }
    }

    /// Time that was used never gets less: what a process used goes to its parent when it ends.
    fn cpu(&self) -> Duration {
        self.processes.iter().map(|process| process.cpu).sum::<Duration>() + self.ended
    }

    fn threads(&self) -> u32 {
        self.processes.iter().map(|process| process.threads).sum()
    }

    fn memory(&self) -> u64 {
        self.processes.iter().map(|process| process.private).sum()
    }

    fn kill_largest(&self, proc: BorrowedFd<'_>) {
        if let Some(largest) = self.processes.iter().max_by_key(|process| process.private) {
            largest.signal(proc, Signal::KILL);
        }
    }

    fn signal_all(&self, proc: BorrowedFd<'_>, signal: Signal) {
        self.processes.iter().for_each(|process| process.signal(proc, signal));
    }
}

impl Process {
    /// Private memory is what is resident less what has a file behind it; see proc_pid_statm(5), proc_pid_stat(5).
    fn look(proc: BorrowedFd<'_>, number: String) -> Option<Self> {
        let stat = read(proc, &format!("{number}/stat"))?;
        let fields = numbers_of(&stat)?;
        let threads = fields.get(17)?.parse().ok()?;
        let state = if fields.first() == Some(&"T") { State::Stopped } else { State::Other };
        let private = match pages(proc, &number)? {
            // A process whose first thread has ended shows its memory only at the others.
            0 if threads > 1 => pages_by_threads(proc, &number),
            pages => pages,
        };
        let private = private * rustix::param::page_size() as u64;
        let cpu = time(&fields, 11)? + time(&fields, 13)?;
        Some(Self { number, private, cpu, threads, state })
    }

    fn signal(&self, proc: BorrowedFd<'_>, with: Signal) {
        signal(proc, &self.number, with);
    }
}

/// A process's folder in `/proc` stands for it, so no number has to be translated or can be reused meanwhile.
fn signal(proc: BorrowedFd<'_>, number: &str, signal: Signal) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Ok(folder) = rustix::fs::openat(proc, number, flags, Mode::empty()) {
        let _ = rustix::process::pidfd_send_signal(&folder, signal);
    }
}

/// The name may hold anything, also spaces and parentheses; numbers start after its last parenthesis.
fn numbers_of(stat: &str) -> Option<Vec<&str>> {
    Some(stat.rsplit_once(") ")?.1.split(' ').collect())
}

/// Time in the user's code and in the kernel, which stand side by side.
fn time(fields: &[&str], at: usize) -> Option<Duration> {
    let ticks: u64 = fields.get(at)?.parse::<u64>().ok()? + fields.get(at + 1)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// Private pages of a process or thread.
fn pages(proc: BorrowedFd<'_>, folder: &str) -> Option<u64> {
    let statm = read(proc, &format!("{folder}/statm"))?;
    let mut pages = statm.split(' ').skip(1).map_while(|field| field.parse::<u64>().ok());
    let (resident, shared) = (pages.next()?, pages.next()?);
    Some(resident.saturating_sub(shared))
}

fn pages_by_threads(proc: BorrowedFd<'_>, number: &str) -> u64 {
    let folder = format!("{number}/task");
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(threads) = rustix::fs::openat(proc, &*folder, flags, Mode::empty()).and_then(Dir::new) else { return 0 };
    let names = threads.flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
    names.filter_map(|name| pages(proc, &format!("{folder}/{name}"))).find(|&pages| pages > 0).unwrap_or(0)
}

fn read(proc: BorrowedFd<'_>, path: &str) -> Option<String> {
    let file = rustix::fs::openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buffer = [0; 1024];
    let length = rustix::io::read(&file, &mut buffer).ok()?;
    Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
}
