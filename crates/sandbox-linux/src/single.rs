//! One command in a fresh sandbox, with this process as its launcher: no server, no database, nothing left behind.

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::Path,
    time::{Duration, Instant},
};

use sandbox_core::{
    Door, Error, Facts, Result, SandboxSpec,
    exec::{Exec, Exit},
};
use sandbox_executor::boot::{Attachment, BootReport};

use crate::{
    aside::{Aside, Leash},
    birth::{self, Newborn, Nursery},
    disk::{self, Free, Ledger, Occasion},
    executor_image, folder,
    host::Host,
    images,
    network::Network,
    plan::{self, Plan},
    prepared::Prepared,
    probe,
    seccomp::Chosen,
    spare::{Shelf, Stamp},
    stage,
    supervise::Supervisor,
    sys,
};

const DISK_EVERY: Duration = Duration::from_secs(1);

/// What became of one command.
pub struct Single {
    /// How it ended.
    pub exit: Exit,
    /// What `serve` handed over.
    pub account: Option<Vec<u8>>,
    /// It failed, and something in it wanted to leave a network that leads nowhere.
    pub wanted_network: bool,
}

/// Runs one command with this process's standard streams. Only for a process with a single thread: it changes its
/// namespaces, so nothing else should be done with it afterwards but to end.
///
/// Where the policy reaches something, `serve` is called in a process of its own when something inside connects. The account
/// that it hands over comes with the answer.
pub fn run_single(
    state: &Path,
    spec: &SandboxSpec,
    exec: Exec,
    serve: impl FnOnce(Vec<(Door, OwnedFd)>, &Leash),
) -> Result<Single> {
    for name in ["sandboxes", "trash", "spare", "cache"] {
        let folder = state.join(name);
        if !folder.is_dir() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(Error::io("making folders"))?;
        }
    }
    // Before this process becomes somebody else.
    let calls = Chosen::find(&spec.policy.privileges)?;
    let aside = spec.policy.reaches_something().then(|| Aside::stay(serve)).transpose();
    let aside = aside.map_err(Error::io("leaving a process behind for the way out"))?;
    let stage = stage::enter()
        .map_err(|error| probe::unusable(&format!("becoming root of a user namespace failed: {error}")))?;
    let host = Host::look(state, stage)?;
    // Until it is linked to.
    let standing = images::stand(spec, &host)?;
    let mut prepared = Prepared::for_spec(&standing.spec, &host)?;
    prepared.named = standing.named.clone();
    let (mut plan, enforcement) = plan::plan(&standing.spec, &calls, &host, &prepared, 0, Duration::ZERO)?;
    plan.boot.attachment = Attachment::Single(Box::new(exec));
    plan.confinement.die_with_launcher = true;
    // With a new label the kernel forgets it, and the executor has to say it again.
    plan.boot.die_with_parent |= plan.confinement.label.is_some();
    let facts = Facts { spec: spec.clone(), backend: "linux".into(), enforcement };
    let lock = folder::make(state, &plan.folder)?;
    let mut before = None;
    let ended = birth::make_folders(&plan).map_err(io::Error::other).and_then(|()| {
        before = Stamp::of(&plan.folder);
        let newborn = start(state, &plan, &host).inspect_err(|_| {
            host.cgroup.remove(&plan.name);
        })?;
        let handed_over = hand_over(&newborn, &plan, aside.as_ref());
        // For others who list sandboxes; this one does not wait for it.
        let _ = folder::describe(&plan.folder, &facts);
        let ended = match handed_over {
            Ok(()) => wait(&newborn, &plan),
            Err(error) => {
                birth::end(&newborn.process.child);
                Err(error)
            }
        };
        newborn.cgroup.remove();
        let exit = ended?;
        let failed = !matches!(exit, Exit::Code(0));
        Ok((exit, failed && newborn.network.as_ref().is_some_and(Network::was_too_small)))
    });
    Shelf::of(state).retire(&plan.folder, Some(lock), before);
    let account = aside.and_then(Aside::end);
    let told = |error: io::Error| Error::Step { step: "the embedded backend".into(), why: error.to_string() };
    let (exit, wanted_network) = ended.map_err(told)?;
    Ok(Single { exit, account, wanted_network })
}

