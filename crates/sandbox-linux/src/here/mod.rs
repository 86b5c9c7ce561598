//! A backend whose one sandbox is where this program runs already: a container that somebody else made and holds.
//!
//! No wall is built here. The executor is started as a child, is reached over a pair of sockets that nobody else has, and ends
//! with it; commands are its children, so it never counts or signals the server. What the container's engine holds is
//! looked at and told ([`findings`]); what it does not hold is told as such.

mod findings;

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use rustix::{
    fs::{MemfdFlags, Mode, OFlags},
    process::{DumpableBehavior, Pid, PidfdFlags, Signal},
};
use sandbox_core::{
    Backend, Channel, Control, Created, Door, Error, Facts, Policy, Probe, Progress, Recovered, Reference, Result,
    Sandbox, SandboxSpec, Usage,
    policy::{Commands, Network},
};
use sandbox_executor::boot::{Attachment, BOOT_FD, Boot, BootReport, FIRST_FREE_FD, Identity, OomCounter, STATUS_FD};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    WORKSPACE, executor_image,
    folder::{self, Lock},
    plan::HISTORY,
    sys,
};

/// How this backend is called.
pub const BACKEND: &str = "here";
/// The role of the process that becomes the executor.
pub(crate) const ROLE: &str = "sandbox-executor-here";
/// Time for the executor to end everything after its connection has ended.
const FAREWELL: Duration = Duration::from_secs(3);
/// Variables that are for this program, and not for commands.
const OWN_VARIABLES: [&str; 2] = ["MCP_MODE", "SANDBOX_MCP_"];

/// What nobody may be seen to hold from inside.
const UNHELD: [Control; 10] = [
    Control::Memory,
    Control::Cpu,
    Control::Pids,
    Control::Disk,
    Control::Tmp,
    Control::Network,
    Control::Filesystem,
    Control::Privileges,
    Control::SystemCalls,
    Control::ExecutorIdentity,
];

/// The container that this program runs in.
pub struct Here {
    state: PathBuf,
}

impl Here {
    /// With this folder for what there is to know about it.
    pub fn new(state: &Path) -> Self {
        Self { state: state.to_owned() }
    }

    /// Keeps commands, who are often the same user, from this process's memory and descriptors.
    pub fn hide() -> io::Result<()> {
        Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
    }

    /// What may be done here: whatever the container lets its processes do, for so long.
    pub fn policy(longest: Duration) -> Policy {
        let mut policy = Policy { name: "container".to_owned(), network: Network::None, ..Policy::default() };
        policy.commands = Commands::default();
        policy.limits.run = longest;
        findings::Findings::look().tell_limits(&mut policy.limits);
        // By name: who starts a container says what holds it.
        policy.allow_unenforced = UNHELD.into();
        policy
    }
}

#[async_trait]
impl Backend for Here {
    async fn probe(&self, _: &[Policy]) -> Probe {
        Probe { backend: BACKEND.to_owned(), usable: true, findings: Vec::new(), outlooks: Vec::new() }
    }

    async fn fetch(&self, image: &Reference, _: Progress<'_>) -> Result<()> {
        Err(Error::Invalid {
            what: format!("the image {image} cannot be used: this is a container already"),
            fix: "Start another container from that image".to_owned(),
        })
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Created> {
        let enforcement = findings::Findings::look().enforcement();
        enforcement.satisfies(&spec.policy)?;
        check_workspace()?;
        let facts = Facts { spec: spec.clone(), backend: BACKEND.to_owned(), enforcement };
        let path = self.state.join("sandboxes").join(spec.id.as_str());
        let lock = folder::make(&self.state, &path)?;
        folder::describe(&path, &facts)?;
        let (child, socket) = start(&boot(spec)).map_err(Error::io("starting the executor"))?;
        Ok(std::sync::Arc::new(Inside::new(facts, lock, child, socket)?))
    }

    async fn recover(&self) -> Result<Recovered> {
        Ok(Recovered::default())
    }
}

/// This container.
struct Inside {
    facts: Facts,
    lock: Lock,
    child: Mutex<Child>,
    /// Readable when the executor has ended.
    first: AsyncFd<OwnedFd>,
    /// There is one connection, for good.
    socket: Mutex<Option<UnixStream>>,
}

impl Inside {
    fn new(facts: Facts, lock: Lock, child: Child, socket: UnixStream) -> Result<Self> {
        let watching = || Error::io("watching the executor");
        let pid = Pid::from_child(&child);
        let first =
            rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from).map_err(watching())?;
        let first = sys::watched(first, Interest::READABLE).map_err(watching())?;
        Ok(Self { facts, lock, child: Mutex::new(child), first, socket: Mutex::new(Some(socket)) })
    }
}

