//! The embedded backend as a server sees it: orders for its launcher, and sandboxes that it can reach by their folders.

use std::{
    collections::HashMap,
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use sandbox_core::{
    Backend, Created, Door, Error, Facts, Policy, Probe, Progress, Recovered, Reference, Result, SandboxSpec,
    SessionId, Usage,
};
use sandbox_image::ImageSettings;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::oneshot,
};

use crate::{
    certificates,
    folder::{self, Lock},
    handover::pair,
    host::Host,
    ids::SLOTS,
    images,
    orders::{Order, Report},
    plan,
    prepared::Prepared,
    probe,
    sandbox::LinuxSandbox,
    seccomp::Chosen,
    sys,
    wall::{self, Wall},
    wire,
};

/// What sandboxes made here say of where they run.
pub const BACKEND: &str = "linux";
/// The name under which this program is its own launcher.
pub const LAUNCHER_ROLE: &str = "sandbox-launcher";
/// How long a sandbox waits for a server before it ends, in seconds.
pub const LEASE_VARIABLE: &str = "SANDBOX_MCP_LEASE_SECONDS";

/// Sandboxes on this machine's own kernel, without a daemon and without root.
#[derive(Clone)]
pub struct LinuxBackend {
    inner: Arc<Inner>,
}

struct Inner {
    state: PathBuf,
    lease: Duration,
    images: ImageSettings,
    launcher: std::result::Result<Launcher, Error>,
}

/// A launcher that runs, and who waits for its answers.
pub struct Launcher {
    /// What this machine offers.
    pub host: Host,
    control: AsyncFd<OwnedFd>,
    tickets: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    process: Mutex<std::process::Child>,
}

/// A sandbox that is ready.
pub struct Newcomer {
    /// Number of its first process.
    pub pid: i32,
    /// Stands for that process.
    pub first: OwnedFd,
    /// A connection to its executor.
    pub channel: OwnedFd,
    /// Those of its way out.
    pub doors: Vec<(Door, OwnedFd)>,
}

/// What an order was answered with.
pub enum Answer {
    /// The sandbox is ready.
    Created(Box<Newcomer>),
    /// It could not be made.
    Failed(String),
    /// It is gone.
    Destroyed,
    /// What it uses.
    Used(Usage),
}

impl LinuxBackend {
    /// Starts a launcher for the sandboxes in this state folder, which is the caller's with mode 0700.
    ///
    /// Must be called within a tokio runtime. Where sandboxes cannot be made, this succeeds all the same: existing ones
    /// can be looked at, and [`Backend::probe`] says what is wrong.
    pub fn start(state: &Path) -> Result<Self> {
        Self::start_with(state, ImageSettings::default())
    }

    /// The same, with what the operator says about images.
    pub fn start_with(state: &Path, images: ImageSettings) -> Result<Self> {
        for name in ["sandboxes", "trash", "spare", "cache"] {
            let folder = state.join(name);
            fs::create_dir_all(&folder).map_err(Error::io(format!("making {}", folder.display())))?;
        }
        let lease = std::env::var(LEASE_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(60);
        let launcher = Launcher::start(state);
        let inner = Arc::new(Inner { state: state.into(), lease: Duration::from_secs(lease), images, launcher });
        if let Ok(launcher) = &inner.launcher {
            let descriptor = launcher.control.get_ref().try_clone().map_err(Error::io("watching the launcher"))?;
            tokio::spawn(listen(Arc::downgrade(&inner), descriptor));
        }
        Ok(Self { inner })
    }

    fn launcher(&self) -> Result<&Launcher> {
        self.inner.launcher.as_ref().map_err(copy)
    }

    pub(crate) async fn order(&self, order: impl FnOnce(u64) -> Order) -> Result<Answer> {
        self.launcher()?.order(order).await
    }

    /// Removes what is left of an ended sandbox without the launcher, which is gone; the next one sweeps the trash.
    pub(crate) fn bury(&self, name: &str) -> Result<()> {
        if let Some(host) = self.host() {
            host.cgroup.remove(name);
        }
        let (folder, trash) =
            (self.inner.state.join("sandboxes").join(name), self.inner.state.join("trash").join(name));
        match fs::rename(&folder, &trash) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("removing {}", folder.display()))(error))
            }
            _ => Ok(()),
        }
    }

    /// A folder that was being made when its server was killed. A young one may be about to be locked.
    fn discard_draft(&self, name: &str, path: &Path) {
        let age = fs::metadata(path).ok().and_then(|found| found.modified().ok()?.elapsed().ok());
        let old = age.is_some_and(|age| age > Duration::from_secs(60));
        if old && name.starts_with(folder::DRAFT) && matches!(Lock::take(path), Ok(Some(_))) {
            let _ = fs::rename(path, self.inner.state.join("trash").join(format!("deleted-{name}")));
        }
    }

    pub(crate) fn host(&self) -> Option<&Host> {
        self.inner.launcher.as_ref().ok().map(|launcher| &launcher.host)
    }
}

