//! One sandbox of a runtime, as a server holds it.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use async_trait::async_trait;
use rustix::process::Signal;
use sandbox_core::{Channel, Door, Error, Facts, Result, Sandbox, Usage};
use sandbox_linux::{
    cgroup::CgroupHost,
    folder::{self, Lock},
    sys,
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    keeper,
    talk::{self, Answer, Ask},
};

/// Everything of a sandbox is gone this soon after it was asked for.
const GONE_AFTER: Duration = Duration::from_secs(20);

/// A sandbox that was made here, adopted after a restart, or belongs to another server of this user.
pub struct OciSandbox {
    facts: Facts,
    folder: PathBuf,
    /// Readable when the keeper has ended, and so the sandbox.
    keeper: AsyncFd<OwnedFd>,
    lock: Option<Lock>,
    cgroup: Option<CgroupHost>,
}

impl OciSandbox {
    /// With its keeper.
    pub(crate) fn new(
        facts: Facts,
        folder: PathBuf,
        keeper: OwnedFd,
        lock: Option<Lock>,
        cgroup: Option<CgroupHost>,
    ) -> Result<Self> {
        let keeper = sys::watched(keeper, Interest::READABLE).map_err(Error::io("watching the keeper"))?;
        Ok(Self { facts, folder, keeper, lock, cgroup })
    }

    /// One that somebody else made.
    pub(crate) fn open(folder: &Path, lock: Option<Lock>, cgroup: Option<CgroupHost>) -> Result<Self> {
        let facts = folder::facts(folder)?;
        let keeper = folder::first_process(folder)
            .ok_or_else(|| Error::Ended { id: facts.spec.id.clone(), why: "its keeper is gone".into() })?;
        Self::new(facts, folder.into(), keeper, lock, cgroup)
    }

    /// One that an earlier server left alive.
    pub(crate) async fn adopt(folder: &Path, lock: Lock, cgroup: CgroupHost) -> Result<Self> {
        let sandbox = Self::open(folder, Some(lock), Some(cgroup))?;
        sandbox.connect().await.map(drop)?;
        Ok(sandbox)
    }

    async fn ask(&self, what: Ask) -> Result<(Answer, Option<OwnedFd>)> {
        let folder = self.folder.clone();
        let asked = tokio::task::spawn_blocking(move || talk::ask(&folder, what)).await;
        asked.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(|error| self.ended_because(&error))
    }

    fn ended_because(&self, error: &io::Error) -> Error {
        Error::Ended { id: self.facts.spec.id.clone(), why: format!("its keeper does not answer: {error}") }
    }

    fn strange(&self, answer: Answer) -> Error {
        let why = match answer {
            Answer::Refused(why) => why,
            other => format!("its keeper answered {other:?}"),
        };
        Error::Ended { id: self.facts.spec.id.clone(), why }
    }

    /// Without its keeper's help: what it left is removed by name.
    fn bury(&self) -> Result<()> {
        if let Some(cgroup) = &self.cgroup {
            keeper::remove_cgroups(self.facts.spec.id.as_str());
            cgroup.remove(self.facts.spec.id.as_str());
        }
        discard(&self.folder)
    }
}

#[async_trait]
impl Sandbox for OciSandbox {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    async fn connect(&self) -> Result<Channel> {
        match self.ask(Ask::Connect).await? {
            (Answer::Connected, Some(connection)) => {
                keeper::channel(connection).ok_or_else(|| self.ended_because(&io::ErrorKind::InvalidData.into()))
            }
            (answer, _) => Err(self.strange(answer)),
        }
    }

    async fn usage(&self) -> Result<Usage> {
        match self.ask(Ask::Usage).await? {
            (Answer::Used(usage), _) => Ok(usage),
            (answer, _) => Err(self.strange(answer)),
        }
    }

    async fn doors(&self) -> Result<Vec<(Door, OwnedFd)>> {
        match self.ask(Ask::Door).await? {
            (Answer::Door, listener) => Ok(listener.map(|listener| (Door::Proxy, listener)).into_iter().collect()),
            (answer, _) => Err(self.strange(answer)),
        }
    }

    async fn ended(&self) -> String {
        let _ = self.keeper.readable().await;
        "its keeper has ended".into()
    }

    async fn destroy(&self) -> Result<()> {
        let removed = match self.ask(Ask::Remove).await {
            Ok((Answer::Removed, _)) => Ok(()),
            // There is no keeper, or it does not listen: the sandbox dies with it.
            _ => {
                let _ = rustix::process::pidfd_send_signal(self.keeper.get_ref(), Signal::KILL);
                if tokio::time::timeout(GONE_AFTER, self.keeper.readable()).await.is_err() {
                    let why = "its keeper was killed and has not ended; try again".into();
                    return Err(Error::Step { step: format!("ending {}", self.facts.spec.id), why });
                }
                self.bury()
            }
        };
        if let Some(lock) = &self.lock {
            lock.release();
        }
        removed
    }
}

/// Puts a folder out of sight, and lets a process of its own remove it, whoever its files belong to.
pub(crate) fn discard(folder: &Path) -> Result<()> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let trash = folder.ancestors().nth(2).unwrap_or(folder).join("trash");
    let _ = fs::create_dir(&trash);
    let aside = trash.join(format!("deleted-{}", name.trim_start_matches('.')));
    match fs::rename(folder, &aside) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io(format!("removing {}", folder.display()))(error)),
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0(keeper::SWEEP_ROLE).arg(&aside).env_clear().process_group(0);
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Ok(mut child) = command.spawn() {
        // Somebody has to take note of its end.
        std::thread::spawn(move || drop(child.wait()));
    }
    Ok(())
}

impl std::fmt::Debug for OciSandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OciSandbox").field("folder", &self.folder).finish()
    }
}
