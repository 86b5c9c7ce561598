//! The program: how it starts, and what it holds while it serves.

mod beneath;
mod bridge;
mod call;
mod census;
mod counters;
mod dial;
mod door;
mod failure;
mod files;
mod history;
mod input;
mod itself;
mod jobs;
mod launch;
mod listing;
mod local_door;
mod mark;
mod measure;
mod output;
mod outward;
mod paths;
mod places;
mod port;
mod removal;
mod roles;
mod run;
mod serve;
mod single;
mod spawn;
mod sys;
mod terminal;
mod tree;
mod wall;

use std::{
    cell::{Cell, RefCell},
    fs::File,
    io::{ErrorKind, Read, Write},
    os::fd::OwnedFd,
    path::PathBuf,
};

use rustix::{
    fs::Mode,
    process::{
        DumpableBehavior, Signal, getpid, set_child_subreaper, set_dumpable_behavior, set_parent_process_death_signal,
        umask,
    },
    thread::{CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities},
};
use sandbox_executor::boot::{
    Attachment, BOOT_FD, Boot, BootReport, FIRST_FREE_FD, Identity, LISTENER_FD, OOM_FD, PIDS_FD, SCORE_FD, STATUS_FD,
    VERDICTS_FD,
};
use tokio::sync::{Notify, RwLock};

use self::{
    counters::Counters,
    jobs::Jobs,
    places::Places,
    spawn::Starter,
    tree::{Members, Tree},
    wall::Wall,
};

/// Longest encoded boot message.
const MAX_BOOT: u64 = 4 << 20;

/// What the program holds while it serves.
pub struct Executor {
    boot: Boot,
    places: Places,
    jobs: Jobs,
    tree: Tree,
    counters: Counters,
    starter: Starter,
    scratch: RefCell<Vec<u8>>,
    /// Bytes of kept files at the last look, where we look.
    kept: Cell<Option<u64>>,
    /// The way out's listener, where it cannot be passed to a server.
    door: Option<OwnedFd>,
    ending: Notify,
    /// Held by who starts a command, and alone by who ends all of them.
    starts: RwLock<()>,
}

impl Executor {
    /// Takes note of every process that has ended.
    fn reap(&self) {
        self.jobs.reap(&self.counters);
    }

    /// Sends a signal once to all that are there now.
    fn signal(&self, members: Members, signal: i32) {
        self.tree.signal(members, &self.jobs.known(), signal);
    }

    /// Kills all, and all that they start meanwhile. Who asks for a command while all are ended gets it afterwards.
    async fn kill(&self, members: Members) {
        let _alone = match members {
            Members::All => Some(self.starts.write().await),
            Members::Job { .. } => None,
        };
        let look = || {
            self.reap();
            self.jobs.known()
        };
        self.tree.kill(members, look).await;
    }

    /// Does something as who we are instead of as the commands' user, whose files ours usually are.
    fn as_ourselves<T>(&self, act: impl FnOnce() -> T) -> T {
        let Identity::Drop { uid, .. } = self.boot.user else { return act() };
        sys::use_files_as(0);
        let done = act();
        sys::use_files_as(uid);
        // Both were undone by the change.
        let _ = hide().and_then(|()| die_with_parent(&self.boot));
        done
    }

    /// A buffer for a moment that does not wait for anything.
    fn with_scratch<T>(&self, size: usize, use_it: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut scratch = self.scratch.borrow_mut();
        if scratch.len() < size {
            scratch.resize(size, 0);
        }
        use_it(&mut scratch[..size])
    }
}

/// Where the outcome is told.
pub struct Status {
    socket: Option<OwnedFd>,
    form: Form,
    /// Goes out when all is ready.
    door: Option<OwnedFd>,
}

/// How the outcome is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// It is all that is ever said there, or a packet.
    Alone,
    /// More follows, so its length comes first.
    WithLength,
}

impl Status {
    /// Tells it. Nobody may be listening any more.
    fn tell<T: serde::Serialize>(self, message: &T) {
        if let (Some(status), Ok(mut bytes)) = (self.socket, rmp_serde::to_vec_named(message)) {
            if self.form == Form::WithLength {
                bytes.splice(..0, (bytes.len() as u32).to_be_bytes());
            }
            drop(File::from(status).write_all(&bytes));
        }
    }

    /// Tells that all is ready. The door is not ours any longer.
    fn ready(self) {
        match (&self.socket, &self.door) {
            (Some(status), Some(door)) => door::pass_out(status, door),
            _ => self.tell(&BootReport::Ready),
        }
    }

    /// The same, where more will be told, if there is a door to pass out.
    fn pass_out_door(&mut self) {
        if let (Some(status), Some(door)) = (&self.socket, self.door.take()) {
            door::pass_out(status, &door);
        }
    }
}

/// What was passed at the fixed numbers. Taken first of all: whatever is opened later could get a number that is free.
#[derive(Default)]
struct Passed {
    boot: Option<OwnedFd>,
    /// The boot message itself, where it came in another way.
    message: Option<Vec<u8>>,
    listener: Option<OwnedFd>,
    oom: Option<OwnedFd>,
    pids: Option<OwnedFd>,
    verdicts: Option<OwnedFd>,
    score: Option<OwnedFd>,
    /// Where a server was dialled, and the socket to it.
    dialled: Option<(PathBuf, OwnedFd)>,
    /// What we are known by, if it came apart from the boot message.
    word: Vec<u8>,
}

