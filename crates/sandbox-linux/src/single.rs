//! One command in a fresh sandbox, with this process as its launcher: no server, no database, nothing left behind.

use std::{
    fs, io,
    os::{fd::AsFd, unix::fs::DirBuilderExt},
    path::Path,
    time::Duration,
};

use sandbox_core::{
    Error, Facts, Result, SandboxSpec,
    exec::{Exec, Exit},
};
use sandbox_executor::boot::{Attachment, BootReport};

use crate::{
    birth::{Newborn, Nursery},
    folder,
    host::Host,
    launcher::sweep_trash,
    plan, probe, stage,
    supervise::Supervisor,
    wire,
};

/// Runs one command with this process's standard streams. Only for a process with a single thread: it changes its
/// namespaces, so nothing else should be done with it afterwards but to end.
pub fn run_single(state: &Path, spec: &SandboxSpec, exec: Exec) -> Result<Exit> {
    for name in ["sandboxes", "trash", "cache"] {
        let folder = state.join(name);
        if !folder.is_dir() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(Error::io("making folders"))?;
        }
    }
    let stage = stage::enter()
        .map_err(|error| probe::unusable(&format!("becoming root of a user namespace failed: {error}")))?;
    let host = Host::look(state, stage)?;
    let (mut plan, enforcement) = plan::plan(spec, &host, 0, Duration::ZERO)?;
    plan.boot.attachment = Attachment::Single(Box::new(exec));
    plan.confinement.die_with_launcher = true;
    let facts = Facts { spec: spec.clone(), backend: "linux".into(), enforcement };
    let lock = folder::make(&plan.folder, &facts)?;
    let ended = Nursery::new().and_then(|mut nursery| nursery.bear(&plan, &host).map_err(io::Error::other)).and_then(
        |newborn| {
            let watch = plan.watch.clone();
            let ended = wait(&newborn, watch);
            newborn.cgroup.remove();
            ended
        },
    );
    let trash = state.join("trash").join(&plan.name);
    if fs::rename(&plan.folder, &trash).is_ok() {
        remove(&trash);
    }
    drop(lock);
    ended.map_err(|error| Error::Step { step: "the embedded backend".into(), why: error.to_string() })
}

/// Most sandboxes leave a handful of empty folders; what they filled is removed all the same.
fn remove(folder: &Path) {
    if fs::remove_dir_all(folder).is_err()
        && let Some(trash) = folder.parent()
    {
        sweep_trash(trash);
    }
}

/// Looks after the sandbox until its executor has said how the command ended, and then until it is gone.
fn wait(newborn: &Newborn, watch: plan::Watch) -> io::Result<Exit> {
    let mut supervisor = None;
    let exit = loop {
        let mut buffer = [0; 4096];
        if ready(newborn, supervisor.as_mut())? {
            let length = rustix::io::read(&newborn.status, &mut buffer)?;
            break decode(&buffer[..length]);
        }
        if supervisor.is_none() && watch.processes() {
            let (_, mut descriptors) = wire::receive(newborn.sync.as_fd(), &mut [0; 16])?;
            if let Some(proc) = descriptors.pop() {
                supervisor = Some(Supervisor::new(watch.clone(), proc, newborn.verdicts.try_clone()?));
            }
        }
    };
    let options = rustix::process::WaitIdOptions::EXITED;
    let _ = rustix::process::waitid(rustix::process::WaitId::PidFd(newborn.process.child.as_fd()), options);
    exit
}

/// Whether the executor has something to say; meanwhile the supervisor looks when it wants to.
fn ready(newborn: &Newborn, supervisor: Option<&mut Supervisor>) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = std::time::Instant::now();
    let watching = supervisor.is_some();
    let due = supervisor.as_ref().and_then(|supervisor| supervisor.due());
    let left = due.map(|due| due.saturating_duration_since(now));
    let timeout = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
    let mut descriptors = vec![PollFd::new(&newborn.status, PollFlags::IN)];
    if !watching {
        descriptors.push(PollFd::new(&newborn.sync, PollFlags::IN));
    }
    match poll(&mut descriptors, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let said = !descriptors[0].revents().is_empty();
    if let Some(supervisor) = supervisor
        && due.is_some_and(|due| due <= std::time::Instant::now())
    {
        supervisor.look(std::time::Instant::now());
    }
    Ok(said)
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
