//! Starting the runtime: a process of its own becomes it, in a PID namespace that dies with it, in a mount namespace that
//! nobody else sees, in the sandbox's cgroup, and killed with its keeper.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    mount::{MountFlags, MountPropagationFlags},
    pipe::PipeFlags,
    process::{Signal, WaitId, WaitIdOptions},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};
use sandbox_executor::boot::TOKEN;
use sandbox_linux::{
    cgroup::CgroupHost,
    enact, seccomp,
    sys::{self, Cloned},
};

use crate::{plan::Plan, runtime::Kind, view};

/// Rounds of looking for processes that are not in their cgroup yet.
const ROUNDS: u32 = 20;

/// What an executor is known by. Commands that have its user can find its socket, but they never see this.
pub type Word = [u8; TOKEN];

/// A runtime that was started.
pub struct Started {
    /// Stands for our child: killing it ends everything.
    pub pidfd: OwnedFd,
    /// What it complains about.
    pub complaints: OwnedFd,
    /// What its executor says first on each connection.
    pub word: Word,
    /// Open as long as we live.
    _life: OwnedFd,
}

/// Starts it, as the first process of a PID namespace. Only for a process with a single thread.
pub fn start(plan: &Plan) -> io::Result<Started> {
    let [(complaints, their_complaints), (their_life, life), (their_word, word_in)] = [pipe()?, pipe()?, pipe()?];
    let mut word = [0; TOKEN];
    getrandom::fill(&mut word).map_err(|error| io::Error::other(error.to_string()))?;
    rustix::io::write(&word_in, &word)?;
    drop(word_in);
    match sys::clone(UnshareFlags::NEWPID.bits() as i32, None)? {
        Cloned::Child => {
            drop((complaints, life));
            become_runtime(plan, &their_complaints, &their_life, their_word)
        }
        Cloned::Parent { pidfd, .. } => Ok(Started { pidfd, complaints, word, _life: life }),
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?)
}

/// Becomes the runtime, or says why not.
fn become_runtime(plan: &Plan, complaints: &OwnedFd, life: &OwnedFd, word: OwnedFd) -> ! {
    let why = match prepare(plan, complaints, life, word) {
        Ok(mut command) => format!("{}: {}", plan.runtime.path.display(), command.exec()),
        Err(why) => why,
    };
    let _ = rustix::io::write(complaints, why.as_bytes());
    sys::exit_now(70)
}

fn prepare(plan: &Plan, complaints: &OwnedFd, life: &OwnedFd, word: OwnedFd) -> Result<Command, String> {
    let failed = |step: &'static str| move |error: io::Error| format!("{step} failed: {error}");
    die_with_keeper(life).map_err(failed("tying to the keeper"))?;
    let _ = rustix::process::setpriority_process(None, 0);
    rustix::process::setsid().map_err(io::Error::from).map_err(failed("leaving the session"))?;
    enter_cgroup(plan).map_err(failed("entering the cgroup"))?;
    if let Some(count) = plan.processors {
        enact::limit_processors(count).map_err(failed("limiting processors"))?;
    }
    leave_mounts().map_err(failed("leaving the mount namespace"))?;
    view::build(plan)?;
    let complaints = complaints.try_clone().map_err(failed("passing on complaints"))?;
    let mut command = Command::new(view::RUNTIME);
    command.arg0(plan.runtime.name()).args(plan.runtime.arguments(&plan.name)).current_dir("/");
    command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command.stdin(word).stdout(Stdio::null()).stderr(complaints);
    if plan.runtime.kind == Kind::Gvisor {
        start_sooner();
    }
    Ok(command)
}

/// gVisor starts itself seven times over for one sandbox, and asks each time for memory barriers, for which the kernel
/// waits until every processor was idle once: some 10 ms. Without them it starts a fifth sooner, and commands see a kernel
/// without membarrier(2), which programs do without. Where it cannot be had, it only takes longer.
fn start_sooner() {
    if let Some(filter) = seccomp::lacking("membarrier") {
        let _ = sys::filter_system_calls(&filter);
    }
}

