//! The launcher: a small process with one thread that makes sandboxes and looks after them.
//!
//! A server starts one and talks with it over standard input. It outlives the server: when the server is gone, it
//! waits for its sandboxes to end (they notice by their lease), removes what is left of them, and ends too. So limits
//! that are watched stay watched, and nothing leaks when a server is killed.

use std::{
    collections::HashMap,
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    event::{Timespec, epoll},
    process::Signal,
};
use sandbox_core::{Bytes, Door, Usage};

use crate::{
    balance::Balance,
    birth::{self, Contact, Newborn, Nursery, Started},
    cgroup::Cgroup,
    disk::{self, Free, Ledger, Look, Occasion},
    executor_image,
    handover::Counter,
    host::Host,
    network::{Network, Stocked},
    orders::{Order, Report},
    plan::{Plan, Watch},
    stage,
    supervise::Supervisor,
    sys::{self, Cloned, ended},
    trash::Trash,
    wire,
};

/// Where a server talks with it.
fn control() -> BorrowedFd<'static> {
    rustix::stdio::stdin()
}

const CONTROL: u64 = 0;
const COUNTER: u64 = u64::MAX;
const DISK_EVERY: Duration = Duration::from_secs(1);
/// Whoever wanted one sandbox may want more, but nobody waits for the stock: a birth takes less than this.
const STOCK_AFTER: Duration = Duration::from_millis(10);

/// Runs until the server is gone and every sandbox has ended.
pub fn run(state: &Path) -> io::Result<()> {
    // Whoever started the server may have left descriptors open that are nobody's business here.
    sys::close_from(3);
    // Every sandbox costs a few descriptors, and the usual soft limit is for programs that still use select(2).
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let limit = rustix::process::Rlimit { current: most, maximum: most };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
    let started = stage::enter().map_err(|error| format!("becoming root of a user namespace failed: {error}"));
    let host = started.and_then(|stage| Host::look(state, stage).map_err(|error| error.to_string()));
    match host {
        Ok(host) => {
            let mut launcher = Launcher::new(host)?;
            launcher.look_at_way_out();
            wire::send_value(control(), &Report::Ready(Box::new(launcher.host.clone())), &[])?;
            launcher.work()
        }
        Err(why) => wire::send_value(control(), &Report::Unusable(why), &[]),
    }
}

struct Launcher {
    host: Host,
    nursery: Nursery,
    counter: Counter,
    epoll: OwnedFd,
    live: HashMap<u64, Live>,
    next_token: u64,
    serving: bool,
    disk: DiskWatch,
    balance: Balance,
    trash: Trash,
    stock_at: Option<Instant>,
    /// Processes that answer a question and end.
    helpers: Vec<OwnedFd>,
}

struct Live {
    name: String,
    folder: PathBuf,
    process: Started,
    cgroup: Cgroup,
    network: Option<Network>,
    supervisor: Option<Supervisor>,
    /// Until it is ready.
    creating: Option<Creating>,
    /// Who waits for it to be gone.
    destroying: Vec<u64>,
}

/// A sandbox on its way.
struct Creating {
    /// Who waits for it.
    ticket: u64,
    contact: Contact,
    channel: Option<OwnedFd>,
    watch: Watch,
}

/// Files are measured by a process of its own, one at a time.
struct DiskWatch {
    due: Instant,
    occasion: Occasion,
    began: Instant,
    /// When it began.
    free: Free,
    ledger: Ledger,
    running: Option<(OwnedFd, OwnedFd, Vec<u64>)>,
}

