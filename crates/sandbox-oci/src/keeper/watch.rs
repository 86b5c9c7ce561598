//! What a keeper watches: memory that gVisor gives to commands, files, and fractions of a processor where no cgroup counts
//! them. Whoever goes over is ended inside, by the executor; an executor that does not do so is ended with all the rest.

use std::{
    cell::{Cell, RefCell},
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::PathBuf,
    rc::Rc,
    time::{Duration, Instant},
};

use rustix::{
    fs::{Mode, OFlags},
    net::sockopt,
};
use sandbox_core::{Bytes, Channel, Usage, exec::DiskTrouble};
use sandbox_executor::{boot::Verdicts, client::Client, protocol::Target};
use sandbox_linux::{
    cgroup::CgroupHost,
    disk::{self, Free, Ledger, Look, Occasion},
    plan::Watch,
    supervise::Supervisor,
};

use super::serve::Waiting;
use crate::plan::{GVISORS_OWN, Plan};

/// How often memory is looked at: near the limit, and far from it.
const NEAR: Duration = Duration::from_millis(2);
const FAR: Duration = Duration::from_millis(100);
/// Nobody fills memory faster than this, in bytes for each millisecond.
const FASTEST: u64 = 4 << 20;
/// What ended commands had is given back after a moment.
const GIVEN_BACK: Duration = Duration::from_secs(30);
/// More than this is not what is still on its way.
const GROWTH: u64 = 16 << 20;
/// An executor that is asked to end its commands does so soon.
const OBEYED: Duration = Duration::from_secs(15);
/// The same where files are the matter, which may be many and keep it busy.
const OBEYED_LATER: Duration = Duration::from_secs(60);
/// Nobody waits longer to hear how many processes there are.
const ANSWERED: Duration = Duration::from_secs(3);
const DISK_EVERY: Duration = Duration::from_secs(1);
/// What gVisor keeps for commands in memory of its own (pipes, sockets) ends them before its share is used up.
const SOON: u64 = GVISORS_OWN.0 / 4 * 3;
/// What gVisor keeps the memory of commands in.
const MEMORY_FILE: &str = "runsc-memory";

/// Watches one sandbox.
pub struct Watching {
    name: String,
    state: PathBuf,
    folder: PathBuf,
    watch: Watch,
    cgroup: CgroupHost,
    /// The runtime's own `/proc`: it shows the sandbox's processes and no others.
    proc: OwnedFd,
    supervisor: RefCell<Supervisor>,
    memory: Option<Memory>,
    page: File,
    verdicts: Cell<Verdicts>,
    waiting: Rc<Waiting>,
}