/// Runs to the end of the sandbox.
pub fn main() {
    if roles::run_if_asked() {
        return;
    }
    let status = Status { socket: sys::take(STATUS_FD), form: Form::Alone, door: None };
    let passed = Passed {
        boot: sys::take(BOOT_FD),
        message: None,
        listener: sys::take(LISTENER_FD),
        oom: sys::take(OOM_FD),
        pids: sys::take(PIDS_FD),
        verdicts: sys::take(VERDICTS_FD),
        score: sys::take(SCORE_FD),
        dialled: None,
        word: Vec::new(),
    };
    sys::close_from(FIRST_FREE_FD);
    begin(passed, status);
}

fn begin(passed: Passed, status: Status) {
    if let Err(why) = start(passed, status) {
        let (status, why) = *why;
        if status.socket.is_none() {
            // Whoever started us reads what else a runtime has to say.
            eprintln!("the executor cannot work: {why}");
        }
        status.tell(&BootReport::Failed(why));
        std::process::exit(1);
    }
}

type NotStarted = Box<(Status, String)>;

fn start(passed: Passed, mut status: Status) -> Result<(), NotStarted> {
    let mut boot = match passed.message.map_or_else(|| read_boot(passed.boot), |message| understand(&message)) {
        Ok(boot) => boot,
        Err(why) => return Err(Box::new((status, why))),
    };
    if !passed.word.is_empty() {
        boot.itself.token = passed.word;
    }
    let ready = set_counts(&boot).and_then(|()| boot.proxy.map(door::open).transpose());
    let tally = match ready.and_then(|door| Ok((door, itself::prepare(&boot)?))) {
        Ok((door, tally)) => {
            status.door = door;
            tally
        }
        Err(why) => return Err(Box::new((status, why))),
    };
    sys::block_signals();
    umask(Mode::from_raw_mode(0o022));
    if getpid().as_raw_nonzero().get() != 1 {
        // What loses its parent comes to us, as it does to the first process of a namespace.
        let _ = set_child_subreaper(Some(getpid()));
    }
    let starter = match Starter::new(passed.score) {
        Ok(starter) => starter,
        Err(error) => {
            return Err(Box::new((status, format!("opening what commands without input read failed: {error}"))));
        }
    };
    let verdicts = passed.verdicts.or_else(|| itself::open_verdicts(&boot));
    let (tree, counters) = (Tree::new(tally), Counters::new(&boot, passed.oom, passed.pids, verdicts));
    if let Attachment::Single(exec) = &boot.attachment {
        if let Err(why) = hide().and_then(|()| die_with_parent(&boot)) {
            return Err(Box::new((status, why)));
        }
        status.pass_out_door();
        return single::run(&boot, exec, &starter, &tree, &counters, status);
    }
    let prepared = become_user(&boot)
        .and_then(|()| die_with_parent(&boot))
        .and_then(|()| Places::open(&boot.places, &boot.workspace));
    let places = match prepared {
        Ok(places) => places,
        Err(why) => return Err(Box::new((status, why))),
    };
    let dialled = passed.dialled.map(|(path, socket)| dial::Dialled::new(path, socket, status.door.as_ref()));
    let executor = Executor {
        jobs: Jobs::new(boot.history.0),
        boot,
        places,
        tree,
        counters,
        starter,
        scratch: RefCell::default(),
        kept: Cell::default(),
        door: if status.form == Form::WithLength { status.door.take() } else { None },
        ending: Notify::new(),
        starts: RwLock::default(),
    };
    serve::run(executor, serve::Ways { listener: passed.listener, dialled }, status)
}

fn read_boot(source: Option<OwnedFd>) -> Result<Boot, String> {
    let source = source.ok_or_else(|| format!("nothing was passed as descriptor {BOOT_FD}"))?;
    let mut bytes = Vec::new();
    let read = File::from(source).take(MAX_BOOT).read_to_end(&mut bytes);
    read.map_err(|error| format!("reading what to do failed: {error}"))?;
    understand(&bytes)
}

fn understand(bytes: &[u8]) -> Result<Boot, String> {
    rmp_serde::from_slice(bytes).map_err(|error| format!("what to do cannot be read: {error}"))
}

/// Before anything else runs here, and while we may: afterwards we have no capability left.
fn set_counts(boot: &Boot) -> Result<(), String> {
    for (name, value) in &boot.counts {
        match std::fs::write(format!("/proc/sys/user/{name}"), value.to_string()) {
            // Older kernels count fewer things.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => other.map_err(|error| format!("setting {name} to {value} failed: {error}"))?,
        }
    }
    if boot.counts.is_empty() {
        return Ok(());
    }
    let none = CapabilitySet::empty();
    clear_ambient_capability_set()
        .and_then(|()| set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }))
        .map_err(|error| format!("giving up capabilities failed: {error}"))
}

/// For files we are the user, and nobody may look into us.
fn become_user(boot: &Boot) -> Result<(), String> {
    if let Identity::Drop { uid, gid } = boot.user {
        sys::become_for_files(uid, gid)
            .map_err(|error| format!("using files as user {uid}, group {gid} is not allowed: {error}"))?;
    }
    hide()
}

/// After every change of who we are, too: the system's setting may make such a process readable.
fn hide() -> Result<(), String> {
    if !wall::stands(Wall::Dumpable) {
        return Ok(());
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| format!("our memory cannot be hidden from commands: {error}"))
}

/// After every change of who we are: each one makes the kernel forget this.
fn die_with_parent(boot: &Boot) -> Result<(), String> {
    if !boot.die_with_parent {
        return Ok(());
    }
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("ending together with who started us cannot be set: {error}"))
}
