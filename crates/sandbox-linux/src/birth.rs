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
use sandbox_executor::boot::{Attachment, Verdicts};

use crate::{
    bwrap,
    cgroup::Cgroup,
    enact::{self, Baggage},
    ground,
    host::Host,
    layers,
    network::Networks,
    plan::{Plan, Watch},
    seccomp::Filters,
    supervise::Supervisor,
    sys::{self, Cloned},
    wall::{self, Wall},
    wire,
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
    /// Its network namespace, if we made it.
    pub network: Option<OwnedFd>,
    /// What is heard from it.
    pub contact: Contact,
}

/// What the launcher shares with a sandbox that is on its way.
pub struct Contact {
    /// The executor's reports come here.
    pub status: OwnedFd,
    sync: OwnedFd,
    verdicts: OwnedFd,
}

impl Contact {
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
        let cgroup = host.cgroup.create(&plan.name, &plan.cgroup).map_err(BirthError::at("making the cgroup"))?;
        self.bear_into(plan, cgroup, host.bwrap.as_deref())
    }

    fn bear_into(&mut self, plan: &Plan, cgroup: Cgroup, bwrap: Option<&Path>) -> Result<Newborn, BirthError> {
        self.networks.leave().map_err(BirthError::at("leaving the network namespace of the last sandbox"))?;
        let listener = match plan.boot.attachment {
            Attachment::Listen => Some(listen(&plan.folder).map_err(BirthError::at("listening"))?),
            _ => None,
        };
        let message = rmp_serde::to_vec_named(&plan.boot).map_err(io::Error::other);
        let message = message.map_err(BirthError::at("describing the sandbox"))?;
        let verdicts = memory_file("verdicts", &Verdicts::default().to_bytes()).map_err(BirthError::at("verdicts"))?;
        let (status, status_inside) = pair(SocketType::SEQPACKET).map_err(BirthError::at("status socket"))?;
        let (sync, sync_inside) = pair(SocketType::SEQPACKET).map_err(BirthError::at("sync socket"))?;
        let filter = self.filters.instructions(&plan.confinement.system_calls);
        let mut baggage = Baggage {
            plan,
            entry: cgroup.entry(),
            sync: sync_inside.as_fd(),
            executor: self.executor.as_fd(),
            filter: &filter,
            null: matches!(plan.boot.attachment, Attachment::Listen).then(|| self.null.as_fd()),
            boot: None,
            listener: listener.as_ref().map(AsFd::as_fd),
            status: status_inside.as_fd(),
            oom: cgroup.oom_counter().map(AsFd::as_fd),
            refused: cgroup.refused_counter().map(AsFd::as_fd),
            verdicts: verdicts.as_fd(),
        };
        let mut network = None;
        let process = match bwrap {
            Some(program) => {
                bwrap::start(program, &baggage, &message).map_err(BirthError::at("starting with bwrap"))?
            }
            None => {
                network = self.networks.enter().map_err(BirthError::at("making a network namespace"))?;
                let boot = memory_file("boot", &message).map_err(BirthError::at("describing the sandbox"))?;
                baggage.boot = Some(boot.as_fd());
                start(&baggage, sync.as_fd())?
            }
        };
        let mut cgroup = cgroup;
        cgroup.settle();
        Ok(Newborn { process, cgroup, network, contact: Contact { status, sync, verdicts } })
    }
}

/// Forks into new namespaces. The child becomes the executor; the parent writes its id maps.
fn start(baggage: &Baggage<'_>, sync: BorrowedFd<'_>) -> Result<Started, BirthError> {
    let ipc = if wall::stands(Wall::IpcNamespace) { libc::CLONE_NEWIPC } else { 0 };
    let uts = if wall::stands(Wall::UtsNamespace) { libc::CLONE_NEWUTS } else { 0 };
    let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | ipc | uts;
    let cloned = sys::clone(namespaces, baggage.entry.folder());
    match cloned.map_err(BirthError::at("cloning into new namespaces"))? {
        Cloned::Child => enact::become_executor(baggage),
        Cloned::Parent { pid, pidfd: child } => match introduce(baggage.plan, pid, sync) {
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
    let link = plan.ground.as_deref().map_or(Ok(()), |ground| symlink(ground, plan.folder.join(ground::LINK)));
    link.and_then(|()| plan.folders.iter().try_for_each(|(name, owner)| make_folder(&plan.folder.join(name), *owner)))
        .map_err(BirthError::at("making folders"))
}

fn make_folder(path: &Path, owner: u32) -> io::Result<()> {
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

fn listen(folder: &Path) -> io::Result<OwnedFd> {
    let directory = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    let _ = fs::remove_file(folder.join("executor.sock"));
    rustix::net::bind(&socket, &socket_address(directory.as_fd())?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
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

fn pair(kind: SocketType) -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?)
}

/// Writes the id maps of the new process and lets it go on, with the root file system that only we can make.
fn introduce(plan: &Plan, pid: i32, sync: BorrowedFd<'_>) -> io::Result<()> {
    let own = Path::new("/proc").join(pid.to_string());
    if plan.ids.count == 1 {
        fs::write(own.join("setgroups"), "deny")?;
    }
    fs::write(own.join("uid_map"), plan.ids.lines())?;
    fs::write(own.join("gid_map"), plan.ids.lines())?;
    let made = make_overlays(plan, &own)?;
    wire::send(sync, b"go", &made.iter().map(AsFd::as_fd).collect::<Vec<_>>())
}

/// Those that only we can make; an ordinary user's are made by the sandbox itself.
fn make_overlays(plan: &Plan, process: &Path) -> io::Result<Vec<OwnedFd>> {
    let mut ours = plan.layers().filter(|layers| layers.map_ids).peekable();
    if ours.peek().is_none() {
        return Ok(Vec::new());
    }
    let ids = rustix::fs::open(process.join("ns/user"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    ours.map(|layers| {
        let failed =
            |error: io::Error| io::Error::new(error.kind(), format!("layering over {:?}: {error}", layers.lower));
        layers::assemble(&plan.folder, layers, Some(ids.as_fd())).map_err(failed)
    })
    .collect()
}
