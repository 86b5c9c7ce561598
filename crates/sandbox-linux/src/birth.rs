//! From a plan to a running first process: what the launcher does on its side of the fork.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::{DirBuilderExt, chown, symlink},
    },
    path::Path,
    rc::Rc,
};

use rustix::{
    fs::{MemfdFlags, Mode, OFlags},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use sandbox_executor::boot::{Attachment, BOOT_FD, BootReport, LISTENER_FD, OOM_FD, PIDS_FD, VERDICTS_FD, Verdicts};

use crate::{
    bwrap,
    cgroup::Cgroup,
    enact::{self, Baggage},
    ground,
    host::Host,
    layers,
    network::{Network, Networks},
    plan::{Plan, RootSource, Watch},
    seccomp::Filters,
    supervise::Supervisor,
    sys::{self, Cloned},
    wall::{self, Wall},
    way_out, wire,
};

/// What every birth needs, prepared once.
pub struct Nursery {
    executor: OwnedFd,
    null: OwnedFd,
    /// Network namespaces of sandboxes.
    pub networks: Networks,
    filters: Filters,
}

/// A first process that was started.
pub struct Started {
    /// Its number outside.
    pub pid: i32,
    /// Stands for it: to be watched and killed.
    pub first: Rc<OwnedFd>,
    /// Our own child, which ends when it has ended: the same process, or the program that started it.
    pub child: Rc<OwnedFd>,
}

/// A sandbox whose first process was started.
pub struct Newborn {
    /// Its first process.
    pub process: Started,
    /// Its cgroup.
    pub cgroup: Cgroup,
    /// Its network, if we made it.
    pub network: Option<Network>,
    /// The first connection to its executor, which waits to be accepted.
    pub channel: Option<OwnedFd>,
    /// What is heard from it.
    pub contact: Contact,
}

/// What the launcher shares with a sandbox that is on its way.
pub struct Contact {
    /// The executor's reports come here.
    pub status: OwnedFd,
    sync: OwnedFd,
    verdicts: OwnedFd,
    brings_door: bool,
}

impl Contact {
    /// Hears from the executor that all is ready, or why not. Where it had to open the door of the way out, that comes
    /// with it.
    pub fn ready(&self) -> Result<Option<Network>, String> {
        let mut buffer = [0; 4096];
        let (report, mut descriptors) = wire::receive_value(self.status.as_fd(), &mut buffer)
            .map_err(|_| "the executor said something strange")?
            .ok_or("the executor ended before it was ready")?;
        match report {
            BootReport::Failed(why) => Err(why),
            BootReport::Ready if !self.brings_door => Ok(None),
            BootReport::Ready => {
                let door = descriptors.pop().ok_or("the door of its way out did not arrive")?;
                let door = way_out::checked_door(door);
                door.map(|door| Some(Network::of_bwrap(door)))
                    .map_err(|error| format!("the door of its way out is none: {error}"))
            }
        }
    }

    /// Who looks after the sandbox from now on. Waits until it has sent its `/proc`; nobody if it never does.
    pub fn supervisor(&self, watch: Watch) -> Option<Supervisor> {
        let (_, mut descriptors) = wire::receive(self.sync.as_fd(), &mut [0; 16]).ok()?;
        Some(Supervisor::new(watch, descriptors.pop()?, self.verdicts.try_clone().ok()?))
    }
}

impl Nursery {
    /// Prepares what can be prepared, for sandboxes that this program is executed in.
    pub fn new(executor: OwnedFd) -> io::Result<Self> {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { executor, null, networks: Networks::default(), filters: Filters::default() })
    }

    /// Starts a sandbox in a folder that has what [`make_folders`] makes.
    pub fn bear(&mut self, plan: &Plan, host: &Host) -> Result<Newborn, BirthError> {
        self.networks.leave().map_err(BirthError::at("leaving the network namespace of the last sandbox"))?;
        let sockets = match plan.boot.attachment {
            Attachment::Listen => Some([socket(), socket()]),
            _ => None,
        };
        let (status, status_inside) = pair().map_err(BirthError::at("status socket"))?;
        // Above the numbers that the executor expects others at: what fails late is told too.
        let status_inside = rustix::io::fcntl_dupfd_cloexec(status_inside, enact::OUT_OF_THE_WAY)
            .map_err(|error| BirthError::at("status socket")(error.into()))?;
        let (sync, sync_inside) = pair().map_err(BirthError::at("sync socket"))?;
        let mut sync = Some(sync);
        let filter = self.filters.instructions(&plan.confinement.system_calls);
        let baggage = Baggage {
            plan,
            sync: sync_inside.as_fd(),
            executor: self.executor.as_fd(),
            filter: &filter,
            null: sockets.is_some().then(|| self.null.as_fd()),
            status: status_inside.as_fd(),
        };
        let (process, supplies, network) = match &host.bwrap {
            Some(program) => {
                let mut supplies = Supplies::gather(plan, cgroup(plan, host)?, sockets)?;
                let started = bwrap::start(program, &baggage, &mut supplies);
                (started.map_err(BirthError::at("starting with bwrap"))?, supplies, None)
            }
            None => {
                // Version 2 lets a process be made in its cgroup. That is made first then; all else, while the child works.
                let early = host.cgroup.takes_in_at_birth().then(|| cgroup(plan, host)).transpose()?;
                let making = "making a network namespace";
                let mut network = self.networks.enter(plan.network).map_err(BirthError::at(making))?;
                let process = start(&baggage, early.as_ref(), &mut sync)?;
                let finished = network.as_mut().map_or(Ok(()), |network| self.networks.finish(network));
                let supplied = finished
                    .map_err(BirthError::at(making))
                    .and_then(|()| early.map_or_else(|| cgroup(plan, host), Ok))
                    .and_then(|cgroup| Supplies::gather(plan, cgroup, sockets))
                    .and_then(|supplies| supplies.send(sync.as_ref()).map(|()| supplies));
                let supplies = supplied.inspect_err(|_| end(&process.child))?;
                (process, supplies, network)
            }
        };
        let Supplies { mut cgroup, verdicts, channel, .. } = supplies;
        cgroup.settle();
        let sync = sync.ok_or_else(|| BirthError::at("sync socket")(io::ErrorKind::BrokenPipe.into()))?;
        let contact = Contact { status, sync, verdicts, brings_door: plan.boot.proxy.is_some() };
        Ok(Newborn { process, cgroup, network, channel, contact })
    }
}

