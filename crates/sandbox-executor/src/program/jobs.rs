//! Jobs: started commands, how they ended, and what is kept of their output.
//!
//! Bounded in every way: jobs that run, jobs that are remembered, output of each and of all together.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    os::fd::OwnedFd,
    rc::Rc,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use sandbox_core::{
    Control, JobId,
    exec::{Ending, Exec, Exit, Job as Summary, Stream},
};
use sandbox_executor::protocol::{Failure, Reason};
use tokio::sync::Notify;

use super::{
    counters::{Counters, Counts},
    failure::{failed, shortened},
    history::History,
    input::Input,
    tree::{Known, Mark, Members},
};

/// Jobs that run at once.
const MAX_RUNNING: usize = 1024;
/// Jobs that have ended and are remembered.
const MAX_ENDED: usize = 256;
/// The output of all jobs together, in histories of one job.
const TOTAL_HISTORIES: usize = 4;
/// Bytes of a command in a listing: one of all jobs fits into a frame.
const SHOWN_COMMAND: usize = 200;

/// One job.
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Where its input goes, if it has one.
    pub input: Option<Input>,
    /// Our end of its terminal, if it has one.
    pub terminal: Option<OwnedFd>,
    command: String,
    mark: Mark,
    pid: i32,
    before: Counts,
    started: Instant,
    stopped_for: Cell<Option<Control>>,
    exit: Cell<Option<(Exit, Duration)>>,
    ending: Cell<Ending>,
    time: Option<Duration>,
    complete: Cell<bool>,
    history: RefCell<Option<History>>,
    changed: Notify,
}

/// What a job is made from.
pub struct Start<'a> {
    /// What was asked for.
    pub exec: &'a Exec,
    /// Its number, from [`Jobs::next`].
    pub id: JobId,
    /// Its mark.
    pub mark: Mark,
    /// Its first process.
    pub pid: i32,
    /// The counters before it was started.
    pub before: Counts,
    /// Its input.
    pub input: Option<Input>,
    /// Its terminal.
    pub terminal: Option<OwnedFd>,
    /// Output to keep of it; nothing where it goes straight to somebody.
    pub history: Option<u64>,
}

impl Job {
    /// How its first process ended, and after how long.
    pub fn exit(&self) -> Option<(Exit, Duration)> {
        self.exit.get()
    }

    /// What else is known about its end.
    pub fn ending(&self) -> Ending {
        self.ending.get()
    }

    /// Waits for the end of its first process.
    pub async fn ended(&self) -> (Exit, Duration) {
        loop {
            let changed = self.changed.notified();
            if let Some(exit) = self.exit.get() {
                return exit;
            }
            changed.await;
        }
    }

    /// Its processes. Once its first has ended, that one's number may be another's.
    pub fn members(&self) -> Members {
        Members::Job { mark: self.mark, first: self.exit.get().is_none().then_some(self.pid) }
    }

    /// Says that it is being stopped because of a limit.
    pub fn stop_for(&self, control: Control) {
        self.stopped_for.set(Some(control));
    }

    /// Says that all output of its first process is in the history.
    pub fn complete(&self) {
        self.complete.set(true);
        self.changed.notify_waiters();
    }

    /// Whether its end may be told.
    pub fn is_complete(&self) -> bool {
        self.complete.get()
    }

    /// Wakes up who waits for a change.
    pub fn touch(&self) {
        self.changed.notify_waiters();
    }

    /// Something about it will change.
    pub fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// Looks at what is kept, if anything is.
    pub fn with_history<T>(&self, look: impl FnOnce(&History) -> T) -> Option<T> {
        self.history.borrow().as_ref().map(look)
    }

    fn summary(&self) -> Summary {
        let exit = self.exit.get().filter(|_| self.complete.get());
        let (first_offset, next_offset) = self.with_history(|kept| (kept.first(), kept.next())).unwrap_or_default();
        Summary {
            id: self.id,
            command: self.command.clone(),
            exit: exit.map(|(exit, _)| exit),
            elapsed: exit.map_or_else(|| self.started.elapsed(), |(_, elapsed)| elapsed),
            first_offset,
            next_offset,
        }
    }
}

/// All jobs.
pub struct Jobs {
    known: RefCell<BTreeMap<JobId, Rc<Job>>>,
    last: Cell<u32>,
    kept: Cell<usize>,
    most_kept: usize,
}

impl Jobs {
    /// None yet; each keeps so much output.
    pub fn new(history: u64) -> Self {
        let most_kept = usize::try_from(history).unwrap_or(usize::MAX).saturating_mul(TOTAL_HISTORIES);
        Self { known: RefCell::default(), last: Cell::new(0), kept: Cell::new(0), most_kept }
    }

    /// The number of the next job, if there may be one.
    pub fn next(&self) -> Result<JobId, Failure> {
        if self.running() >= MAX_RUNNING {
            let what = format!("{MAX_RUNNING} commands run in this sandbox already; end some first");
            return Err(failed(Reason::TooMany, what));
        }
        self.last.set(self.last.get().wrapping_add(1).max(1));
        Ok(JobId(self.last.get()))
    }