/// Who has died before that is noticed by what it no longer holds open.
fn die_with_keeper(life: &OwnedFd) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut watched = [PollFd::new(life, PollFlags::empty())];
    poll(&mut watched, Some(&Timespec::default()))?;
    match watched[0].revents().contains(PollFlags::HUP) {
        true => Err(io::ErrorKind::BrokenPipe.into()),
        false => Ok(()),
    }
}

/// While this process has a single thread, which `tasks` of version 1 takes without waiting for anything. There the share of
/// the processor is limited later, see [`weigh`].
fn enter_cgroup(plan: &Plan) -> io::Result<()> {
    let files: Vec<PathBuf> = match &plan.cgroup {
        CgroupHost::V2 { parent, .. } => vec![parent.join(&plan.name).join("cgroup.procs")],
        CgroupHost::V1 { parents } => {
            let early = parents.iter().filter(|(controller, _)| !controller.starts_with("cpu"));
            early.map(|(_, parent)| parent.join(&plan.name).join("tasks")).collect()
        }
        CgroupHost::None { .. } => Vec::new(),
    };
    files.into_iter().try_for_each(|file| fs::write(file, "0"))
}

/// Limits the share of the processor of all that was started. Sandboxes weigh little against others, and starting a kernel
/// is our work, not theirs: on a busy machine it would take ten times as long.
pub fn weigh(plan: &Plan) -> io::Result<()> {
    let CgroupHost::V1 { parents } = &plan.cgroup else { return Ok(()) };
    let members = |parent: &Path| fs::read_to_string(parent.join(&plan.name).join("cgroup.procs")).unwrap_or_default();
    let late = || parents.iter().filter(|(controller, _)| controller.starts_with("cpu")).map(|(_, parent)| parent);
    let Some((_, all)) = parents.iter().find(|(controller, _)| !controller.starts_with("cpu")) else { return Ok(()) };
    for parent in late() {
        // What is forked meanwhile by who is not in yet is found in the next round.
        for _ in 0..ROUNDS {
            let inside = members(parent);
            let missing: Vec<String> = members(all)
                .lines()
                .filter(|process| !inside.lines().any(|found| found == *process))
                .map(str::to_owned)
                .collect();
            if missing.is_empty() {
                break;
            }
            for process in missing {
                // It may have ended.
                let _ = fs::write(parent.join(&plan.name).join("cgroup.procs"), process);
            }
        }
        if members(parent).is_empty() {
            return Err(io::Error::other("no process could be put into the cgroup for processors"));
        }
    }
    Ok(())
}

/// Gives the sandbox its share of what the kernel counts for a user. Only from within its user namespace can that be said,
/// and a runtime lets nobody in there say it.
pub fn share(plan: &Plan, executor: &OwnedFd) -> io::Result<()> {
    if plan.counts.is_empty() {
        return Ok(());
    }
    let executor = rustix::net::sockopt::socket_peercred(executor)?.pid;
    let namespace = File::open(format!("/proc/{}/ns/user", executor.as_raw_nonzero()))?;
    match sys::clone(0, None)? {
        Cloned::Child => {
            let shared = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User))
                .map_err(io::Error::from)
                .and_then(|()| {
                    let mut counts = plan.counts.iter();
                    counts.try_for_each(|(name, count)| {
                        fs::write(Path::new("/proc/sys/user").join(name), count.to_string())
                    })
                });
            sys::exit_now(shared.map_or(1, |()| 0))
        }
        Cloned::Parent { pidfd, .. } => {
            let ended = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED)?;
            match ended.and_then(|ended| ended.exit_status()) {
                Some(0) => Ok(()),
                _ => Err(io::Error::other("its share of watches could not be set")),
            }
        }
    }
}

/// With a `/proc` of the new PID namespace, in which numbers are as we count them.
fn leave_mounts() -> io::Result<()> {
    sys::unshare(UnshareFlags::NEWNS)?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(rustix::mount::mount("proc", Path::new("/proc"), "proc", flags, None)?)
}