impl Watching {
    /// Of a sandbox whose executor has called.
    pub fn new(plan: &Plan, runtime: &OwnedFd, page: File, waiting: Rc<Waiting>) -> io::Result<Self> {
        let number = process_of(runtime)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = rustix::fs::open(format!("/proc/{number}/root/proc"), flags, Mode::empty())?;
        let processor = Watch { cpu_millis: plan.watch.cpu_millis, ..Watch::default() };
        let supervisor = Supervisor::new(processor, proc.try_clone()?, page.try_clone()?.into());
        let memory = memory_file(&proc);
        if plan.watch.memory.is_some() && memory.is_none() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "gVisor's memory cannot be looked at"));
        }
        Ok(Self {
            name: plan.name.clone(),
            state: plan.state.clone(),
            folder: plan.folder.clone(),
            watch: plan.watch.clone(),
            cgroup: plan.cgroup.clone(),
            proc,
            supervisor: RefCell::new(supervisor),
            memory,
            page,
            verdicts: Cell::default(),
            waiting,
        })
    }

    /// Watches until the sandbox has to end as a whole.
    pub async fn go_on(&self) {
        tokio::select! {
            () = self.memory() => {}
            () = self.disk() => {}
            () = self.processor() => {}
        }
    }

    /// What it uses.
    pub async fn usage(&self) -> Usage {
        let own = self.memory.as_ref().and_then(|_| self.cgroup.usage(&self.name));
        let mut usage = match own {
            Some((memory, cpu, pids)) => Usage { memory: Bytes(memory), cpu, pids, disk: Bytes(0) },
            None => self.supervisor.borrow().usage(),
        };
        if let Some(memory) = self.memory_used() {
            usage.memory = Bytes(memory);
            // What this machine sees are gVisor's own threads.
            usage.pids = self.processes().await.unwrap_or_default();
        }
        usage.disk = Bytes(disk::look(&self.folder, Some(self.proc.as_fd())).bytes());
        usage
    }

    /// Processes in a sandbox that has its own kernel, as its executor counts them.
    async fn processes(&self) -> Option<u32> {
        let ask = async {
            let client = Client::connect(channel(self.waiting.take().await?)?).await.ok()?;
            client.usage().await.ok().map(|running| running.processes)
        };
        tokio::time::timeout(ANSWERED, ask).await.ok()?
    }

    fn memory_used(&self) -> Option<u64> {
        self.memory.as_ref()?.of_commands()
    }

    /// How much may still be taken: by commands, and by all that gVisor keeps for them too, of which it gets its own share.
    fn room(&self, limit: Bytes) -> Option<u64> {
        let used = self.memory_used().unwrap_or_default();
        let own = self.memory.as_ref().and_then(Memory::of_gvisor).unwrap_or_default();
        let together = (limit.0 + SOON).checked_sub(used + own);
        limit.0.checked_sub(used).and_then(|room| together.map(|together| room.min(together)))
    }

    async fn memory(&self) {
        let Some(limit) = self.watch.memory else { return std::future::pending().await };
        loop {
            if let Some(room) = self.room(limit) {
                let pause = Duration::from_millis(room / FASTEST);
                tokio::time::sleep(pause.clamp(NEAR, FAR)).await;
                continue;
            }
            let used = self.memory_used().unwrap_or_default();
            let verdicts = self.verdicts.get();
            self.publish(Verdicts { memory: verdicts.memory + 1, memory_used: used, ..verdicts });
            let ended = tokio::select! {
                ended = self.end_commands(OBEYED) => ended,
                () = self.is_twice(limit) => false,
            };
            if !ended {
                return;
            }
            // Who started meanwhile was ended too, for the same reason.
            let verdicts = self.verdicts.get();
            self.publish(Verdicts { memory: verdicts.memory + 1, ..verdicts });
            if !self.is_given_back(limit).await {
                return;
            }
        }
    }

    /// An executor that takes so long does not hold its commands.
    async fn is_twice(&self, limit: Bytes) {
        let twice = Bytes(limit.0.saturating_mul(2).saturating_add(GVISORS_OWN.0));
        while self.room(twice).is_some() && self.memory_used().unwrap_or_default() < limit.0.saturating_mul(2) {
            tokio::time::sleep(NEAR).await;
        }
    }

    /// Waits until memory is given back, which takes gVisor a moment, or until somebody new takes more. False where neither
    /// happens.
    async fn is_given_back(&self, limit: Bytes) -> bool {
        let (end, before) = (Instant::now() + GIVEN_BACK, self.memory_used().unwrap_or_default());
        while Instant::now() < end {
            let used = self.memory_used().unwrap_or_default();
            if self.room(limit).is_some() || used > before.saturating_add(GROWTH) {
                return true;
            }
            tokio::time::sleep(NEAR).await;
        }
        false
    }

    async fn processor(&self) {
        loop {
            let Some(due) = self.supervisor.borrow().due() else { return std::future::pending().await };
            tokio::time::sleep_until(due.into()).await;
            self.supervisor.borrow_mut().look(Instant::now());
        }
    }

    async fn disk(&self) {
        let Some(limit) = self.watch.disk else { return std::future::pending().await };
        let (mut occasion, mut ledger) = (Occasion::default(), Ledger::default());
        // At once for the first time: what goes missing later is told by what was there before.
        let mut times = tokio::time::interval(DISK_EVERY);
        times.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            times.tick().await;
            let Ok(before) = Free::at(&self.state) else { continue };
            if !occasion.is_now(before, Instant::now()) {
                continue;
            }
            let began = Instant::now();
            let look = self.look_at_files(ledger.is_puzzled()).await;
            let Ok(after) = Free::at(&self.state) else { continue };
            let stop = ledger.judge([before, after], 0, &[(0, look, Some(limit))]).pop();
            occasion.passed(Instant::now(), [began.elapsed(); 2], ledger.saw_all());
            let Some((_, stop)) = stop else { continue };
            let verdicts = self.verdicts.get();
            let (disk_used, trouble) = (stop.used.unwrap_or(u64::MAX), stop.trouble);
            self.publish(Verdicts { disk: verdicts.disk + 1, disk_used, trouble, ..verdicts });
            if !self.end_commands(OBEYED_LATER).await {
                return;
            }
        }
    }

    /// Many files take long, and others must not wait. What moves while it is looked at is stopped for that time.
    async fn look_at_files(&self, still: bool) -> Look {
        if still {
            let look = || disk::look(&self.folder, Some(self.proc.as_fd()));
            return self.supervisor.borrow().while_still(look);
        }
        let folder = self.folder.clone();
        let Ok(proc) = self.proc.try_clone() else { return unreadable() };
        let look = move || disk::look(&folder, Some(proc.as_fd()));
        tokio::task::spawn_blocking(look).await.unwrap_or_else(|_| unreadable())
    }

    fn publish(&self, verdicts: Verdicts) {
        self.verdicts.set(verdicts);
        let _ = self.page.write_all_at(&verdicts.to_bytes(), 0);
    }

    /// Asks the executor to end every command. False where it does not.
    async fn end_commands(&self, patience: Duration) -> bool {
        let ask = async {
            let client = Client::connect(channel(self.waiting.take().await?)?).await.ok()?;
            client.signal(Target::All, 9).await.ok()
        };
        matches!(tokio::time::timeout(patience, ask).await, Ok(Some(())))
    }
}