#[async_trait]
impl Backend for LinuxBackend {
    async fn probe(&self, policies: &[Policy]) -> Probe {
        probe::probe(policies, self.launcher().map(|launcher| &launcher.host))
    }

    async fn fetch(&self, image: &Reference, progress: Progress<'_>) -> Result<()> {
        let images = images::of_host(&self.launcher()?.host, self.inner.images.clone())?;
        Ok(images.fetch(image, progress).await.map(drop)?)
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Created> {
        let launcher = self.launcher()?;
        no_runtime(spec)?;
        let calls = Chosen::find(&spec.policy.privileges)?;
        let standing = images::stand(spec, &launcher.host)?;
        let mut prepared = prepare(&standing.spec, &launcher.host).await?;
        prepared.named = standing.named.clone();
        let slot = if wall::stands(Wall::OwnUser) { slot(&spec.id) } else { 0 };
        let (plan, enforcement) =
            plan::plan(&standing.spec, &calls, &launcher.host, &prepared, slot, self.inner.lease)?;
        let facts = Facts { spec: spec.clone(), backend: BACKEND.into(), enforcement };
        let lock = folder::make(&self.inner.state, &plan.folder)?;
        certificates::write(&standing.spec, &plan.folder).map_err(Error::io("writing certificates"))?;
        let folder = plan.folder.clone();
        let answer = tokio::time::timeout(
            spec.policy.limits.start,
            launcher.order(|ticket| Order::Create { ticket, plan: Box::new(plan) }),
        );
        // The launcher is asked first, and works while facts are written.
        let (answer, described) = tokio::join!(answer, async { folder::describe(&folder, &facts) });
        let failed = match answer {
            Ok(Ok(Answer::Created(newcomer))) => {
                let Newcomer { pid, first, channel, doors } = *newcomer;
                let backend = Some(self.clone());
                let made = described
                    .and_then(|()| lock.note(pid, launcher.number()))
                    .and_then(|()| LinuxSandbox::new(facts, folder, Some(lock), Some(first), backend));
                match made.map(|sandbox| sandbox.with_channel(channel).with_doors(doors)) {
                    Ok(sandbox) => return Ok(Arc::new(sandbox)),
                    Err(error) => error,
                }
            }
            Ok(Ok(Answer::Failed(why))) => Error::Step { step: "the embedded backend".into(), why },
            Ok(Ok(_)) => {
                Error::Step { step: "the embedded backend".into(), why: "the launcher answered something else".into() }
            }
            Ok(Err(error)) => error,
            Err(_) => {
                Error::Step { step: "starting".into(), why: format!("not ready after {:?}", spec.policy.limits.start) }
            }
        };
        let _ = launcher.order(|ticket| Order::Destroy { ticket, name: spec.id.to_string() }).await;
        Err(failed)
    }

    async fn recover(&self) -> Result<Recovered> {
        let mut recovered = Recovered::default();
        let folders = self.inner.state.join("sandboxes");
        for entry in fs::read_dir(&folders).map_err(Error::io(format!("reading {}", folders.display())))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Ok(id) = name.parse::<SessionId>() else {
                self.discard_draft(&name, &entry.path());
                continue;
            };
            // Sandboxes of other backends are theirs to look after.
            if folder::facts(&entry.path()).is_ok_and(|facts| facts.backend != BACKEND) {
                continue;
            }
            // Somebody looks after it; that it is locked is the proof.
            let Ok(Some(lock)) = Lock::take(&entry.path()) else { continue };
            // Whoever made it was killed before it had said what it is; nothing was ever kept in it.
            if folder::facts(&entry.path()).is_err() {
                let _ = fs::rename(entry.path(), self.inner.state.join("trash").join(format!("deleted-{name}")));
                continue;
            }
            match LinuxSandbox::adopt(&entry.path(), lock, self.clone()) {
                Ok(sandbox) => recovered.alive.push(Arc::new(sandbox)),
                Err(_) => recovered.ended.push(id),
            }
        }
        if let Some(host) = self.host() {
            let leaked = host.cgroup.existing().into_iter().filter(|name| {
                let alive = recovered.alive.iter().any(|sandbox| sandbox.facts().spec.id.as_str() == name);
                let looked_after = matches!(Lock::take(&folders.join(name)), Ok(None));
                // Without a folder here it may be one that a server with another state folder is just making.
                let anothers = !folders.join(name).exists() && host.cgroup.is_young(name);
                !alive && !looked_after && !anothers && host.cgroup.remove_empty(name)
            });
            let count = leaked.count();
            if count > 0 {
                recovered.removed.insert("cgroup".into(), count);
            }
        }
        Ok(recovered)
    }
}

