//! Ports of a sandbox that are open to this machine, for as long as the sandbox lives and this program runs.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use async_trait::async_trait;
use sandbox_core::Duplex;
use sandbox_executor::{
    client::PortStream,
    protocol::{Reason, WAY_OUT_PORTS},
};
use tokio::{
    sync::{Semaphore, watch},
    task::AbortHandle,
};

use super::{ClientError, SandboxesError, Session, What, patience};
use crate::inward::{Door, Inside, MOST_CONNECTIONS, Name, Unreachable};

/// Open ports of one sandbox.
const MOST: usize = 8;

/// A port that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenPort {
    /// Where it can be looked at. Whoever has it may, so it goes to the sandbox's owner and nowhere else.
    pub url: String,
    /// Its number inside.
    pub port: u16,
    /// Whether somebody listens on it now.
    pub listening: bool,
}

/// The open ports of a sandbox.
pub(super) struct Ports {
    opened: Mutex<Opened>,
    /// Places for connections to all of them.
    places: Arc<Semaphore>,
    closed: watch::Sender<bool>,
}

#[derive(Default)]
struct Opened {
    /// The same for all, and as long as this program runs.
    name: Option<Name>,
    doors: BTreeMap<u16, Door>,
    /// Closes them when the sandbox ends, whoever ends it.
    watcher: Option<AbortHandle>,
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            opened: Mutex::default(),
            places: Arc::new(Semaphore::new(MOST_CONNECTIONS)),
            closed: watch::Sender::new(false),
        }
    }
}

impl Drop for Ports {
    fn drop(&mut self) {
        if let Some(watcher) = self.opened().watcher.take() {
            watcher.abort();
        }
    }
}

impl Ports {
    fn opened(&self) -> std::sync::MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of a port; a new one, or the one that it has. Tells whether it is new.
    fn open(&self, session: &Arc<Session>, port: u16) -> Result<(String, bool), SandboxesError> {
        let mut opened = self.opened();
        if *self.closed.borrow() {
            return Err(SandboxesError::NotFound(session.id().clone()));
        }
        if let Some(door) = opened.doors.get(&port) {
            return Ok((door.url().to_owned(), false));
        }
        if opened.doors.len() >= MOST {
            return Err(SandboxesError::TooManyPorts { open: opened.doors.keys().copied().collect(), limit: MOST });
        }
        let name = match &opened.name {
            Some(name) => name.clone(),
            None => opened.name.insert(new_name(session)?).clone(),
        };
        let inside = Arc::new(Port { session: Arc::downgrade(session), port });
        let door = Door::open(&name, inside, self.places.clone())
            .map_err(SandboxesError::io("no port of this machine's loopback could be listened on"))?;
        let url = door.url().to_owned();
        opened.doors.insert(port, door);
        opened.watcher.get_or_insert_with(|| watch_end(session));
        Ok((url, true))
    }

    /// Closes all, for good. Tells which were open.
    fn close(&self) -> Vec<u16> {
        let mut opened = self.opened();
        self.closed.send_replace(true);
        std::mem::take(&mut opened.doors).into_keys().collect()
    }
}

fn new_name(session: &Session) -> Result<Name, SandboxesError> {
    let no_chance = |error: getrandom::Error| std::io::Error::other(error.to_string());
    Name::random(session.id()).map_err(no_chance).map_err(SandboxesError::io("no random address could be made"))
}

/// A sandbox of another server may end without this one being told.
fn watch_end(session: &Arc<Session>) -> AbortHandle {
    let (sandbox, session) = (session.sandbox().clone(), Arc::downgrade(session));
    let watch = async move {
        let why = sandbox.ended().await;
        if let Some(session) = session.upgrade() {
            session.close_ports(&why);
        }
    };
    tokio::spawn(watch).abort_handle()
}

impl Session {
    /// Opens a port inside to this machine's loopback. The same port has the same address until the sandbox ends.
    pub async fn open_port(self: &Arc<Self>, port: u16) -> Result<OpenPort, SandboxesError> {
        if port == 0 || WAY_OUT_PORTS.contains(&port) {
            return Err(SandboxesError::ReservedPort(port));
        }
        self.check_frozen()?;
        self.touch();
        let listening = match self.connect_to_port(port).await {
            Ok(_) => true,
            Err(SandboxesError::Executor(ClientError::Refused(failure))) if failure.reason == Reason::NotFound => false,
            Err(error) => return Err(error),
        };
        let (url, new) = self.ports.open(self, port)?;
        if new {
            self.record(What::PortOpened { port });
        }
        Ok(OpenPort { url, port, listening })
    }

    /// Returns when its ports were closed because it has ended.
    pub async fn ports_closed(&self) {
        let _ = self.ports.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Closes its ports, for good.
    pub fn close_ports(&self, why: &str) {
        for port in self.ports.close() {
            self.record(What::PortClosed { port, why: why.to_owned() });
        }
    }

    async fn connect_to_port(&self, port: u16) -> Result<PortStream, SandboxesError> {
        let client = self.connected().await?;
        match patience::soon(client.connect_to_port(port)).await {
            // The executor was lost between two calls; a new connection tells whether it is there.
            Err(ClientError::Closed) => Ok(patience::soon(self.connected().await?.connect_to_port(port)).await?),
            connected => Ok(connected?),
        }
    }
}

/// A port as the listener outside sees it. It does not keep the sandbox.
struct Port {
    session: Weak<Session>,
    port: u16,
}

#[async_trait]
impl Inside for Port {
    fn port(&self) -> u16 {
        self.port
    }

    async fn dial(&self) -> Result<Box<dyn Duplex>, Unreachable> {
        let ended = || Unreachable::Failed("the sandbox has ended".to_owned());
        let session = self.session.upgrade().ok_or_else(ended)?;
        match session.connect_to_port(self.port).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(SandboxesError::Executor(ClientError::Refused(failure))) if failure.reason == Reason::NotFound => {
                Err(Unreachable::NobodyListens)
            }
            Err(error) => Err(Unreachable::Failed(error.to_string())),
        }
    }

    /// Only what is answered counts as use: a page that asks again and again keeps no idle sandbox.
    fn used(&self) {
        if let Some(session) = self.session.upgrade() {
            session.touch();
        }
    }
}
