//! Makes a sandbox from the inside: runs in the new process, walks the plan, and becomes the executor.
//!
//! The process was forked from the launcher, which has one thread and no secrets. A step that fails ends it; its name,
//! its arguments and the kernel's answer go back over the status descriptor.

use std::{
    collections::VecDeque,
    ffi::CString,
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, UnmountFlags},
    process::Signal,
    thread::{CapabilitySet, CapabilitySets, UnshareFlags},
};
use sandbox_executor::boot::{BootReport, SCORE_FD, STATUS_FD};

use crate::{
    counts::{Counts, TERMINALS},
    landlock,
    layers::{self, Layers, attach, clone_tree},
    places,
    plan::{Confinement, Plan, RootSource},
    steps::{Access, Step},
    sys::{self, Instruction},
    wall::{self, Wall},
    wire,
};

/// Where the launcher says that a descriptor belongs which is not for the executor: a file of the cgroup, to be entered.
pub const ENTRY: i32 = 0;

/// Numbers from here on are not the executor's, nor used on the way to them.
pub const OUT_OF_THE_WAY: i32 = 128;

/// What the new process takes along.
pub struct Baggage<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Where the launcher says go and sends supplies, and gets `/proc` from.
    pub sync: BorrowedFd<'a>,
    /// The executor's program.
    pub executor: BorrowedFd<'a>,
    /// The filter for system calls.
    pub filter: &'a [Instruction],
    /// Standard streams of the executor, where they are not this process's own.
    pub null: Option<BorrowedFd<'a>>,
    /// See [`STATUS_FD`].
    pub status: BorrowedFd<'a>,
}

/// A step that failed.
struct Failed {
    step: String,
    why: io::Error,
}

/// Becomes the executor of a new sandbox, or reports why not and ends.
pub fn become_executor(baggage: &Baggage<'_>) -> ! {
    let Err(Failed { step, why }) = enact(baggage);
    report_failure(baggage.status, &format!("{step} failed: {why}"))
}

/// Says why there will be no executor, and ends this process.
pub fn report_failure(status: BorrowedFd<'_>, why: &str) -> ! {
    if let Ok(bytes) = rmp_serde::to_vec_named(&BootReport::Failed(why.into())) {
        let _ = rustix::io::write(status, &bytes);
    }
    sys::exit_now(70)
}

impl<'a> Baggage<'a> {
    /// What of it the executor expects at fixed numbers.
    pub fn placements(&self) -> Vec<(BorrowedFd<'a>, i32)> {
        let null = self.null.into_iter().flat_map(|null| [0, 1, 2].map(|number| (null, number)));
        null.chain([(self.status, STATUS_FD)]).collect()
    }
}

fn enact(baggage: &Baggage<'_>) -> Result<std::convert::Infallible, Failed> {
    let plan = baggage.plan;
    let overlays = wait_for_go(baggage.sync)?;
    // The sandbox's own user may not enter the state folder, so what is needed from there is opened before.
    rustix::process::chdir(&plan.point).step(|| format!("entering {}", plan.point.display()))?;
    let mut materials = Materials { overlays, sources: open_sources(&plan.steps)?, masked: None };
    let score = open_score().step(|| "opening oom_score_adj".into())?;
    // It is taken with the next program; by then this process's folder in `/proc` may be covered.
    if let Some(label) = &plan.confinement.label {
        label.apply().step(|| label.step())?;
    }
    become_first_user(plan)?;
    if wall::stands(Wall::UtsNamespace) {
        rustix::system::sethostname(b"sandbox").step(|| "setting the host name".into())?;
    }
    build_root(plan, &mut materials, baggage.sync)?;
    let supplies = supplies(baggage.sync)?;
    let entries = supplies.iter().filter(|(_, number)| *number == ENTRY).map(|(file, _)| file);
    enter_cgroup(entries).step(|| "entering the cgroup".into())?;
    if wall::stands(Wall::CgroupNamespace) {
        sys::unshare(UnshareFlags::NEWCGROUP).step(|| "leaving the cgroup namespace".into())?;
    }
    let supplies = supplies.iter().filter(|(_, number)| *number != ENTRY).map(|(file, number)| (file.as_fd(), *number));
    let placements: Vec<_> = supplies.chain(baggage.placements()).chain([(score.as_fd(), SCORE_FD)]).collect();
    confine(&plan.confinement, &plan.counts, &placements, baggage)
}

/// What the launcher made meanwhile.
fn supplies(sync: BorrowedFd<'_>) -> Result<Vec<(OwnedFd, i32)>, Failed> {
    let mut numbers = [0; 16];
    let received = wire::receive(sync, &mut numbers).and_then(|(length, descriptors)| {
        let complete = length > 0 && length == descriptors.len();
        complete.then_some(descriptors).ok_or(io::ErrorKind::UnexpectedEof.into())
    });
    let descriptors = received.step(|| "waiting for supplies".into())?;
    Ok(descriptors.into_iter().zip(numbers.map(i32::from)).collect())
}