impl Launcher {
    fn start(state: &Path) -> Result<Self> {
        let starting = || Error::io("starting the launcher");
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(io::Error::from)
                .map_err(starting())?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(LAUNCHER_ROLE).arg(state).stdin(Stdio::from(theirs)).stdout(Stdio::null());
        // A process group of its own: Ctrl-C is for us, and the launcher has sandboxes to look after.
        command.process_group(0);
        keep_only_what_it_needs(&mut command);
        let process = command.spawn().map_err(starting())?;
        drop(command);
        let mut buffer = vec![0; wire::LONGEST];
        let host = match wire::receive_value(ours.as_fd(), &mut buffer).map_err(starting())? {
            Some((Report::Ready(host), _)) => *host,
            Some((Report::Unusable(why), _)) => return Err(probe::unusable(&why)),
            _ => return Err(probe::unusable("the launcher ended at once")),
        };
        rustix::io::ioctl_fionbio(&ours, true).map_err(io::Error::from).map_err(starting())?;
        Ok(Self {
            host,
            control: sys::watched(ours, Interest::READABLE | Interest::WRITABLE).map_err(starting())?,
            tickets: AtomicU64::new(1),
            waiting: Mutex::default(),
            process: Mutex::new(process),
        })
    }

    async fn order(&self, order: impl FnOnce(u64) -> Order) -> Result<Answer> {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.waiting().insert(ticket, sender);
        let order = order(ticket);
        let sending = self.control.async_io(Interest::WRITABLE, |socket| wire::send_value(socket.as_fd(), &order, &[]));
        if sending.await.is_err() {
            self.waiting().remove(&ticket);
            return Err(launcher_gone());
        }
        receiver.await.map_err(|_| launcher_gone())
    }

    /// By which others find it.
    fn number(&self) -> u32 {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).id()
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Answer>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deliver(&self, ticket: u64, answer: Answer) {
        if let Some(sender) = self.waiting().remove(&ticket) {
            let _ = sender.send(answer);
        }
    }
}

/// Hands answers to those who wait, until the launcher or the backend is gone.
async fn listen(inner: std::sync::Weak<Inner>, control: OwnedFd) {
    let Ok(control) = sys::watched(control, Interest::READABLE) else { return };
    let mut buffer = vec![0; wire::LONGEST];
    loop {
        let received = control.async_io(Interest::READABLE, |socket| wire::receive_value(socket.as_fd(), &mut buffer));
        let received = received.await;
        let Some(inner) = inner.upgrade() else { return };
        let Ok(launcher) = &inner.launcher else { return };
        match received {
            Ok(Some((report, descriptors))) => dispatch(launcher, report, descriptors),
            Ok(None) | Err(_) => {
                launcher.waiting().clear();
                let _ = launcher.process.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
                return;
            }
        }
    }
}

