//! Many sandboxes: how fast they are made, what an idle one costs, and a thousand of them.

use std::{
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

use crate::{
    clock::Samples,
    memory::{Group, Moment},
    ours::Embedded,
    rivals::Docker,
};

/// As many as the machine has processors.
const WORKERS: usize = 2;
/// How many are made in a turn.
const RATE_OURS: usize = 100;
const RATE_DOCKER: usize = 8;

/// Sandboxes made per second.
pub struct Rates {
    /// Ours.
    pub ours: f64,
    /// `docker run -d`.
    pub docker: Option<f64>,
}

/// How many are made per second by two workers: `turns` turns of both, the medians of their rates. The machine's own
/// speed changes within seconds, so turns are short.
pub fn rates(embedded: &Embedded, docker: Option<&Docker>, turns: usize) -> Result<Rates> {
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for _ in 0..turns {
        settle();
        let (idle, _, time) = embedded.make_idle(RATE_OURS, WORKERS)?;
        embedded.remove(idle, WORKERS)?;
        ours.add(time / RATE_OURS as u32);
        if let Some(docker) = docker {
            settle();
            let start = Instant::now();
            let containers = start_containers(docker, RATE_DOCKER)?;
            theirs.add(start.elapsed() / RATE_DOCKER as u32);
            docker.remove(&containers)?;
        }
    }
    let per_second = |each: &Samples| 1000.0 / each.median();
    Ok(Rates { ours: per_second(&ours), docker: docker.map(|_| per_second(&theirs)) })
}

/// What one idle sandbox costs, in KiB.
#[derive(Clone, Copy, Debug)]
pub struct Footprint {
    /// What the kernel holds for it.
    pub kernel: f64,
    /// Proportional set size of all processes that came with it, where we may read it.
    pub processes: Option<f64>,
    /// Loss of free memory, as a check: it leaves out programs in the file cache, and the machine does other things.
    pub machine: f64,
}

impl Footprint {
    /// Everything together.
    pub fn all(&self) -> f64 {
        self.processes.map_or(self.machine, |processes| processes + self.kernel)
    }
}

/// Ours and docker's.
pub struct Footprints {
    /// Ours.
    pub ours: Footprint,
    /// Docker's.
    pub docker: Option<Footprint>,
}

/// What one idle sandbox costs: the difference that many make, divided. The middle of three tries, since the machine does
/// other things as well.
pub fn footprints(embedded: &Embedded, docker: Option<&Docker>, ours: usize, theirs: usize) -> Result<Footprints> {
    let (mut own, mut other) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        own.push(footprint(
            ours,
            &Group::Own,
            || Ok(embedded.make_idle(ours, WORKERS)?.0),
            |idle| embedded.remove(idle, WORKERS).map(drop),
        )?);
        if let Some(docker) = docker {
            let group = Group::Marked(docker.mark());
            other.push(footprint(theirs, &group, || start_containers(docker, theirs), |all| docker.remove(&all))?);
        }
    }
    let ours = middle(own).ok_or_else(|| anyhow!("nothing was measured"))?;
    Ok(Footprints { ours, docker: middle(other) })
}

fn footprint<T>(
    count: usize,
    group: &Group,
    make: impl FnOnce() -> Result<T>,
    remove: impl FnOnce(T) -> Result<()>,
) -> Result<Footprint> {
    settle();
    let before = Moment::now(group)?;
    let made = make()?;
    settle();
    let after = Moment::now(group)?;
    remove(made)?;
    let each = |after: f64, before: f64| (after - before) / count as f64;
    Ok(Footprint {
        machine: each(after.machine, before.machine),
        kernel: each(after.kernel, before.kernel),
        processes: after.processes.zip(before.processes).map(|(after, before)| each(after, before)),
    })
}

/// What was freed is given back a little later.
fn settle() {
    thread::sleep(Duration::from_millis(1500));
}

fn middle(mut tries: Vec<Footprint>) -> Option<Footprint> {
    tries.sort_by(|a, b| a.all().total_cmp(&b.all()));
    tries.get(tries.len() / 2).copied()
}

/// A thousand at once.
pub struct Crowd {
    /// How many.
    pub count: usize,
    /// Time to make all.
    pub made: Duration,
    /// Time that each took to be ready.
    pub ready: Samples,
    /// Time of one `true` in each.
    pub execs: Samples,
    /// Time to remove all.
    pub removed: Duration,
}

/// Makes so many, runs a command in each while all are there, and removes all.
pub fn crowd(embedded: &Embedded, count: usize) -> Result<Crowd> {
    let (idle, ready, made) = embedded.make_idle(count, WORKERS)?;
    let execs = embedded.exec_in_each(&idle, WORKERS)?;
    let removed = embedded.remove(idle, WORKERS)?;
    Ok(Crowd { count, made, ready: ready.into_iter().collect(), execs: execs.into_iter().collect(), removed })
}

fn start_containers(docker: &Docker, count: usize) -> Result<Vec<String>> {
    let left = Mutex::new(count);
    let take = || left.lock().is_ok_and(|mut left| left.checked_sub(1).map(|rest| *left = rest).is_some());
    thread::scope(|scope| {
        let worker = || {
            let mut made = Vec::new();
            while take() {
                made.push(docker.start_idle()?);
            }
            Ok::<_, anyhow::Error>(made)
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.join().map_err(|_| anyhow!("a thread panicked"))??);
        }
        Ok(all)
    })
}