/// A connection of the executor, by what its socket carries.
pub fn channel(socket: OwnedFd) -> Option<Channel> {
    match sockopt::socket_type(&socket).ok()? {
        rustix::net::SocketType::SEQPACKET => Some(Channel::Local(socket)),
        _ => {
            rustix::io::ioctl_fionbio(&socket, true).ok()?;
            let stream = tokio::net::UnixStream::from_std(socket.into()).ok()?;
            Some(Channel::Stream(Box::new(stream)))
        }
    }
}

fn unreadable() -> Look {
    Look { size: Err(DiskTrouble::Unreadable), unseen: true }
}

fn process_of(pidfd: &OwnedFd) -> io::Result<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let number = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    number.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Where a sandbox's memory is seen.
struct Memory {
    /// What gVisor keeps the memory of commands in.
    file: OwnedFd,
    /// What this machine tells about gVisor itself.
    status: OwnedFd,
}

impl Memory {
    fn of_commands(&self) -> Option<u64> {
        Some(rustix::fs::fstat(&self.file).ok()?.st_blocks as u64 * 512)
    }

    fn of_gvisor(&self) -> Option<u64> {
        let mut text = [0; 4096];
        let length = rustix::io::pread(&self.status, &mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..length]).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
    }
}

/// Found once: from then on its size is asked for by descriptor.
fn memory_file(proc: &OwnedFd) -> Option<Memory> {
    let open = |path: String| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(proc, path, flags, Mode::empty()).and_then(rustix::fs::Dir::new).ok()
    };
    for process in names(open(".".into())?) {
        let Some(descriptors) = open(format!("{process}/fd")) else { continue };
        for number in names(descriptors) {
            let path = format!("{process}/fd/{number}");
            let target = rustix::fs::readlinkat(proc, path.as_str(), Vec::new()).ok();
            if target.is_some_and(|target| target.to_string_lossy().contains(MEMORY_FILE)) {
                let open = |path: String, flags| rustix::fs::openat(proc, path, flags | OFlags::CLOEXEC, Mode::empty());
                let status = open(format!("{process}/status"), OFlags::RDONLY).ok()?;
                return open(path, OFlags::PATH).ok().map(|file| Memory { file, status });
            }
        }
    }
    None
}

fn names(folder: rustix::fs::Dir) -> Vec<String> {
    let names = folder.flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
    names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).collect()
}