fn dispatch(launcher: &Launcher, report: Report, descriptors: Vec<OwnedFd>) {
    match report {
        Report::Created { ticket, pid, doors } => {
            let mut descriptors = descriptors.into_iter();
            let answer = match (descriptors.next(), descriptors.next(), pair(doors, descriptors.collect())) {
                (Some(first), Some(channel), Ok(doors)) => {
                    Answer::Created(Box::new(Newcomer { pid, first, channel, doors }))
                }
                _ => Answer::Failed("the launcher sent no descriptors".into()),
            };
            launcher.deliver(ticket, answer);
        }
        Report::Failed { ticket, why } => launcher.deliver(ticket, Answer::Failed(why)),
        Report::Destroyed { ticket } => launcher.deliver(ticket, Answer::Destroyed),
        Report::Used { ticket, usage } => launcher.deliver(ticket, Answer::Used(usage)),
        Report::Ended { name } => tracing::debug!(%name, "sandbox ended"),
        Report::Ready(_) | Report::Unusable(_) => {}
    }
}

/// What takes long is done aside, and goes on if nobody waits for it any longer.
async fn prepare(spec: &SandboxSpec, host: &Host) -> Result<Prepared> {
    if Prepared::is_trivial(spec) {
        return Prepared::for_spec(spec, host);
    }
    let (owned, host) = (spec.clone(), host.clone());
    let work = tokio::task::spawn_blocking(move || Prepared::for_spec(&owned, &host));
    let step = || format!("preparing the policy `{}`", spec.policy.name);
    match tokio::time::timeout(spec.policy.limits.start, work).await {
        Ok(Ok(prepared)) => prepared,
        Ok(Err(error)) => Err(Error::Step { step: step(), why: error.to_string() }),
        Err(_) => {
            let why = format!(
                "not ready after {:?}; it goes on in the background and is done once, so try again in a while",
                spec.policy.limits.start
            );
            Err(Error::Step { step: step(), why })
        }
    }
}

/// There is nothing between a sandbox and the kernel here, so there is nothing to choose.
pub(crate) fn no_runtime(spec: &SandboxSpec) -> Result<()> {
    let Some(runtime) = &spec.policy.privileges.runtime else { return Ok(()) };
    Err(Error::Invalid {
        what: format!(
            "the policy `{}` names the runtime `{runtime}`, and the embedded backend has none",
            spec.policy.name
        ),
        fix: "Use a backend that drives runtimes (`--backend docker`), or a policy without a runtime".into(),
    })
}

fn launcher_gone() -> Error {
    Error::Unavailable {
        what: "this server can make no more sandboxes".into(),
        why: "its launcher was ended".into(),
        fix: "Start sandbox-mcp again".into(),
    }
}

/// The launcher gets no secret of ours: only the variables that it reads.
pub(crate) fn keep_only_what_it_needs(command: &mut Command) {
    command.env_clear();
    let internal = [crate::stage::FORCE_SINGLE, crate::stage::FORCE_BWRAP, crate::way_out::WITHOUT_FILTERS];
    for name in ["PATH"].into_iter().chain(internal) {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    #[cfg(feature = "breakable")]
    if let Some(names) = std::env::var_os(crate::wall::VARIABLE) {
        command.env(crate::wall::VARIABLE, names);
    }
}

/// Ranges of ids are chosen by the random part of the name: with 96 bits of it two sandboxes rarely meet, and where
/// they do, namespaces keep them apart all the same.
pub fn slot(id: &SessionId) -> u32 {
    let digits = id.as_str().rsplit('_').next().unwrap_or_default();
    u32::from_str_radix(digits.get(..8).unwrap_or_default(), 16).unwrap_or_default() % SLOTS
}

/// An error that several callers get.
fn copy(error: &Error) -> Error {
    match error {
        Error::Unavailable { what, why, fix } => {
            Error::Unavailable { what: what.clone(), why: why.clone(), fix: fix.clone() }
        }
        other => Error::Step { step: "starting the embedded backend".into(), why: other.to_string() },
    }
}