#[async_trait]
impl Sandbox for Inside {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    async fn connect(&self) -> Result<Channel> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner).take();
        let gone = || Error::Ended {
            id: self.facts.spec.id.clone(),
            why: "the connection to its executor was lost; start the container again".to_owned(),
        };
        let connecting = || Error::io("connecting to the executor");
        let socket = socket.ok_or_else(gone)?;
        socket.set_nonblocking(true).map_err(connecting())?;
        Ok(Channel::Stream(Box::new(tokio::net::UnixStream::from_std(socket).map_err(connecting())?)))
    }

    async fn usage(&self) -> Result<Usage> {
        Err(Error::Unavailable {
            what: "what this container uses".to_owned(),
            why: "its engine knows".to_owned(),
            fix: "Ask the engine (`docker stats`)".to_owned(),
        })
    }

    async fn doors(&self) -> Result<Vec<(Door, OwnedFd)>> {
        Ok(Vec::new())
    }

    async fn ended(&self) -> String {
        let _ = self.first.readable().await;
        "its executor has ended".to_owned()
    }

    async fn destroy(&self) -> Result<()> {
        // It ends by itself, with all that it started, when nobody is connected any more.
        drop(self.socket.lock().unwrap_or_else(PoisonError::into_inner).take());
        if tokio::time::timeout(FAREWELL, self.first.readable()).await.is_err() {
            let _ = rustix::process::pidfd_send_signal(self.first.get_ref(), Signal::KILL);
            let _ = tokio::time::timeout(FAREWELL, self.first.readable()).await;
        }
        let _ = self.child.lock().unwrap_or_else(PoisonError::into_inner).try_wait();
        self.lock.release();
        Ok(())
    }
}

fn check_workspace() -> Result<()> {
    if Path::new(WORKSPACE).is_dir() {
        return Ok(());
    }
    std::fs::create_dir(WORKSPACE).map_err(|error| Error::Unavailable {
        what: format!("{WORKSPACE}, where commands start"),
        why: error.to_string(),
        fix: format!("Make it in the image (`RUN install -d -o 1000 -g 1000 {WORKSPACE}`), or mount something there"),
    })
}

fn boot(spec: &SandboxSpec) -> Boot {
    let own = |name: &str| OWN_VARIABLES.iter().any(|own| name.starts_with(own));
    let mut env: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| !own(name))
        .collect();
    let usual = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOME", "/home/sandbox"),
        ("TERM", "xterm-256color"),
    ];
    for (name, value) in usual {
        env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
    env.extend(spec.env.clone());
    Boot {
        attachment: Attachment::Streams,
        user: Identity::Same,
        capabilities: 0,
        workspace: WORKSPACE.to_owned(),
        places: vec!["/".to_owned()],
        env,
        lease: None,
        history: HISTORY,
        pids: None,
        process_memory: None,
        file_size: None,
        descriptors: None,
        oom: OomCounter::None,
        refused_processes: false,
        supervised: false,
        counts: Vec::new(),
        die_with_parent: false,
        proxy: None,
        itself: Default::default(),
    }
}

/// Starts this program once more, in the role that becomes the executor: its standard streams are what it has to be passed.
fn start(boot: &Boot) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let (mut report, status) = io::pipe()?;
    let message = rmp_serde::to_vec_named(boot).map_err(io::Error::other)?;
    let memory = rustix::fs::memfd_create("boot", MemfdFlags::CLOEXEC)?;
    let mut writer = std::fs::File::from(memory);
    writer.write_all(&message)?;
    io::Seek::rewind(&mut writer)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0(ROLE).env_clear().process_group(0);
    command.stdin(OwnedFd::from(theirs)).stdout(writer).stderr(status);
    let mut child = command.spawn()?;
    // It holds copies, and nobody else may: or the end of the report would never come.
    drop(command);
    let mut told = Vec::new();
    let read = report.read_to_end(&mut told);
    let failed = |child: &mut Child, why: String| {
        let _ = (child.kill(), child.wait());
        Err(io::Error::other(why))
    };
    match read.map(|_| rmp_serde::from_slice(&told)) {
        Ok(Ok(BootReport::Ready)) => Ok((child, ours)),
        Ok(Ok(BootReport::Failed(why))) => failed(&mut child, why),
        Ok(Err(_)) => failed(&mut child, format!("it ended at once: {}", String::from_utf8_lossy(&told).trim())),
        Err(error) => failed(&mut child, error.to_string()),
    }
}

/// Becomes the executor. Returns only if that failed.
pub(crate) fn become_executor() -> io::Error {
    let prepare = || -> io::Result<OwnedFd> {
        // Out of the way of the numbers that are about to be taken.
        let aside = |descriptor: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(descriptor, FIRST_FREE_FD);
        let program = aside(executor_image::load()?.as_fd())?;
        let null = aside(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?.as_fd())?;
        let (socket, boot) = (aside(io::stdin().as_fd())?, aside(io::stdout().as_fd())?);
        let status = aside(io::stderr().as_fd())?;
        sys::place_descriptors(&[
            (socket.as_fd(), 0),
            (socket.as_fd(), 1),
            (null.as_fd(), 2),
            (boot.as_fd(), BOOT_FD),
            (status.as_fd(), STATUS_FD),
        ])?;
        Ok(program)
    };
    match prepare() {
        Ok(program) => sys::execute(program.as_fd(), c"sandbox-executor", &[]),
        Err(error) => error,
    }
}