/// On v1, while this process has a single thread: `tasks` takes one thread and waits for nothing.
pub fn enter_cgroup<'a>(tasks: impl IntoIterator<Item = &'a OwnedFd>) -> io::Result<()> {
    for file in tasks {
        rustix::io::write(file, b"0")?;
    }
    Ok(())
}

/// What was opened or made for the steps before this process became the sandbox's own user, in their order.
struct Materials {
    overlays: VecDeque<OwnedFd>,
    sources: VecDeque<OwnedFd>,
    /// The first folder that was masked; the others are the same empty one, since a file system is not made for nothing.
    masked: Option<String>,
}

impl Materials {
    fn source(&mut self) -> io::Result<OwnedFd> {
        self.sources.pop_front().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Ready made where only the launcher can.
    fn overlay(&mut self, folder: &Path, layers: &Layers) -> io::Result<OwnedFd> {
        match self.overlays.pop_front() {
            Some(made) => Ok(made),
            None => layers::assemble(folder, layers, None),
        }
    }
}

/// The launcher writes the id maps first; with them may come overlays that only it can make.
fn wait_for_go(sync: BorrowedFd<'_>) -> Result<VecDeque<OwnedFd>, Failed> {
    let (_, descriptors) = wire::receive(sync, &mut [0; 16]).step(|| "waiting for the id maps".into())?;
    Ok(descriptors.into())
}

/// While `/proc` is this machine's and this process still its own.
fn open_score() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/proc/self/oom_score_adj", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

fn become_first_user(plan: &Plan) -> Result<(), Failed> {
    let (uid, gid) = (rustix::process::Uid::from_raw(plan.first_id), rustix::process::Gid::from_raw(plan.first_id));
    if plan.ids.count > 1 {
        rustix::thread::set_thread_groups(&[]).step(|| "dropping groups".into())?;
    }
    rustix::thread::set_thread_res_gid(gid, gid, gid).step(|| format!("becoming group {}", plan.first_id))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).step(|| format!("becoming user {}", plan.first_id))
}

/// Copies of all mounts that will be bound, read-only where they should be before they can be seen.
fn open_sources(steps: &[Step]) -> Result<VecDeque<OwnedFd>, Failed> {
    let open = |step: &Step| match step {
        Step::Bind { source, access, .. } => Some(open_source(source, *access).step(|| format!("{step:?}"))),
        Step::Place { source: Some(source), .. } => {
            Some(open_source(source, Access::Write).step(|| format!("{step:?}")))
        }
        Step::Zeros { source } | Step::Cover { stub: source, .. } | Step::Tool { source, .. } => {
            Some(open_source(source, Access::Read).step(|| format!("{step:?}")))
        }
        _ => None,
    };
    steps.iter().filter_map(open).collect()
}

/// A copy of a mount tree, read-only where it should be before it can be seen.
pub fn open_source(source: &Path, access: Access) -> io::Result<OwnedFd> {
    let tree = clone_tree(source)?;
    let read_only = match access {
        Access::Read if wall::stands(Wall::ReadOnlyRoot) => MountAttrFlags::MOUNT_ATTR_RDONLY,
        _ => MountAttrFlags::empty(),
    };
    sys::set_mount_attributes(tree.as_fd(), read_only | harmless(), None)?;
    Ok(tree)
}

/// No program of another owner, no device.
pub fn harmless() -> MountAttrFlags {
    let mut flags = MountAttrFlags::empty();
    flags.set(MountAttrFlags::MOUNT_ATTR_NOSUID, wall::stands(Wall::NoSetuid));
    flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, wall::stands(Wall::NoDevices));
    flags
}

fn build_root(plan: &Plan, materials: &mut Materials, sync: BorrowedFd<'_>) -> Result<(), Failed> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).step(|| "making mounts private".into())?;
    let root = match &plan.root {
        RootSource::Empty => tmpfs(4 << 20, 0o755).step(|| "making the root file system".into())?,
        RootSource::Bound { folder, .. } => {
            let made = materials.overlays.pop_front().map_or_else(|| layers::bound(folder, None), Ok);
            made.step(|| format!("mounting {}", folder.display()))?
        }
        RootSource::Layers(layers) => {
            materials.overlay(&plan.folder, layers).step(|| format!("layering over {:?}", layers.lower))?
        }
    };
    attach(&root, Path::new(".")).step(|| "mounting the root file system".into())?;
    rustix::process::fchdir(&root).step(|| "entering the root file system".into())?;
    for step in &plan.steps {
        walk(step, plan, materials, sync).step(|| format!("{step:?}"))?;
    }
    // Old and new root are stacked on one place, and the old one is taken from below; no folder for it is needed.
    rustix::process::pivot_root(".", ".").step(|| "changing the root".into())?;
    if wall::stands(Wall::OldRoot) {
        rustix::mount::unmount(".", UnmountFlags::DETACH).step(|| "leaving the old root".into())?;
    }
    rustix::process::chdir("/").step(|| "entering the new root".into())
}

