//! One sandbox on this machine, as a server holds it.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use rustix::{
    fs::{Mode, OFlags},
    process::Signal,
};
use sandbox_core::{Channel, Door, Error, Facts, Result, Sandbox, Usage};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    backend::{Answer, LinuxBackend},
    birth::{self, socket_address},
    folder::{self, Lock},
    handover,
    orders::Order,
    sys,
};

/// A sandbox that was made here, adopted after a restart, or belongs to another server of this user.
pub struct LinuxSandbox {
    facts: Facts,
    folder: PathBuf,
    /// Readable when the first process has ended.
    first: Option<AsyncFd<OwnedFd>>,
    backend: Option<LinuxBackend>,
    lock: Option<Lock>,
    /// A connection that was there from the start, until somebody wants one.
    channel: Mutex<Option<(Instant, OwnedFd)>>,
    /// Those that came with it, until somebody wants them.
    doors: Mutex<Option<Vec<(Door, OwnedFd)>>>,
}

/// An executor gives up a connection on which nobody greets.
const FRESH: Duration = Duration::from_secs(1);

impl LinuxSandbox {
    pub(crate) fn new(
        facts: Facts,
        folder: PathBuf,
        lock: Option<Lock>,
        first: Option<OwnedFd>,
        backend: Option<LinuxBackend>,
    ) -> Result<Self> {
        let opening = || Error::io(format!("opening {}", folder.display()));
        let first = first.map(|first| sys::watched(first, Interest::READABLE)).transpose().map_err(opening())?;
        Ok(Self { facts, first, backend, lock, folder, channel: Mutex::default(), doors: Mutex::default() })
    }

    /// With a connection for the first who wants one.
    pub(crate) fn with_channel(mut self, channel: OwnedFd) -> Self {
        self.channel = Mutex::new(Some((Instant::now(), channel)));
        self
    }

    /// With the doors of its way out.
    pub(crate) fn with_doors(mut self, doors: Vec<(Door, OwnedFd)>) -> Self {
        self.doors = Mutex::new(Some(doors));
        self
    }

    /// One that an earlier server left alive.
    pub(crate) fn adopt(folder: &Path, lock: Lock, backend: LinuxBackend) -> Result<Self> {
        let sandbox = Self::open(folder, Some(lock), Some(backend))?;
        sandbox.dial()?;
        Ok(sandbox)
    }

    /// One of another server of this user.
    pub(crate) fn open(folder: &Path, lock: Option<Lock>, backend: Option<LinuxBackend>) -> Result<Self> {
        let facts = folder::facts(folder)?;
        let first = folder::first_process(folder)
            .ok_or_else(|| Error::Ended { id: facts.spec.id.clone(), why: "its first process is gone".into() })?;
        Self::new(facts, folder.into(), lock, Some(first), backend)
    }

    fn dial(&self) -> Result<OwnedFd> {
        // Not blocking: who freezes an executor and fills its queue must not stop us.
        let connect = || -> io::Result<OwnedFd> {
            let socket = birth::socket()?;
            // By name every time: folders are used again, and then have another.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rustix::fs::open(&self.folder, flags, Mode::empty())?;
            rustix::net::connect(&socket, &socket_address(folder.as_fd())?)?;
            Ok(socket)
        };
        connect().map_err(|error| Error::Ended {
            id: self.facts.spec.id.clone(),
            why: format!("its executor does not answer: {error}"),
        })
    }
}

#[async_trait]
impl Sandbox for LinuxSandbox {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    async fn connect(&self) -> Result<Channel> {
        let waiting = self.channel.lock().unwrap_or_else(PoisonError::into_inner).take();
        match waiting.filter(|(since, _)| since.elapsed() < FRESH) {
            Some((_, channel)) => Ok(Channel::Local(channel)),
            None => self.dial().map(Channel::Local),
        }
    }

    async fn usage(&self) -> Result<Usage> {
        let Some(backend) = &self.backend else {
            return Err(Error::Unavailable {
                what: "what this sandbox uses".into(),
                why: "another server looks after it".into(),
                fix: "Ask that server".into(),
            });
        };
        let name = self.facts.spec.id.to_string();
        match backend.order(|ticket| Order::Usage { ticket, name }).await? {
            Answer::Used(usage) => Ok(usage),
            _ => Err(Error::Step { step: "measuring".into(), why: "the launcher answered something else".into() }),
        }
    }

    async fn doors(&self) -> Result<Vec<(Door, OwnedFd)>> {
        if let Some(doors) = self.doors.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Ok(doors);
        }
        let (folder, name) = (self.folder.clone(), self.facts.spec.id.to_string());
        let ask = move || -> io::Result<_> {
            let state = folder.ancestors().nth(2).ok_or(io::ErrorKind::NotFound)?;
            let launcher = folder::launcher(&folder).ok_or(io::ErrorKind::NotFound)?;
            handover::ask(state, launcher, &name)
        };
        let asked = tokio::task::spawn_blocking(ask).await.unwrap_or_else(|error| Err(io::Error::other(error)));
        asked.map_err(|error| Error::Unavailable {
            what: "the network of this sandbox".into(),
            why: format!("the launcher that made it is gone ({error})"),
            fix: "Save its files and create a new sandbox".into(),
        })
    }

    async fn ended(&self) -> String {
        if let Some(first) = &self.first {
            let _ = first.readable().await;
        }
        "its first process has ended".into()
    }

    async fn destroy(&self) -> Result<()> {
        if let Some(first) = &self.first {
            // Ours or not, the first process is this user's own or root's: killing it ends the sandbox.
            let _ = rustix::process::pidfd_send_signal(first.get_ref(), Signal::KILL);
            if tokio::time::timeout(Duration::from_secs(10), first.readable()).await.is_err() {
                // Its folder stays its own, and its lock with it, as long as anything in it may still run.
                let why = "its first process was killed and has not ended after 10 s; try again".into();
                return Err(Error::Step { step: format!("ending {}", self.facts.spec.id), why });
            }
        }
        let Some(backend) = &self.backend else { return Ok(()) };
        let name = self.facts.spec.id.to_string();
        let removed = match backend.order(|ticket| Order::Destroy { ticket, name: name.clone() }).await {
            Ok(_) => Ok(()),
            Err(_) => backend.bury(&name),
        };
        if let Some(lock) = &self.lock {
            lock.release();
        }
        removed
    }
}

impl std::fmt::Debug for LinuxSandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinuxSandbox").field("folder", &self.folder).finish()
    }
}
