//! Ports of a sandbox that are open to this machine, for as long as the sandbox lives and this program runs.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
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

/// What stands for a key where it is written down.
const HIDDEN: &str = "KEY";

/// The name in all addresses of a sandbox, from the first one on, for as long as this program runs. Clones are the same.
#[derive(Clone, Default)]
pub struct Addresses(Arc<OnceLock<Name>>);

impl Addresses {
    /// The name that there is, or else this one from now on.
    pub fn name_or<E>(&self, new: impl FnOnce() -> Result<Name, E>) -> Result<Name, E> {
        if let Some(name) = self.0.get() {
            return Ok(name.clone());
        }
        let new = new()?;
        Ok(self.0.get_or_init(|| new).clone())
    }

    /// A text that others may read: whoever has the key in an address may look, so it is left out.
    pub fn hide<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.0.get().map(Name::key) {
            Some(key) if text.contains(key) => Cow::Owned(text.replace(key, HIDDEN)),
            _ => Cow::Borrowed(text),
        }
    }
}

/// The open ports of a sandbox.
pub(super) struct Ports {
    opened: Mutex<Opened>,
    addresses: Addresses,
    /// Places for connections to all of them.
    places: Arc<Semaphore>,
    closed: watch::Sender<bool>,
}

#[derive(Default)]
struct Opened {
    doors: BTreeMap<u16, Door>,
    /// Closes them when the sandbox ends, whoever ends it.
    watcher: Option<AbortHandle>,
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            opened: Mutex::default(),
            addresses: Addresses::default(),
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
        let name = self.addresses.name_or(|| new_name(session))?;
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

    /// The name in its addresses, to keep its key out of what is written down.
    pub fn addresses(&self) -> Addresses {
        self.ports.addresses.clone()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use sandbox_core::{SessionId, UserId};

    use super::*;

    #[test]
    fn of_an_address_that_is_written_down_all_but_the_key_is_left() {
        let session = SessionId::random(&UserId::local()).unwrap();
        let addresses = Addresses::default();
        assert_eq!(addresses.hide("http://a.localhost:1/"), "http://a.localhost:1/");
        let name = addresses.name_or(|| Name::random(&session)).unwrap();
        let hidden = addresses.clone().hide(&format!("See {} or {}.", name.url(1), name.url(2))).into_owned();
        assert!(!hidden.contains(name.key()) && hidden.matches("http://KEY.sandbox-").count() == 2, "{hidden}");
        assert_eq!(addresses.name_or(|| Name::random(&session)).unwrap().key(), name.key(), "one name for all");
    }
}
