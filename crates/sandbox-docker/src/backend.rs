//! The backend as a server sees it: an engine that is found when it is needed, and containers in a state folder.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use sandbox_core::{
    Backend, Created, Error, Facts, Policy, Probe, Progress, Recovered, Reference, Result, SandboxSpec,
};
use sandbox_linux::{folder, seccomp::Chosen};
use tokio::sync::OnceCell;

use crate::{
    BACKEND,
    engine::Engine,
    holdings, image, labels,
    make::Making,
    nature::{Kind, Nature},
    plan, probe, recover, removal, volumes,
};

/// How long a sandbox waits for a server before it ends, in seconds.
const LEASE_VARIABLE: &str = "SANDBOX_MCP_LEASE_SECONDS";

/// What the operator chose.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where the engine is; where one usually is, if not said.
    pub address: Option<String>,
    /// What sandboxes start from that name no image.
    pub image: Option<Reference>,
}

/// Sandboxes in containers.
#[derive(Clone)]
pub struct DockerBackend {
    inner: Arc<Inner>,
}

struct Inner {
    state: PathBuf,
    state_id: String,
    lease: Duration,
    options: Options,
    engine: OnceCell<Engine>,
}

impl DockerBackend {
    /// For the sandboxes in this state folder, which is the caller's with mode 0700. No engine has to be there yet.
    pub fn new(state: &Path, options: Options) -> Result<Self> {
        for name in ["sandboxes", "trash", "spare", "cache"] {
            let folder = state.join(name);
            fs::create_dir_all(&folder).map_err(Error::io(format!("making {}", folder.display())))?;
        }
        let lease = std::env::var(LEASE_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(60);
        let (state_id, engine) = (labels::state_id(state)?, OnceCell::new());
        let inner = Inner { state: state.into(), state_id, lease: Duration::from_secs(lease), options, engine };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The engine. One that was not there is looked for again the next time.
    pub(crate) async fn engine(&self) -> Result<&Engine> {
        self.inner.engine.get_or_try_init(|| Engine::find(self.inner.options.address.as_deref())).await
    }

    pub(crate) fn state(&self) -> &Path {
        &self.inner.state
    }

    pub(crate) fn state_id(&self) -> &str {
        &self.inner.state_id
    }

    pub(crate) fn default_image(&self) -> Option<&Reference> {
        self.inner.options.image.as_ref()
    }
}

#[async_trait]
impl Backend for DockerBackend {
    async fn probe(&self, policies: &[Policy]) -> Probe {
        probe::probe(self, policies).await
    }

    async fn fetch(&self, image: &Reference, progress: Progress<'_>) -> Result<()> {
        let docker = &self.engine().await?.docker;
        if image::inspect(docker, image).await?.is_some() {
            return Ok(());
        }
        image::fetch(docker, image, progress).await
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<Created> {
        let engine = self.engine().await?;
        check_runtime(spec, &engine.nature)?;
        plan::check_places(spec)?;
        let calls = Chosen::find(&spec.policy.privileges)?;
        let name = image::wanted(&spec.image, self.default_image())?;
        let image = image::find(&engine.docker, &name).await?;
        volumes::check(&image)?;
        let folder = self.state().join("sandboxes").join(spec.id.as_str());
        // First: what is at the engine and has no folder that somebody holds is removed by any other server.
        let lock = folder::make(self.state(), &folder)?;
        let held = async {
            let covered = crate::programs::covered(spec, engine, &image, self.state(), self.state_id()).await?;
            let enforcement = holdings::of(spec, &engine.nature, &calls.to_string(), covered.as_ref());
            enforcement.satisfies(&spec.policy)?;
            Ok((covered.unwrap_or_default(), enforcement))
        };
        let (covered, enforcement) = match held.await {
            Ok(held) => held,
            Err(error) => {
                removal::folder(self.state(), &folder)?;
                return Err(error);
            }
        };
        let facts = Facts { spec: spec.clone(), backend: BACKEND.into(), enforcement };
        let making = Making {
            engine,
            facts,
            folder,
            image,
            calls,
            covered: covered.files,
            state: self.state(),
            state_id: self.state_id(),
            lease: self.inner.lease,
        };
        making.make(lock).await
    }

    async fn recover(&self) -> Result<Recovered> {
        recover::recover(self).await
    }
}

/// The runtime that a policy names must be one of the engine's.
pub fn check_runtime(spec: &SandboxSpec, engine: &Nature) -> Result<()> {
    let Some(wanted) = &spec.policy.privileges.runtime else { return Ok(()) };
    let unknown = |why: String, fix: String| Error::Unavailable {
        what: format!("the runtime `{wanted}` of the policy `{}`", spec.policy.name),
        why,
        fix,
    };
    if engine.kind == Kind::Podman {
        if engine.default_runtime == *wanted {
            return Ok(());
        }
        let why = format!("Podman takes `{}` for all containers that are asked for this way", engine.default_runtime);
        let fix = format!("Start its service with that runtime: `podman --runtime {wanted} system service …`");
        return Err(unknown(why, fix));
    }
    if engine.runtime(Some(wanted)).is_some() {
        return Ok(());
    }
    let known: Vec<&str> = engine.runtimes.keys().map(String::as_str).collect();
    let why = format!("the engine does not know it; it knows {}", known.join(", "));
    let fix = match wanted.as_str() {
        "runsc" => {
            "Install gVisor and tell Docker of it (`runsc install -- --network=none --overlay2=none`), then restart Docker".to_owned()
        }
        other => format!("Add it to \"runtimes\" in /etc/docker/daemon.json and restart Docker, or use one of those for `{other}`"),
    };
    Err(unknown(why, fix))
}