impl Launcher {
    fn new(host: Host) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, control(), epoll::EventData::new_u64(CONTROL), epoll::EventFlags::IN)?;
        let now = Instant::now();
        let disk = DiskWatch {
            due: now + DISK_EVERY,
            occasion: Occasion::default(),
            began: now,
            free: Free { bytes: 0, files: 0 },
            ledger: Ledger::default(),
            running: None,
        };
        let counter = Counter::open(&host.state)?;
        epoll::add(&epoll, &counter.socket, epoll::EventData::new_u64(COUNTER), epoll::EventFlags::IN)?;
        let nursery = Nursery::new(executor_image::load()?)?;
        let trash = Trash::of(&host.state);
        let live = HashMap::new();
        Ok(Self {
            host,
            nursery,
            counter,
            epoll,
            live,
            next_token: 1,
            serving: true,
            disk,
            balance: Balance::new(),
            trash,
            stock_at: None,
            helpers: Vec::new(),
        })
    }

    /// bwrap makes networks itself. Where none can be made at all, whoever wants one is told.
    fn look_at_way_out(&mut self) {
        if self.host.bwrap.is_none() {
            self.host.way_out = self.nursery.networks.reach().ok();
        }
    }

    fn work(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        while self.serving || !self.live.is_empty() || self.trash.due().is_some() {
            let timeout = self
                .until_due()
                .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                match event.data.u64() {
                    CONTROL => self.take_order(),
                    COUNTER => self.hand_over(),
                    token => self.notice(token),
                }
            }
            self.supervise();
        }
        Ok(())
    }

    fn until_due(&self) -> Option<Duration> {
        let supervisors = self.live.values().filter_map(|live| live.supervisor.as_ref()?.due());
        let disk = (!self.live.is_empty()).then_some(self.disk.due);
        let balance = self.balance.due(&self.host.cgroup).filter(|_| !self.live.is_empty());
        let next = supervisors.chain(disk).chain(balance).chain(self.trash.due()).chain(self.stock_at).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn take_order(&mut self) {
        let mut buffer = vec![0; wire::LONGEST];
        match wire::receive_value(control(), &mut buffer) {
            Ok(Some((Order::Create { ticket, plan }, _))) => self.create(ticket, &plan),
            Ok(Some((Order::Destroy { ticket, name }, _))) => self.destroy(ticket, &name),
            Ok(Some((Order::Usage { ticket, name }, _))) => self.usage(ticket, &name),
            // The server is gone: no more orders, but the sandboxes are still ours to look after.
            Ok(None) | Err(_) => {
                self.serving = false;
                let _ = epoll::delete(&self.epoll, control());
                // A client may wait until its server's error output is closed, and ours is the same.
                let nowhere = fs::OpenOptions::new().write(true).open("/dev/null");
                let _ = nowhere.map(rustix::stdio::dup2_stderr);
            }
        }
    }

    fn hand_over(&self) {
        let doors = |name: &str| {
            let live = self.live.values().find(|live| live.name == name);
            live.map_or(&[][..], Live::doors)
        };
        // Who asks and goes away is not waited for.
        let _ = self.counter.serve(doors);
    }

    fn report(&self, report: &Report, descriptors: &[BorrowedFd<'_>]) {
        if self.serving {
            let _ = wire::send_value(control(), report, descriptors);
        }
    }

    fn create(&mut self, ticket: u64, plan: &Plan) {
        let born = birth::make_folders(plan).and_then(|()| {
            self.trash.expect(&plan.name, &plan.folder);
            self.nursery.bear(plan, &self.host)
        });
        let newborn = match born {
            Ok(newborn) => newborn,
            Err(error) => {
                self.host.cgroup.remove(&plan.name);
                return self.report(&Report::Failed { ticket, why: error.to_string() }, &[]);
            }
        };
        self.stock_at = Some(Instant::now() + STOCK_AFTER);
        let token = self.next_token;
        self.next_token += 1;
        let data = epoll::EventData::new_u64(token);
        let Newborn { process, cgroup, network, channel, contact } = newborn;
        let added = epoll::add(&self.epoll, &*process.child, data, epoll::EventFlags::IN)
            .and_then(|()| epoll::add(&self.epoll, &contact.status, data, epoll::EventFlags::IN));
        if let Err(error) = added {
            birth::end(&process.first);
            cgroup.remove();
            return self.report(&Report::Failed { ticket, why: format!("watching the sandbox failed: {error}") }, &[]);
        }
        let live = Live {
            name: plan.name.clone(),
            folder: plan.folder.clone(),
            process,
            cgroup,
            network,
            supervisor: None,
            creating: Some(Creating { ticket, contact, channel, watch: plan.watch.clone() }),
            destroying: Vec::new(),
        };
        self.live.insert(token, live);
    }

    /// Something happened with a sandbox: its executor reported, or it ended.
    fn notice(&mut self, token: u64) {
        if let Some(live) = self.live.get_mut(&token)
            && let Some(Creating { ticket, contact, channel, watch }) = live.creating.take()
        {
            let _ = epoll::delete(&self.epoll, &contact.status);
            match live.settle(&contact, watch) {
                Ok(()) => {
                    let live = &self.live[&token];
                    let contact = [Some(&*live.process.first), channel.as_ref()].into_iter().flatten();
                    let sockets = live.doors().iter().map(|(_, socket)| socket);
                    let descriptors: Vec<_> = contact.chain(sockets).map(AsFd::as_fd).collect();
                    let doors = live.doors().iter().map(|(door, _)| *door).collect();
                    self.report(&Report::Created { ticket, pid: live.process.pid, doors }, &descriptors);
                }
                Err(why) => {
                    let _ = rustix::process::pidfd_send_signal(&*live.process.first, Signal::KILL);
                    self.report(&Report::Failed { ticket, why }, &[]);
                }
            }
        }
        self.bury_if_ended(token);
    }

    fn bury_if_ended(&mut self, token: u64) {
        let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOHANG;
        let Some(live) = self.live.get(&token) else { return };
        let status = rustix::process::waitid(rustix::process::WaitId::PidFd(live.process.child.as_fd()), options);
        if !matches!(status, Ok(Some(_)) | Err(_)) {
            return;
        }
        let Some(live) = self.live.remove(&token) else { return };
        let _ = epoll::delete(&self.epoll, &*live.process.child);
        live.cgroup.remove();
        self.report(&Report::Ended { name: live.name.clone() }, &[]);
        if let Some(network) = live.network {
            self.nursery.networks.take_back(network);
        }
        if !live.destroying.is_empty() {
            self.trash.take(&live.folder);
            live.destroying.iter().for_each(|&ticket| self.destroyed(ticket));
        }
    }

    fn destroy(&mut self, ticket: u64, name: &str) {
        if let Some(live) = self.live.values_mut().find(|live| live.name == name) {
            live.destroying.push(ticket);
            let _ = rustix::process::pidfd_send_signal(&*live.process.first, Signal::KILL);
            return;
        }
        self.host.cgroup.remove(name);
        self.trash.take(&self.host.state.join("sandboxes").join(name));
        self.destroyed(ticket);
    }

    fn destroyed(&mut self, ticket: u64) {
        self.report(&Report::Destroyed { ticket }, &[]);
        // Now nobody waits for us. What could not be looked at is not used again.
        let _ = self.nursery.networks.inspect();
    }

    /// Counting files may take long, and others must not wait: a process of its own does it, and answers itself.
    fn usage(&mut self, ticket: u64, name: &str) {
        self.helpers.retain(|helper| !ended(helper));
        match sys::clone(0, None) {
            Ok(Cloned::Child) => {
                self.forget_births();
                let live = self.live.values().find(|live| live.name == name);
                let mut usage = match self.host.cgroup.usage(name) {
                    Some((memory, cpu, pids)) => Usage { memory: Bytes(memory), cpu, pids, disk: Bytes(0) },
                    None => live.and_then(|live| Some(live.supervisor.as_ref()?.usage())).unwrap_or_default(),
                };
                let folder = self.host.state.join("sandboxes").join(name);
                usage.disk = Bytes(live.map_or_else(|| disk::look(&folder, None), Live::look_at_files).bytes());
                self.report(&Report::Used { ticket, usage }, &[]);
                sys::exit_now(0)
            }
            Ok(Cloned::Parent { pidfd, .. }) => self.helpers.push(pidfd),
            Err(error) => self.report(&Report::Failed { ticket, why: format!("measuring failed: {error}") }, &[]),
        }
    }

    /// In a child: connections that are not its own must not stay open because of it.
    fn forget_births(&mut self) {
        self.live.values_mut().for_each(|live| live.creating = None);
    }

    fn supervise(&mut self) {
        let now = Instant::now();
        for live in self.live.values_mut() {
            if let Some(supervisor) = &mut live.supervisor
                && supervisor.due().is_some_and(|due| due <= now)
            {
                supervisor.look(now);
            }
        }
        if !self.live.is_empty() && self.balance.due(&self.host.cgroup).is_some_and(|due| due <= now) {
            self.balance.look(&self.host.cgroup, self.live.values().map(|live| live.name.as_str()), now);
        }
        if !self.live.is_empty() && self.disk.due <= now {
            self.disk.due = now + DISK_EVERY;
            self.watch_disk();
        }
        if self.trash.due().is_some_and(|due| due <= now) {
            self.trash.sweep(now, self.serving);
        }
        if self.stock_at.is_some_and(|at| at <= now) {
            let more = self.serving && matches!(self.nursery.networks.stock(), Ok(Stocked::More));
            self.stock_at = more.then_some(now);
        }
    }

    fn watch_disk(&mut self) {
        let Ok(space) = Free::at(&self.host.state) else { return };
        let now = Instant::now();
        if let Some((pidfd, answer, tokens)) = self.disk.running.take() {
            if !ended(&pidfd) {
                self.disk.running = Some((pidfd, answer, tokens));
                return;
            }
            let worked = self.judge_disk(&answer, &tokens, [self.disk.free, space]);
            self.disk.occasion.passed(now, [worked, now - self.disk.began], self.disk.ledger.saw_all());
        }
        if !self.disk.occasion.is_now(space, now) {
            return;
        }
        (self.disk.began, self.disk.free) = (now, space);
        let tokens: Vec<u64> = self.live.keys().copied().collect();
        let Ok((answer, answer_inside)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) else { return };
        match sys::clone(0, None) {
            Ok(Cloned::Child) => {
                self.forget_births();
                let live: Vec<&Live> = tokens.iter().filter_map(|token| self.live.get(token)).collect();
                let folders: Vec<&Path> = live.iter().map(|live| live.folder.as_path()).collect();
                let still = self.disk.ledger.is_puzzled();
                let look = |live: &Live| match &live.supervisor {
                    Some(supervisor) if still => supervisor.while_still(|| live.look_at_files()),
                    _ => live.look_at_files(),
                };
                let looks: Vec<Look> = live.into_iter().map(look).collect();
                let looks = (disk::rest(&self.host.state, &folders), looks, sys::processor_time());
                // A pipe holds the answers for thousands of sandboxes, so this waits for nobody.
                let _ = rustix::io::write(&answer_inside, &rmp_serde::to_vec(&looks).unwrap_or_default());
                sys::exit_now(0)
            }
            Ok(Cloned::Parent { pidfd, .. }) => {
                self.disk.running = Some((pidfd, answer, tokens));
                self.disk.due = Instant::now() + Duration::from_millis(50);
            }
            Err(_) => {}
        }
    }

    /// How long a processor worked for the answer.
    fn judge_disk(&mut self, answer: &OwnedFd, tokens: &[u64], free: [Free; 2]) -> Duration {
        let mut buffer = vec![0; 64 << 10];
        let length = rustix::io::read(answer, &mut buffer).unwrap_or(0);
        let (rest, looks, worked): (u64, Vec<Look>, Duration) =
            rmp_serde::from_slice(&buffer[..length]).unwrap_or_default();
        // Those that ended meanwhile have nothing left to stop.
        let alive = |(token, look): (&u64, Look)| {
            let limit = self.live.get(token)?.supervisor.as_ref()?.disk();
            Some((*token, look, limit))
        };
        let looks: Vec<_> = tokens.iter().zip(looks).filter_map(alive).collect();
        for (token, stop) in self.disk.ledger.judge(free, rest, &looks) {
            if let Some(supervisor) = self.live.get_mut(&token).and_then(|live| live.supervisor.as_mut()) {
                supervisor.stop_writing(stop);
            }
        }
        worked
    }
}

impl Live {
    /// Its executor has said something: it is ready and can be looked after, or why not.
    fn settle(&mut self, contact: &Contact, watch: Watch) -> Result<(), String> {
        if let Some(network) = contact.ready()? {
            self.network = Some(network);
        }
        self.supervisor = contact.supervisor(watch);
        self.supervisor.as_ref().map(drop).ok_or_else(|| "it cannot be watched: its /proc did not arrive".into())
    }

    fn doors(&self) -> &[(Door, OwnedFd)] {
        self.network.as_ref().map_or(&[], |network| &network.doors)
    }

    fn look_at_files(&self) -> Look {
        disk::look(&self.folder, self.supervisor.as_ref().map(Supervisor::proc))
    }
}