    /// Adds a started job.
    pub fn add(&self, start: Start<'_>) -> Rc<Job> {
        let job = Rc::new(Job {
            id: start.id,
            mark: start.mark,
            input: start.input,
            terminal: start.terminal,
            command: shortened(start.exec.program.to_string(), SHOWN_COMMAND),
            pid: start.pid,
            before: start.before,
            started: Instant::now(),
            stopped_for: Cell::new(None),
            exit: Cell::new(None),
            ending: Cell::default(),
            time: start.exec.timeout,
            complete: Cell::new(false),
            history: RefCell::new(start.history.map(History::new)),
            changed: Notify::new(),
        });
        self.known.borrow_mut().insert(job.id, Rc::clone(&job));
        self.forget_oldest();
        job
    }

    /// The job with this id.
    pub fn find(&self, id: JobId) -> Result<Rc<Job>, Failure> {
        let unknown = || failed(Reason::NotFound, format!("there is no {id}: it never was, or was forgotten"));
        self.known.borrow().get(&id).cloned().ok_or_else(unknown)
    }

    /// All jobs as they stand.
    pub fn list(&self) -> Vec<Summary> {
        self.known.borrow().values().map(|job| job.summary()).collect()
    }

    /// How many have not ended.
    pub fn running(&self) -> usize {
        self.known.borrow().values().filter(|job| job.exit.get().is_none()).count()
    }

    /// What tells the processes of jobs from others.
    pub fn known(&self) -> Known {
        let known = self.known.borrow();
        let running = known.values().filter(|job| job.exit.get().is_none());
        Known { first: running.map(|job| job.pid).collect(), last_job: self.last.get() }
    }

    /// Drops a job whose program did not start, and ends its process.
    pub fn abandon(&self, job: &Job) {
        if job.exit.get().is_none() {
            // Nobody else waits for it, so the number is still its own.
            let _ = Pid::from_raw(job.pid).map(|pid| kill_process(pid, Signal::KILL));
            job.exit.set(Some((Exit::Signal(libc::SIGKILL), job.started.elapsed())));
        }
        job.complete();
        self.drop_job(job.id);
    }

    /// Drops a job that has ended.
    pub fn forget(&self, id: JobId) -> Result<(), Failure> {
        let job = self.find(id)?;
        if !job.complete.get() {
            let what = format!("{id} is still running: end it before it can be forgotten");
            return Err(failed(Reason::Invalid, what));
        }
        self.drop_job(id);
        Ok(())
    }

    /// Adds output to a job's history, at the expense of what is oldest.
    pub fn push(&self, job: &Job, stream: Stream, data: &[u8]) {
        let mut history = job.history.borrow_mut();
        if let Some(history) = history.as_mut() {
            let before = history.cost();
            history.push(stream, data);
            self.kept.set((self.kept.get() + history.cost()).saturating_sub(before));
        }
        drop(history);
        self.balance();
        job.changed.notify_waiters();
    }

    /// Takes note of every process that has ended.
    pub fn reap(&self, counters: &Counters) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let pid = pid.as_raw_nonzero().get();
            let job = self.known.borrow().values().find(|job| job.pid == pid && job.exit.get().is_none()).cloned();
            let (Some(job), Some(ended)) = (job, exit_of(status)) else { continue };
            let (judged, ending) = counters.judge(job.before, ended);
            let exit = job.stopped_for.get().map_or(judged, Exit::Limit);
            let time = job.time.filter(|_| exit == Exit::Limit(Control::Time));
            job.ending.set(Ending { time, ..ending });
            job.exit.set(Some((exit, job.started.elapsed())));
            job.changed.notify_waiters();
        }
    }

    /// All output together is bounded: jobs that have ended give first.
    fn balance(&self) {
        let known = self.known.borrow();
        let (ended, running): (Vec<_>, Vec<_>) = match self.kept.get() > self.most_kept {
            true => known.values().partition(|job| job.exit.get().is_some()),
            false => return,
        };
        for job in ended.into_iter().chain(running) {
            let excess = self.kept.get().saturating_sub(self.most_kept);
            if excess == 0 {
                return;
            }
            if let Some(history) = job.history.borrow_mut().as_mut() {
                let before = history.cost();
                if before <= excess {
                    history.clear()
                } else {
                    history.drop_oldest(excess)
                }
                self.kept.set((self.kept.get() + history.cost()).saturating_sub(before));
            }
        }
    }

    fn forget_oldest(&self) {
        let ended: Vec<JobId> = {
            let known = self.known.borrow();
            known.values().filter(|job| job.complete.get()).map(|job| job.id).collect()
        };
        for id in ended.iter().take(ended.len().saturating_sub(MAX_ENDED)) {
            self.drop_job(*id);
        }
    }

    /// What is left running of it still writes, but nobody keeps that.
    fn drop_job(&self, id: JobId) {
        let job = self.known.borrow_mut().remove(&id);
        if let Some(history) = job.and_then(|job| job.history.take()) {
            self.kept.set(self.kept.get().saturating_sub(history.cost()));
        }
    }
}

/// How a process ended, if this says so.
pub fn exit_of(status: WaitStatus) -> Option<Exit> {
    status.exit_status().map(Exit::Code).or_else(|| status.terminating_signal().map(Exit::Signal))
}