fn cgroup(plan: &Plan, host: &Host) -> Result<Cgroup, BirthError> {
    host.cgroup.create(&plan.name, &plan.cgroup).map_err(BirthError::at("making the cgroup"))
}

/// What a first process needs only at the end of its way.
pub struct Supplies {
    /// Where it goes.
    pub cgroup: Cgroup,
    /// What its executor is told.
    pub boot: Option<OwnedFd>,
    verdicts: OwnedFd,
    listener: Option<OwnedFd>,
    channel: Option<OwnedFd>,
}

impl Supplies {
    fn gather(plan: &Plan, cgroup: Cgroup, sockets: Option<[io::Result<OwnedFd>; 2]>) -> Result<Self, BirthError> {
        let message = rmp_serde::to_vec_named(&plan.boot).map_err(io::Error::other);
        let boot = message.and_then(|message| memory_file("boot", &message));
        let boot = boot.map_err(BirthError::at("describing the sandbox"))?;
        let verdicts = memory_file("verdicts", &Verdicts::default().to_bytes()).map_err(BirthError::at("verdicts"))?;
        let connected = sockets.map(|sockets| listen(&plan.folder, sockets)).transpose();
        let (listener, channel) = connected.map_err(BirthError::at("listening"))?.unzip();
        Ok(Self { cgroup, boot: Some(boot), verdicts, listener, channel })
    }

