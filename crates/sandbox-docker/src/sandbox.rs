//! One container of ours, as a server holds it.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bollard::query_parameters::InspectContainerOptions;
use sandbox_core::{Bytes, Channel, Control, Door, Error, Facts, Held, Result, Sandbox, Usage};
use sandbox_executor::client::{Client, Running};
use sandbox_linux::folder::{self, Lock};
use tokio::{io::unix::AsyncFd, sync::OnceCell};

use crate::{
    engine::Engine,
    failure, fault,
    line::Line,
    network,
    record::{self, Record},
    removal,
    usage::{self, Cgroup},
};

/// Between two questions to an engine whether a container still runs.
const PAUSE: Duration = Duration::from_secs(2);

/// A container that was made here, adopted after a restart, or belongs to another server of this user.
pub struct DockerSandbox {
    facts: Facts,
    folder: PathBuf,
    record: Record,
    engine: OnceCell<Engine>,
    lock: Option<Lock>,
    line: Line,
    /// Readable when the first process has ended, where that is on this machine.
    first: Option<AsyncFd<OwnedFd>>,
    /// Those that were made with it, until somebody wants them.
    doors: Mutex<Option<network::Doors>>,
    gone: AtomicBool,
}

impl DockerSandbox {
    /// One whose executor answers.
    pub fn new(facts: Facts, folder: PathBuf, record: Record, lock: Option<Lock>, line: Line) -> Result<Self> {
        let opening = || Error::io(format!("opening {}", folder.display()));
        let first = match &record.line {
            record::Line::Streams { .. } => None,
            record::Line::Socket { .. } => {
                let ended = || Error::Ended { id: facts.spec.id.clone(), why: "its first process is gone".into() };
                let first = folder::first_process(&folder).ok_or_else(ended)?;
                Some(sandbox_linux::watched(first, tokio::io::Interest::READABLE).map_err(opening())?)
            }
        };
        Ok(Self {
            facts,
            folder,
            record,
            engine: OnceCell::new(),
            lock,
            line,
            first,
            doors: Mutex::default(),
            gone: AtomicBool::new(false),
        })
    }

    /// One of which nothing is known but its folder.
    pub fn open(folder: &Path, lock: Option<Lock>) -> Result<Self> {
        let (facts, record) = (folder::facts(folder)?, Record::read(folder)?);
        let line = Line::to(folder, &record);
        Self::new(facts, folder.to_owned(), record, lock, line)
    }

    /// With the engine that it runs at.
    pub fn with_engine(mut self, engine: Engine) -> Self {
        self.engine = OnceCell::new_with(Some(engine));
        self
    }

    /// Ours from now on.
    pub fn with_lock(mut self, lock: Lock) -> Self {
        self.lock = Some(lock);
        self
    }

    /// With the doors of its way out.
    pub fn with_doors(mut self, doors: Option<network::Doors>) -> Self {
        self.doors = Mutex::new(doors);
        self
    }

    async fn engine(&self) -> Result<&Engine> {
        self.engine.get_or_try_init(|| Engine::find(Some(&self.record.address))).await
    }

    fn ended_error(&self, why: impl Into<String>) -> Error {
        Error::Ended { id: self.facts.spec.id.clone(), why: why.into() }
    }

    /// What only the executor can count: bytes of kept files, and processes where they have a kernel of their own.
    async fn running(&self) -> Option<Running> {
        let client = Client::connect(self.connect().await.ok()?).await.ok()?;
        client.usage().await.ok()
    }

    fn is_running(&self) -> bool {
        !self.gone.load(Ordering::Relaxed) && (self.first.is_none() || folder::first_process(&self.folder).is_some())
    }
}

impl DockerSandbox {
    /// Whether its processes have a cgroup that nobody else is in: only then is it limited by one.
    fn has_cgroup(&self) -> bool {
        let memory = self.facts.enforcement.0.get(&Control::Memory);
        memory.is_some_and(|holding| holding.held == Held::Kernel)
    }
}

