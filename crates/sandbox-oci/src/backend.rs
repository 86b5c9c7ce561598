//! The backend as a server sees it: a plan for each sandbox, and a keeper to whom it is given.

use std::{
    fs, io,
    io::Write,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use rustix::process::{Pid, PidfdFlags};
use sandbox_core::{
    Backend, Created, Error, Facts, Policy, Probe, Progress, Recovered, Reference, Result, SandboxSpec, SessionId,
};
use sandbox_image::ImageSettings;
use sandbox_linux::{
    LEASE_VARIABLE, certificates,
    folder::{self, Lock},
    host::Host,
    ids::IdSource,
    images::{self, Standing},
    prepared,
    seccomp::Chosen,
};
use tokio::io::AsyncReadExt;

use crate::{
    explain,
    keeper::{LOOK_ROLE, ROLE, remove_cgroups},
    plan::{self, Plan},
    probe,
    runtime::{Runtime, USUAL},
    sandbox::{OciSandbox, discard},
    talk::Report,
};

/// The name of this backend.
pub const BACKEND: &str = "oci";
/// Beyond the policy's own patience: a keeper tells when that is over.
const GRACE: Duration = Duration::from_secs(10);

/// What to do where commands and executor would have to be the same user.
pub(crate) const MORE_IDS: &str = "Install the package `uidmap` and give yourself ids: `sudo usermod --add-subuids 100000-165535 \
     --add-subgids 100000-165535 $USER`; or use the embedded backend, which needs none";

/// Sandboxes by an OCI runtime.
#[derive(Clone)]
pub struct OciBackend {
    inner: Arc<Inner>,
}

struct Inner {
    state: PathBuf,
    /// Name or path of the runtime.
    wanted: String,
    lease: Duration,
    images: ImageSettings,
    /// Looked at when somebody wants to know.
    found: OnceLock<std::result::Result<Found, String>>,
}

/// What was found on this machine.
#[derive(Clone, Debug)]
pub struct Found {
    /// The runtime.
    pub runtime: Runtime,
    /// All else.
    pub host: Host,
}

impl OciBackend {
    /// For the sandboxes in this state folder, which is the caller's with mode 0700. Nothing is looked at or started yet.
    pub fn new(state: &Path, runtime: Option<&str>, images: ImageSettings) -> Result<Self> {
        for name in ["sandboxes", "trash", "spare", "cache"] {
            let folder = state.join(name);
            fs::create_dir_all(&folder).map_err(Error::io(format!("making {}", folder.display())))?;
        }
        let lease = std::env::var(LEASE_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(60);
        let wanted = runtime.unwrap_or(USUAL).to_owned();
        let lease = Duration::from_secs(lease);
        Ok(Self { inner: Arc::new(Inner { state: state.into(), wanted, lease, images, found: OnceLock::new() }) })
    }

    /// What this machine has. What is missing is looked for again: it may have been installed since.
    pub(crate) async fn found(&self) -> Result<Found> {
        if let Some(Ok(found)) = self.inner.found.get() {
            return Ok(found.clone());
        }
        let inner = Arc::clone(&self.inner);
        let look = move || -> Result<Found> {
            let runtime = Runtime::find(&inner.wanted)?;
            let host = look_at_host(&inner.state)?;
            if host.ids == IdSource::Single {
                let why = "you have one id only, so commands would be root inside, and the executor's equals";
                return Err(Error::Unavailable {
                    what: format!("the backend `{BACKEND}` cannot be used"),
                    why: why.into(),
                    fix: MORE_IDS.into(),
                });
            }
            let _ = inner.found.set(Ok(Found { runtime: runtime.clone(), host: host.clone() }));
            Ok(Found { runtime, host })
        };
        tokio::task::spawn_blocking(look).await.unwrap_or_else(|error| Err(step("looking at this machine", error)))
    }

    /// The name or path that was asked for.
    pub(crate) fn wanted(&self) -> &str {
        &self.inner.wanted
    }

    /// Plans a sandbox, with what has to be looked up or made first.
    pub(crate) async fn plan(
        &self,
        standing: &Standing<'_>,
        found: &Found,
    ) -> Result<(Plan, sandbox_core::Enforcement)> {
        let (spec, named) = (standing.spec.clone().into_owned(), standing.named.clone());
        let (found, lease) = (found.clone(), self.inner.lease);
        let plan = move || {
            let calls = Chosen::find(&spec.policy.privileges)?;
            let prepared = prepared::Prepared::for_spec(&spec, &found.host)?;
            plan::plan(&spec, &calls, &found.host, &found.runtime, &prepared, named.as_ref(), lease)
        };
        tokio::task::spawn_blocking(plan).await.unwrap_or_else(|error| Err(step("planning", error)))
    }

    async fn start(&self, plan: &Plan, lock: &Lock) -> Result<rustix::fd::OwnedFd> {
        let failed = || Error::io("starting the keeper");
        let bytes = rmp_serde::to_vec_named(plan).map_err(io::Error::other).map_err(failed())?;
        let mut command = Command::new("/proc/self/exe");
        // A process group of its own: Ctrl-C is for us, and the keeper has a sandbox to look after. No secret of ours.
        command.arg0(ROLE).env_clear().process_group(0);
        let internal = sandbox_linux::stage::FORCE_SINGLE;
        for name in ["PATH", internal] {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(failed())?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound);
        let pid = pid.map_err(io::Error::from).map_err(failed())?;
        let keeper = rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from).map_err(failed())?;
        lock.note(pid.as_raw_nonzero().get(), 0)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        // Its end is taken note of, whenever that is.
        std::thread::spawn(move || {
            let _ = input.map(|mut input| input.write_all(&bytes));
            child.wait()
        });
        let output = output.ok_or(io::ErrorKind::NotFound).map_err(io::Error::from).map_err(failed())?;
        let heard = hear(output.into(), plan.patience + GRACE).await;
        match heard {
            Ok(Report::Ready) => Ok(keeper),
            Ok(Report::Failed(why)) => Err(Error::Step { step: plan.runtime.path.display().to_string(), why }),
            Err(why) => {
                let _ = rustix::process::pidfd_send_signal(&keeper, rustix::process::Signal::KILL);
                Err(Error::Step { step: "keeping the sandbox".into(), why })
            }
        }
    }
}

async fn hear(output: rustix::fd::OwnedFd, patience: Duration) -> std::result::Result<Report, String> {
    let heard = async {
        let mut bytes = Vec::new();
        let mut output = tokio::net::unix::pipe::Receiver::from_owned_fd(output)?;
        // The keeper lives on, and so does its end of the pipe: what was read so far may be all.
        loop {
            bytes.reserve(64 << 10);
            let length = output.read_buf(&mut bytes).await?;
            match rmp_serde::from_slice(&bytes) {
                Err(_) if length > 0 => {}
                other => return other.map_err(io::Error::other),
            }
        }
    };
    match tokio::time::timeout(patience, heard).await {
        Ok(Ok(report)) => Ok(report),
        Ok(Err(error)) => Err(format!("the keeper ended at once ({error})")),
        Err(_) => Err(format!("the keeper says nothing for {patience:?}")),
    }
}

fn look_at_host(state: &Path) -> Result<Host> {
    let looking = || Error::io("looking at this machine");
    let mut command = Command::new("/proc/self/exe");
    command.arg0(LOOK_ROLE).arg(state).env_clear().stdin(Stdio::null()).stderr(Stdio::null());
    for name in ["PATH", sandbox_linux::stage::FORCE_SINGLE] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    let output = command.output().map_err(looking())?;
    let host: std::result::Result<Host, String> =
        rmp_serde::from_slice(&output.stdout).map_err(io::Error::other).map_err(looking())?;
    host.map_err(|why| sandbox_linux::probe::unusable(&why))
}

fn step(doing: &str, why: impl std::fmt::Display) -> Error {
    Error::Step { step: doing.into(), why: why.to_string() }
}

#[async_trait]
impl Backend for OciBackend {
    async fn probe(&self, policies: &[Policy]) -> Probe {
        probe::probe(self, policies).await
    }

    async fn fetch(&self, image: &Reference, progress: Progress<'_>) -> Result<()> {
        let images = images::of_host(&self.found().await?.host, self.inner.images.clone())?;
        Ok(images.fetch(image, progress).await.map(drop)?)
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Created> {
        let found = self.found().await?;
        // Until it is linked to.
        let standing = images::stand(spec, &found.host)?;
        let (plan, enforcement) = self.plan(&standing, &found).await?;
        let facts = Facts { spec: spec.clone(), backend: BACKEND.into(), enforcement };
        let lock = folder::make(&self.inner.state, &plan.folder)?;
        let made = async {
            folder::describe(&plan.folder, &facts)?;
            certificates::write(&standing.spec, &plan.folder).map_err(Error::io("writing certificates"))?;
            let keeper = self.start(&plan, &lock).await?;
            Ok(keeper)
        };
        match made.await {
            Ok(keeper) => {
                let cgroup = Some(found.host.cgroup.clone());
                Ok(Arc::new(OciSandbox::new(facts, plan.folder, keeper, Some(lock), cgroup)?))
            }
            Err(error) => {
                remove_cgroups(&plan.name);
                found.host.cgroup.remove(&plan.name);
                let _ = discard(&plan.folder);
                Err(error)
            }
        }
    }

    async fn recover(&self) -> Result<Recovered> {
        let mut recovered = Recovered::default();
        let folders = self.inner.state.join("sandboxes");
        let entries = fs::read_dir(&folders).map_err(Error::io(format!("reading {}", folders.display())))?;
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(id) = entry.file_name().to_string_lossy().parse::<SessionId>() else { continue };
            // Of others, or of somebody who was killed before it had said what it is: the embedded backend removes that.
            if folder::facts(&path).map_or(true, |facts| facts.backend != BACKEND) {
                continue;
            }
            // Somebody looks after it; that it is locked is the proof.
            let Ok(Some(lock)) = Lock::take(&path) else { continue };
            let cgroup = self.found().await.map(|found| found.host.cgroup);
            let adopted = match cgroup {
                Ok(cgroup) => OciSandbox::adopt(&path, lock, cgroup.clone()).await.inspect_err(|_| {
                    remove_cgroups(id.as_str());
                    if cgroup.remove(id.as_str()) {
                        *recovered.removed.entry("cgroup".into()).or_default() += 1;
                    }
                }),
                Err(error) => Err(error),
            };
            match adopted {
                Ok(sandbox) => recovered.alive.push(Arc::new(sandbox)),
                Err(_) => recovered.ended.push(id),
            }
        }
        Ok(recovered)
    }
}

/// In words, for who asks what is wrong.
pub(crate) fn in_words(error: &Error) -> (String, Option<String>) {
    match error {
        Error::Unavailable { why, fix, .. } => (why.clone(), Some(fix.clone())),
        other => {
            let text = other.to_string();
            let fix = explain::known(&text).map(|(_, fix)| fix.to_owned());
            (text, fix)
        }
    }
}