    /// Descriptors with the numbers that the executor expects them at. It looks only at those that it was told about, so
    /// a harmless one stands in for what there is not.
    pub fn placements(&self) -> [(BorrowedFd<'_>, i32); 5] {
        [
            (self.boot.as_ref(), BOOT_FD),
            (Some(&self.verdicts), VERDICTS_FD),
            (self.listener.as_ref(), LISTENER_FD),
            (self.cgroup.oom_counter(), OOM_FD),
            (self.cgroup.refused_counter(), PIDS_FD),
        ]
        .map(|(descriptor, number)| (descriptor.unwrap_or(&self.verdicts).as_fd(), number))
    }

    /// To the first process, each with its number.
    fn send(&self, sync: Option<&OwnedFd>) -> Result<(), BirthError> {
        let sync = sync.ok_or_else(|| BirthError::at("sync socket")(io::ErrorKind::BrokenPipe.into()))?;
        let entries = self.cgroup.entry().files().iter().map(|file| (file.as_fd(), enact::ENTRY));
        let (descriptors, numbers): (Vec<_>, Vec<_>) = self.placements().into_iter().chain(entries).unzip();
        let numbers: Vec<u8> = numbers.into_iter().map(|number| number as u8).collect();
        wire::send(sync.as_fd(), &numbers, &descriptors).map_err(BirthError::at("supplying the first process"))
    }
}

/// Forks into new namespaces. The child becomes the executor; the parent writes its id maps. The child gives up our end of
/// the socket between us, or it would wait for ever if we died.
fn start(baggage: &Baggage<'_>, cgroup: Option<&Cgroup>, sync: &mut Option<OwnedFd>) -> Result<Started, BirthError> {
    let ipc = if wall::stands(Wall::IpcNamespace) { libc::CLONE_NEWIPC } else { 0 };
    let uts = if wall::stands(Wall::UtsNamespace) { libc::CLONE_NEWUTS } else { 0 };
    let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | ipc | uts;
    let cloned = sys::clone(namespaces, cgroup.and_then(|cgroup| cgroup.entry().folder()));
    match cloned.map_err(BirthError::at("cloning into new namespaces"))? {
        Cloned::Child => {
            drop(sync.take());
            enact::become_executor(baggage)
        }
        Cloned::Parent { pid, pidfd: child } => match introduce(baggage.plan, pid, sync.as_ref()) {
            Ok(()) => {
                let child = Rc::new(child);
                Ok(Started { pid, first: child.clone(), child })
            }
            Err(error) => {
                end(&child);
                Err(BirthError::at("writing the id maps")(error))
            }
        },
    }
}

/// Kills and reaps.
pub fn end(pidfd: &OwnedFd) {
    let _ = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
    let options = rustix::process::WaitIdOptions::EXITED;
    let _ = rustix::process::waitid(rustix::process::WaitId::PidFd(pidfd.as_fd()), options);
}

/// A birth that failed, by step.
#[derive(Debug, thiserror::Error)]
#[error("{step} failed: {why}")]
pub struct BirthError {
    /// What was being done.
    pub step: &'static str,
    /// The system's answer.
    pub why: io::Error,
}

impl BirthError {
    fn at(step: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |why| Self { step, why }
    }
}

/// Makes the folders that the sandbox will reach, for their owners.
pub fn make_folders(plan: &Plan) -> Result<(), BirthError> {
    let links = [(&plan.ground, ground::LINK), (&plan.image, sandbox_image::LINK)];
    let mut links = links.into_iter().filter_map(|(to, name)| Some((to.as_deref()?, name)));
    let linked = links.try_for_each(|(to, name)| symlink(to, plan.folder.join(name)));
    linked
        .and_then(|()| plan.folders.iter().try_for_each(|(name, owner)| make_folder(&plan.folder.join(name), *owner)))
        .map_err(BirthError::at("making folders"))
}

/// Makes a folder for its owner, or finds it there.
pub fn make_folder(path: &Path, owner: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if owner != 0 { chown(path, Some(owner), Some(owner)) } else { Ok(()) }
}

/// A name in a folder can be longer than a socket's address may be, so it goes through the folder's descriptor.
pub fn socket_address(folder: BorrowedFd<'_>) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/executor.sock", folder.as_raw_fd()))?)
}

/// Makes one of these sockets listen, and connects the other with it already: that saves the server a call and the
/// executor a wait.
fn listen(folder: &Path, sockets: [io::Result<OwnedFd>; 2]) -> io::Result<(OwnedFd, OwnedFd)> {
    let [listener, channel] = sockets;
    let (listener, channel) = (listener?, channel?);
    let directory = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let address = socket_address(directory.as_fd())?;
    let _ = fs::remove_file(folder.join("executor.sock"));
    rustix::net::bind(&listener, &address)?;
    rustix::net::listen(&listener, 128)?;
    rustix::net::connect(&channel, &address)?;
    Ok((listener, channel))
}

/// A file in memory with this content.
pub fn memory_file(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
    let mut written = 0;
    while written < content.len() {
        written += rustix::io::pwrite(&file, &content[written..], written as u64)?;
    }
    Ok(file)
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Not blocking: nobody is waited for.
pub fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Writes the id maps of the new process and lets it go on, with the root file system that only we can make.
fn introduce(plan: &Plan, pid: i32, sync: Option<&OwnedFd>) -> io::Result<()> {
    let sync = sync.ok_or(io::ErrorKind::BrokenPipe)?;
    let own = Path::new("/proc").join(pid.to_string());
    if plan.ids.count == 1 {
        fs::write(own.join("setgroups"), "deny")?;
    }
    fs::write(own.join("uid_map"), plan.ids.lines())?;
    fs::write(own.join("gid_map"), plan.ids.lines())?;
    let made = make_overlays(plan, &own)?;
    wire::send(sync.as_fd(), b"go", &made.iter().map(AsFd::as_fd).collect::<Vec<_>>())
}

/// Those that only we can make; an ordinary user's are made by the sandbox itself.
fn make_overlays(plan: &Plan, process: &Path) -> io::Result<Vec<OwnedFd>> {
    let mut ours = plan.layers().filter(|layers| layers.map_ids).peekable();
    let bound = match &plan.root {
        RootSource::Bound { folder, map_ids: true } => Some(folder),
        _ => None,
    };
    if ours.peek().is_none() && bound.is_none() {
        return Ok(Vec::new());
    }
    let ids = rustix::fs::open(process.join("ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    if let Some(folder) = bound {
        return Ok(vec![layers::bound(folder, Some(ids.as_fd()))?]);
    }
    ours.map(|layers| {
        let failed =
            |error: io::Error| io::Error::new(error.kind(), format!("layering over {:?}: {error}", layers.lower));
        layers::assemble(&plan.folder, layers, Some(ids.as_fd())).map_err(failed)
    })
    .collect()
}