#[async_trait]
impl Sandbox for DockerSandbox {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    async fn connect(&self) -> Result<Channel> {
        if !self.is_running() {
            return Err(self.ended_error("its container is gone"));
        }
        self.line
            .connect(self)
            .await
            .map_err(|error| self.ended_error(format!("its executor does not answer: {error}")))
    }

    async fn usage(&self) -> Result<Usage> {
        let here = match self.record.line {
            record::Line::Socket { pid, .. } if self.has_cgroup() => {
                Cgroup::of(pid).ok().and_then(|cgroup| cgroup.usage())
            }
            record::Line::Socket { pid, .. } => Some(usage::of_tree(pid)),
            record::Line::Streams { .. } => None,
        };
        let usage = match here {
            Some(usage) => usage,
            None => usage::asked(&self.engine().await?.docker, &self.record.container).await?,
        };
        let running = self.running().await;
        let disk = Bytes(running.as_ref().and_then(|running| running.kept).unwrap_or_default());
        let runtime = self.facts.spec.policy.privileges.runtime.as_deref();
        // What this machine sees of gVisor are its own threads.
        let pids = match self.engine().await?.nature.is_gvisor(runtime) {
            true => running.map_or(0, |running| running.processes),
            false => usage.pids,
        };
        Ok(Usage { disk, pids, ..usage })
    }

    async fn doors(&self) -> Result<Vec<(Door, OwnedFd)>> {
        if !self.facts.spec.has_way_out() {
            return Ok(Vec::new());
        }
        if let Some(doors) = self.doors.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Ok(doors);
        }
        let lost = |error: io::Error| Error::Unavailable {
            what: "the network of this sandbox".into(),
            why: error.to_string(),
            fix: "Save its files and create a new sandbox".into(),
        };
        match (&self.record.wired, &self.record.line) {
            (Some(reach), record::Line::Socket { pid, .. }) => {
                let (pid, reach) = (*pid, reach.clone());
                let opened = tokio::task::spawn_blocking(move || network::reopen(pid, reach)).await;
                opened.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(lost)
            }
            _ => self.line.doors(self).await.map_err(lost),
        }
    }

    async fn ended(&self) -> String {
        if let Some(first) = &self.first {
            let _ = first.readable().await;
            return "its container has ended".into();
        }
        loop {
            tokio::time::sleep(PAUSE).await;
            let Ok(engine) = self.engine().await else { continue };
            let found = engine.docker.inspect_container(&self.record.container, None::<InspectContainerOptions>).await;
            match found {
                Err(error) if failure::is_missing(&error) => return "its container was removed".into(),
                Ok(found) if found.state.as_ref().and_then(|state| state.running) == Some(false) => {
                    return "its container has ended".into();
                }
                _ => {}
            }
        }
    }

    async fn destroy(&self) -> Result<()> {
        let engine = self.engine().await?;
        match engine.nature.own_kernel(self.facts.spec.policy.privileges.runtime.as_deref()) {
            true => removal::container_with_kernel(engine, &self.record.container).await?,
            false => removal::container(&engine.docker, &self.record.container).await?,
        }
        self.gone.store(true, Ordering::Relaxed);
        for volume in &self.record.volumes {
            removal::volume(&engine.docker, volume).await?;
        }
        fault::point("volumes_removed");
        self.line.hang_up();
        let state = self.folder.ancestors().nth(2).unwrap_or(&self.folder).to_owned();
        removal::folder(&state, &self.folder)?;
        if let Some(lock) = &self.lock {
            lock.release();
        }
        Ok(())
    }
}

#[async_trait]
impl crate::line::Asked for DockerSandbox {
    async fn docker(&self) -> io::Result<&bollard::Docker> {
        self.engine().await.map(|engine| &engine.docker).map_err(|error| io::Error::other(error.to_string()))
    }
}

/// As everybody sees it.
pub fn shared(sandbox: DockerSandbox) -> Arc<dyn Sandbox> {
    Arc::new(sandbox)
}