fn walk(step: &Step, plan: &Plan, materials: &mut Materials, sync: BorrowedFd<'_>) -> io::Result<()> {
    match step {
        Step::Folder { target, mode } => match rustix::fs::mkdir(target.as_str(), Mode::from_raw_mode(*mode)) {
            Err(rustix::io::Errno::EXIST) => Ok(()),
            other => Ok(other?),
        },
        Step::Link { target, to } => match rustix::fs::symlink(to.as_str(), target.as_str()) {
            Err(rustix::io::Errno::EXIST) => Ok(()),
            other => Ok(other?),
        },
        Step::Bind { target, .. } => attach(&materials.source()?, Path::new(target)),
        Step::Layers { target, layers } => attach(&materials.overlay(&plan.folder, layers)?, Path::new(target)),
        Step::Device { name } => {
            let target = format!("dev/{name}");
            drop(rustix::fs::open(
                &target,
                OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC,
                Mode::from_raw_mode(0o666),
            )?);
            Ok(rustix::mount::mount_bind(format!("/dev/{name}"), target)?)
        }
        Step::Zeros { .. } => {
            drop(rustix::fs::open("dev/zero", OFlags::CREATE | OFlags::CLOEXEC, Mode::from_raw_mode(0o444))?);
            attach(&materials.source()?, Path::new("dev/zero"))
        }
        Step::Tmpfs { target, size, mode } => attach(&tmpfs(*size, *mode)?, Path::new(target)),
        Step::Proc => mount_proc(&plan.counts, sync),
        Step::Terminals => {
            rustix::fs::mkdir("dev/pts", Mode::from_raw_mode(0o755))?;
            let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
            let most = if wall::stands(Wall::Terminals) { format!(",max={TERMINALS}") } else { String::new() };
            let options = CString::new(format!("newinstance,ptmxmode=0666,mode=0620{most}"))?;
            Ok(rustix::mount::mount("devpts", "dev/pts", "devpts", flags, Some(&*options))?)
        }
        Step::Place { source, target, owner } => {
            let tree = source.as_ref().map(|_| materials.source()).transpose()?;
            places::open_up(target, tree, *owner)
        }
        Step::Tool { target, .. } => places::open_up(target, Some(materials.source()?), 0),
        Step::Cover { target, .. } => cover(&materials.source()?, target),
        Step::Mask { target } => mask(target, &mut materials.masked),
        Step::Freeze { target } => freeze(target),
    }
}

/// The new `/proc`. The launcher gets a descriptor for it, to see the sandbox's processes and nothing else. Counts are
/// set: no namespace of users can be made inside any more, whatever a filter might miss.
fn mount_proc(counts: &Counts, sync: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("proc", "proc", "proc", flags, None)?;
    for (name, value) in counts.of_user_namespace() {
        match fs::write(format!("proc/sys/user/{name}"), value.to_string()) {
            // Younger than the least kernel that we work with.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    let proc = rustix::fs::open("proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    wire::send(sync, b"proc", &[proc.as_fd()])
}

/// A stub over a program or over a link to one; see [`crate::unavailable`]. What has gone since it was looked for needs
/// none.
pub fn cover(stub: &OwnedFd, target: &str) -> io::Result<()> {
    match attach(stub, Path::new(target)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn mask(target: &str, masked: &mut Option<String>) -> io::Result<()> {
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => match masked {
            Some(first) => Ok(rustix::mount::mount_bind(first.as_str(), target)?),
            None => {
                let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
                rustix::mount::mount("tmpfs", target, "tmpfs", flags, Some(c"size=0,nr_inodes=1"))?;
                *masked = Some(target.to_owned());
                Ok(())
            }
        },
        Ok(_) => Ok(rustix::mount::mount_bind("dev/null", target)?),
        Err(_) => Ok(()),
    }
}

/// Makes what is mounted at a path beneath the current folder read-only.
pub fn freeze(target: &str) -> io::Result<()> {
    if fs::symlink_metadata(target).is_err() {
        return Ok(());
    }
    if target != "." && target != "dev" {
        rustix::mount::mount_bind_recursive(target, target)?;
    }
    let flags = MountFlags::RDONLY | MountFlags::BIND | MountFlags::NOSUID | remount_flags(target);
    Ok(rustix::mount::mount_remount(target, flags, "")?)
}

/// `/proc` forbids devices and programs; a remount must not take that back. Programs may run from `/`.
fn remount_flags(target: &str) -> MountFlags {
    match target {
        "." => MountFlags::NODEV,
        "dev" => MountFlags::NOEXEC,
        _ => MountFlags::NODEV | MountFlags::NOEXEC,
    }
}

/// A file system in memory that is nowhere yet.
pub fn tmpfs(size: u64, mode: u32) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let size = if wall::stands(Wall::TmpSize) { size } else { 0 };
    rustix::mount::fsconfig_set_string(&context, "size", size.to_string())?;
    rustix::mount::fsconfig_set_string(&context, "mode", format!("{mode:o}"))?;
    rustix::mount::fsconfig_create(&context)?;
    Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, harmless())?)
}

