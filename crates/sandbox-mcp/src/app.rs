//! The wiring: settings, backend and centre put together, once, for every door.

use std::{path::Path, sync::Arc};

use anyhow::Context;
use sandbox_core::{Backend, Sandbox, SessionId, UserId};

use sandbox_linux::LinuxBackend;
use sandbox_oci::OciBackend;

use crate::{
    agent::Tasks,
    config::{self, Settings},
    mcp::{self, Client},
    sandboxes::{Backends, Kept, Sandboxes},
};

/// Everything that a door needs. Clones are the same program.
#[derive(Clone)]
pub struct App {
    /// What the operator wants.
    pub settings: Arc<Settings>,
    /// The centre.
    pub sandboxes: Sandboxes,
    /// The client of a server, once there is one.
    pub client: Client,
    /// Tasks that this program works on.
    pub tasks: Tasks,
    /// Who is on the terminal or on standard streams: the operating system's user.
    pub caller: UserId,
}

impl App {
    /// A server: adopts what an earlier one left, and cleans up what nobody uses.
    pub async fn serve(settings: Settings) -> anyhow::Result<Self> {
        let settings = Arc::new(settings);
        let backends = backends(&settings)?;
        let client = Client::default();
        let offer = mcp::inside::offer(settings.clone(), client.clone());
        let sandboxes = Sandboxes::open(settings.clone(), backends, attach, offer).await?;
        Ok(Self { settings, sandboxes, tasks: Tasks::default(), caller: UserId::local(), client })
    }

    /// One command that makes sandboxes of its own.
    pub fn make(settings: Settings) -> anyhow::Result<Self> {
        let settings = Arc::new(settings);
        let backends = backends(&settings)?;
        let sandboxes = Sandboxes::visit(settings.clone(), Some(backends), attach, Kept::All)?;
        Ok(Self { settings, sandboxes, tasks: Tasks::default(), caller: UserId::local(), client: Client::default() })
    }

    /// One command in a sandbox that ends with it: only its connections are written down.
    pub fn make_one(settings: Settings) -> anyhow::Result<Self> {
        let settings = Arc::new(settings);
        let backends = backends(&settings)?;
        let sandboxes = Sandboxes::visit(settings.clone(), Some(backends), attach, Kept::Network)?;
        Ok(Self { settings, sandboxes, tasks: Tasks::default(), caller: UserId::local(), client: Client::default() })
    }

    /// One command that only reaches sandboxes which exist.
    pub fn reach(settings: Settings) -> anyhow::Result<Self> {
        config::prepare_state(&settings.state)?;
        let settings = Arc::new(settings);
        let sandboxes = Sandboxes::visit(settings.clone(), None, attach, Kept::All)?;
        Ok(Self { settings, sandboxes, tasks: Tasks::default(), caller: UserId::local(), client: Client::default() })
    }

    /// On whose behalf the person at the terminal acts on this sandbox: labels keep apart whom a client serves, and all
    /// of those are this person's.
    pub fn owner_of(&self, id: &SessionId) -> UserId {
        self.sandboxes.owner_of(id).unwrap_or_else(|| self.caller.clone())
    }
}

/// All backends, of which the operator chose one as the default, in a state folder that is ours.
pub fn backends(settings: &Settings) -> anyhow::Result<Backends> {
    let backends = Backends::new(settings.backend.as_str());
    let backends = backends.with(sandbox_linux::BACKEND, embedded(settings)?);
    let backends = backends.with(sandbox_docker::BACKEND, engine(settings)?);
    Ok(backends.with(sandbox_oci::BACKEND, runtime(settings)?))
}

/// Containers of an engine, which is looked for when somebody wants one.
pub fn engine(settings: &Settings) -> anyhow::Result<Arc<dyn Backend>> {
    config::prepare_state(&settings.state)?;
    let options = sandbox_docker::Options { address: None, image: settings.engine_images.default.clone() };
    Ok(Arc::new(sandbox_docker::DockerBackend::new(&settings.state, options)?))
}

/// An OCI runtime, which is looked for when somebody wants it.
pub fn runtime(settings: &Settings) -> anyhow::Result<Arc<dyn Backend>> {
    config::prepare_state(&settings.state)?;
    Ok(Arc::new(OciBackend::new(&settings.state, settings.oci_runtime.as_deref(), settings.images.clone())?))
}

/// The embedded backend.
pub fn embedded(settings: &Settings) -> anyhow::Result<Arc<dyn Backend>> {
    config::prepare_state(&settings.state)?;
    let backend = LinuxBackend::start_with(&settings.state, settings.images.clone());
    Ok(Arc::new(backend.context("sandboxes cannot be made on this machine (`sandbox-mcp doctor` says more)")?))
}

/// A sandbox of another server of this user, by its folder.
fn attach(folder: &Path) -> sandbox_core::Result<Arc<dyn Sandbox>> {
    match sandbox_linux::folder::facts(folder)?.backend.as_str() {
        sandbox_docker::BACKEND => sandbox_docker::attach(folder),
        sandbox_oci::BACKEND => sandbox_oci::attach(folder),
        _ => sandbox_linux::attach(folder),
    }
}