fn start(state: &Path, plan: &Plan, host: &Host) -> io::Result<Newborn> {
    let executor = match host.bwrap {
        // bwrap's child is known by what it executes.
        Some(_) => executor_image::load()?,
        None => executor_image::load_cached(&state.join("cache"))?,
    };
    Nursery::new(executor)?.bear(plan, host).map_err(io::Error::other)
}

/// Gives the doors of the way out to the process that stayed behind. Where the network is not ours the executor opens them,
/// and says so before the command starts.
fn hand_over(newborn: &Newborn, plan: &Plan, aside: Option<&Aside>) -> io::Result<()> {
    let opened = match plan.boot.proxy {
        Some(_) => newborn.contact.ready().map_err(io::Error::other)?,
        None => None,
    };
    match (aside, newborn.network.as_ref().or(opened.as_ref())) {
        (Some(aside), Some(network)) => aside.hand_over(&network.doors),
        _ => Ok(()),
    }
}

/// Looks after the sandbox until its executor has said how the command ended, and then until it is gone.
fn wait(newborn: &Newborn, plan: &Plan) -> io::Result<Exit> {
    // The sandbox's /proc comes first, unless there will be no sandbox.
    if let Some(mut supervisor) = newborn.contact.supervisor(plan.watch.clone()) {
        let mut disk =
            Disk { due: Instant::now() + DISK_EVERY, occasion: Occasion::default(), ledger: Ledger::default() };
        while !said_something(newborn, supervisor.due().map_or(disk.due, |due| due.min(disk.due)))? {
            let now = Instant::now();
            if supervisor.due().is_some_and(|due| due <= now) {
                supervisor.look(now);
            }
            disk.look(now, plan, &mut supervisor);
        }
    }
    let mut buffer = [0; 4096];
    let length = rustix::io::read(&newborn.contact.status, &mut buffer)?;
    let options = rustix::process::WaitIdOptions::EXITED;
    let _ = rustix::process::waitid(rustix::process::WaitId::PidFd(newborn.process.child.as_fd()), options);
    decode(&buffer[..length])
}

/// Waits for the executor's word, no longer than until `due`.
fn said_something(newborn: &Newborn, due: Instant) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let left = due.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match poll(&mut [PollFd::new(&newborn.contact.status, PollFlags::IN)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Measures files when there is an occasion.
struct Disk {
    due: Instant,
    occasion: Occasion,
    ledger: Ledger,
}

impl Disk {
    fn look(&mut self, now: Instant, plan: &Plan, supervisor: &mut Supervisor) {
        if self.due > now {
            return;
        }
        self.due = now + DISK_EVERY;
        let (Ok(free), began) = (Free::at(&plan.folder), sys::processor_time()) else { return };
        if !self.occasion.is_now(free, now) {
            return;
        }
        let look = || disk::look(&plan.folder, Some(supervisor.proc()));
        let look = if self.ledger.is_puzzled() { supervisor.while_still(look) } else { look() };
        let Ok(after) = Free::at(&plan.folder) else { return };
        for (_, stop) in self.ledger.judge([free, after], 0, &[(0, look, supervisor.disk())]) {
            supervisor.stop_writing(stop);
        }
        let worked = sys::processor_time().saturating_sub(began);
        self.occasion.passed(now, [worked, now.elapsed()], self.ledger.saw_all());
    }
}

fn decode(bytes: &[u8]) -> io::Result<Exit> {
    if let Ok(exit) = rmp_serde::from_slice::<Exit>(bytes) {
        return Ok(exit);
    }
    match rmp_serde::from_slice::<BootReport>(bytes) {
        Ok(BootReport::Failed(why)) => Err(io::Error::other(why)),
        _ => Err(io::Error::other("the executor ended without saying how")),
    }
}
