//! What a sandbox connected to while a task went on: heard from the journal, added up by host.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sandbox_core::SessionId;
use sandbox_egress::Target;
use serde::Serialize;
use tokio::{
    sync::broadcast::{self, error::TryRecvError},
    task::AbortHandle,
};

use crate::{
    config::Settings,
    sandboxes::{Event, Session, What},
};

/// More hosts are not told apart.
const MOST: usize = 500;

/// One host and port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Name and port.
    pub target: String,
    /// Connections that were made.
    pub connections: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Bytes that went out.
    pub sent_bytes: u64,
    /// Bytes that came in.
    pub received_bytes: u64,
}

/// Listens while a task goes on.
pub(super) struct Hosts {
    heard: Arc<Mutex<Heard>>,
    listening: Option<AbortHandle>,
}

struct Heard {
    session: SessionId,
    events: broadcast::Receiver<Event>,
    hosts: BTreeMap<String, Host>,
    services: Vec<String>,
}

/// The journal keeps only so much for slow listeners.
const PAUSE: Duration = Duration::from_millis(200);

impl Hosts {
    pub fn listen(session: &Session) -> Self {
        let (session, events) = (session.id().clone(), session.listen());
        let heard = Heard { session, events, hosts: BTreeMap::new(), services: Vec::new() };
        let heard = Arc::new(Mutex::new(heard));
        let shared = heard.clone();
        let listen = async move {
            loop {
                tokio::time::sleep(PAUSE).await;
                shared.lock().unwrap_or_else(PoisonError::into_inner).hear();
            }
        };
        let listening = tokio::runtime::Handle::try_current().map(|runtime| runtime.spawn(listen).abort_handle());
        Self { heard, listening: listening.ok() }
    }

    /// What was heard, and the names of the secrets that those hosts get.
    pub fn read(&self, settings: &Settings, policy: &str) -> (Vec<Host>, Vec<String>) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.hear();
        let hosts: Vec<Host> = heard.hosts.values().cloned().collect();
        let secrets = secrets(settings, policy, &hosts, &heard.services);
        (hosts, secrets)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if let Some(listening) = &self.listening {
            listening.abort();
        }
    }
}

impl Heard {
    fn hear(&mut self) {
        loop {
            match self.events.try_recv() {
                Ok(event) if event.session_id == self.session => self.note(event.what),
                Ok(_) | Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => return,
            }
        }
    }

    fn note(&mut self, what: What) {
        match what {
            What::Connection { target, refused, times, sent, received, .. }
                if self.hosts.len() < MOST || self.hosts.contains_key(&target) =>
            {
                let host = self.hosts.entry(target.clone()).or_insert_with(|| Host { target, ..Host::default() });
                let count = if refused { &mut host.refused } else { &mut host.connections };
                *count += times;
                host.sent_bytes += sent;
                host.received_bytes += received;
            }
            What::Spent { service, .. } if !self.services.contains(&service) => self.services.push(service),
            _ => {}
        }
    }
}

fn secrets(settings: &Settings, policy: &str, hosts: &[Host], services: &[String]) -> Vec<String> {
    let Ok(policy) = settings.policy(policy) else { return Vec::new() };
    let reached: Vec<Target> = hosts
        .iter()
        .filter(|host| host.connections > 0)
        .filter_map(|host| Target::from_authority(&host.target, Some(443)).ok())
        .collect();
    let is_used = |secret: &&crate::config::SecretSetting| {
        let by_host = reached.iter().any(|target| secret.hosts.iter().any(|pattern| pattern.matches(&target.host)));
        let by_service =
            settings.services.iter().any(|service| service.secret == secret.name && services.contains(&service.name));
        secret.is_for(&policy) && (by_host || by_service)
    };
    settings.secrets.iter().filter(is_used).map(|secret| secret.name.clone()).collect()
}