/// Gives up everything that is not needed, and becomes the executor.
fn confine(
    confinement: &Confinement,
    counts: &Counts,
    placements: &[(BorrowedFd<'_>, i32)],
    baggage: &Baggage<'_>,
) -> Result<std::convert::Infallible, Failed> {
    if let Some(count) = confinement.processors {
        limit_processors(count).step(|| format!("using {count} processors"))?;
    }
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if confinement.capabilities & (1 << number) == 0
            && rustix::thread::remove_capability_from_bounding_set(capability).is_err()
        {
            // The kernel knows no more of them.
            break;
        }
    }
    keep_capabilities(confinement.capabilities).step(|| "dropping capabilities".into())?;
    // Away from the terminal and the process group of whoever started us: they stay out of reach, also by `kill 0`.
    if wall::stands(Wall::Session) {
        rustix::process::setsid().step(|| "leaving the session".into())?;
    }
    if confinement.die_with_launcher {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step(|| "tying to the launcher".into())?;
        // Who has died before that is noticed here.
        if hung_up(baggage.sync) {
            sys::exit_now(70);
        }
    }
    let executor =
        rustix::io::fcntl_dupfd_cloexec(baggage.executor, OUT_OF_THE_WAY).step(|| "keeping the executor".into())?;
    sys::place_descriptors(placements).step(|| "placing descriptors".into())?;
    if wall::stands(Wall::NoNewPrivs) {
        rustix::thread::set_no_new_privs(true).step(|| "forbidding new privileges".into())?;
    }
    landlock::restrict(confinement.writable.as_deref(), confinement.executable.as_deref(), executor.as_fd())
        .step(|| "restricting with Landlock".into())?;
    // Only when nothing is opened any more: among the launcher's many descriptors there is no room below the limit.
    counts.limit_process().step(|| "limiting open files and signals".into())?;
    if wall::stands(Wall::Seccomp) {
        sys::filter_system_calls(baggage.filter).step(|| "filtering system calls".into())?;
    }
    // Only now is it seen whether this process may have the label.
    let label = confinement.label.as_ref().map(|label| format!(", {}", label.step())).unwrap_or_default();
    let why = sys::execute(executor.as_fd(), c"executor", &wall::for_executor());
    Err(Failed { step: format!("starting the executor{label}"), why })
}

fn hung_up(socket: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut sockets = [PollFd::new(&socket, PollFlags::RDHUP)];
    poll(&mut sockets, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Root keeps them over an exec; anybody else only those that are ambient.
fn keep_capabilities(bits: u64) -> io::Result<()> {
    let kept = CapabilitySet::from_bits_retain(bits);
    let root = rustix::process::geteuid().is_root();
    let inheritable = if root { CapabilitySet::empty() } else { kept };
    rustix::thread::set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?;
    for number in (0..u64::BITS).filter(|number| !root && bits & (1 << number) != 0) {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        rustix::thread::configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// Some of the processors that we may use, chosen by our process number so that sandboxes spread.
pub fn limit_processors(count: usize) -> io::Result<()> {
    let ours = rustix::thread::sched_getaffinity(None)?;
    let available: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| ours.is_set(cpu)).collect();
    if available.len() <= count {
        return Ok(());
    }
    let start = fs::read_link("/proc/self").ok().and_then(|own| own.to_str()?.parse().ok()).unwrap_or(0usize);
    let mut chosen = rustix::thread::CpuSet::new();
    (0..count).for_each(|index| chosen.set(available[(start + index) % available.len()]));
    Ok(rustix::thread::sched_setaffinity(None, &chosen)?)
}

trait Named<T> {
    /// Names the step that failed.
    fn step(self, name: impl FnOnce() -> String) -> Result<T, Failed>;
}

impl<T, E: Into<io::Error>> Named<T> for Result<T, E> {
    fn step(self, name: impl FnOnce() -> String) -> Result<T, Failed> {
        self.map_err(|why| Failed { step: name(), why: why.into() })
    }
}
