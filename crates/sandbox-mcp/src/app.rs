//! The wiring: settings, backend and centre put together, once, for every door.

use std::{path::Path, sync::Arc};

use anyhow::Context;
use sandbox_core::{Backend, Sandbox, SessionId, UserId};

use sandbox_linux::LinuxBackend;

use crate::{
    agent::Tasks,
    config::{self, Settings},
    sandboxes::{Backends, Kept, Sandboxes},
};

/// Everything that a door needs. Clones are the same program.
#[derive(Clone)]
pub struct App {
    /// What the operator wants.
    pub settings: Arc<Settings>,
    /// The centre.
    pub sandboxes: Sandboxes,
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
        let sandboxes = Sandboxes::open(settings.clone(), backends, attach).await?;
        Ok(Self { settings, sandboxes, tasks: Tasks::default(), caller: UserId::local() })
    }

    /// One command that makes sandboxes of its own.
    pub fn make(settings: Settings) -> anyhow::Result<Self> {
        let settings = Arc::new(settings);
        let backends = backends(&settings)?;
        let sandboxes = Sandboxes::visit(settings.clone(), Some(backends), attach, Kept::All)?;
        Ok(Self { settings, sandboxes, tasks: Tasks::default(), caller: UserId::local() })
    }

    /// One command in a sandbox that ends with it: only its connections are written down.
    pub fn make_one(settings: Settings) -> anyhow::Result<Self> {
        let settings = Arc::new(settings);
        let backends = backends(&settings)?;
        let sandboxes = Sandboxes::visit(settings.clone(), Some(backends), attach, Kept::Network)?;
        Ok(Self { settings, sandboxes, tasks: Tasks::default(), caller: UserId::local() })
    }

    /// One command that only reaches sandboxes which exist.
    pub fn reach(settings: Settings) -> anyhow::Result<Self> {
        config::prepare_state(&settings.state)?;
        let settings = Arc::new(settings);
        let sandboxes = Sandboxes::visit(settings.clone(), None, attach, Kept::All)?;
        Ok(Self { settings, sandboxes, tasks: Tasks::default(), caller: UserId::local() })
    }

    /// On whose behalf the person at the terminal acts on this sandbox: labels keep apart whom a client serves, and all
    /// of those are this person's.
    pub fn owner_of(&self, id: &SessionId) -> UserId {
        self.sandboxes.owner_of(id).unwrap_or_else(|| self.caller.clone())
    }
}

/// All backends, of which the operator chose one as the default, in a state folder that is ours.
pub fn backends(settings: &Settings) -> anyhow::Result<Backends> {
    Ok(Backends::new(settings.backend.as_str()).with(sandbox_linux::BACKEND, embedded(settings)?))
}

/// The embedded backend.
pub fn embedded(settings: &Settings) -> anyhow::Result<Arc<dyn Backend>> {
    config::prepare_state(&settings.state)?;
    let backend = LinuxBackend::start(&settings.state);
    Ok(Arc::new(backend.context("sandboxes cannot be made on this machine (`sandbox-mcp doctor` says more)")?))
}

/// A sandbox of another server of this user, by its folder.
fn attach(folder: &Path) -> sandbox_core::Result<Arc<dyn Sandbox>> {
    sandbox_linux::attach(folder)
}
