//! The wiring: settings, backend and centre put together, once, for every door.

use std::sync::Arc;

use anyhow::Context;
use sandbox_core::{Backend, SessionId, UserId};

use sandbox_linux::LinuxBackend;

use crate::{
    agent::Tasks,
    config::{self, Settings},
    sandboxes::{Kept, Sandboxes},
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
        let backend = backend(&settings)?;
        let sandboxes = Sandboxes::open(settings.clone(), backend, sandbox_linux::attach).await?;
        Ok(Self { settings, sandboxes, tasks: Tasks::default(), caller: UserId::local() })
    }

    /// One command that makes sandboxes of its own.
    pub fn make(settings: Settings) -> anyhow::Result<Self> {
        let settings = Arc::new(settings);
        let backend = backend(&settings)?;
        let sandboxes = Sandboxes::visit(settings.clone(), Some(backend), sandbox_linux::attach, Kept::All)?;
        Ok(Self { settings, sandboxes, tasks: Tasks::default(), caller: UserId::local() })
    }

    /// One command in a sandbox that ends with it: only its connections are written down.
    pub fn make_one(settings: Settings) -> anyhow::Result<Self> {
        let settings = Arc::new(settings);
        let backend = backend(&settings)?;
        let sandboxes = Sandboxes::visit(settings.clone(), Some(backend), sandbox_linux::attach, Kept::Network)?;
        Ok(Self { settings, sandboxes, tasks: Tasks::default(), caller: UserId::local() })
    }

    /// One command that only reaches sandboxes which exist.
    pub fn reach(settings: Settings) -> anyhow::Result<Self> {
        config::prepare_state(&settings.state)?;
        let settings = Arc::new(settings);
        let sandboxes = Sandboxes::visit(settings.clone(), None, sandbox_linux::attach, Kept::All)?;
        Ok(Self { settings, sandboxes, tasks: Tasks::default(), caller: UserId::local() })
    }

    /// On whose behalf the person at the terminal acts on this sandbox: labels keep apart whom a client serves, and all
    /// of those are this person's.
    pub fn owner_of(&self, id: &SessionId) -> UserId {
        self.sandboxes.owner_of(id).unwrap_or_else(|| self.caller.clone())
    }
}

/// The embedded backend, in a state folder that is ours.
pub fn backend(settings: &Settings) -> anyhow::Result<Arc<dyn Backend>> {
    config::prepare_state(&settings.state)?;
    let backend = LinuxBackend::start(&settings.state);
    Ok(Arc::new(backend.context("sandboxes cannot be made on this machine (`sandbox-mcp doctor` says more)")?))
}
