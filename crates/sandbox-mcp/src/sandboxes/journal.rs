//! Where events go: to whoever listens now, and to the history.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use sandbox_core::{Reason, SessionId, UserId};
use tokio::sync::broadcast;

use super::{Event, History, What};

/// Events that a slow listener may be behind before it misses some.
const LISTENER_BACKLOG: usize = 1024;

/// Takes down what happens. Clones write the same journal.
#[derive(Clone)]
pub struct Journal {
    listeners: broadcast::Sender<Event>,
    history: History,
    kept: Kept,
    denials: Arc<DenialCounts>,
}

/// What goes to the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Everything.
    All,
    /// What was connected, and what came of it: for a sandbox that ends with its only command.
    Network,
}

impl Kept {
    fn has(self, what: &What) -> bool {
        let network = matches!(what, What::Connection { .. } | What::Spent { .. } | What::Frozen { .. });
        self == Self::All || network
    }
}

/// How often each wall refused something, since this server started: what a metric is made of.
#[derive(Default)]
pub struct DenialCounts(Mutex<BTreeMap<Reason, u64>>);

impl DenialCounts {
    /// By reason; those that never happened are left out.
    pub fn read(&self) -> BTreeMap<Reason, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts a refusal that belongs to no sandbox; the others are counted when they are recorded.
    pub fn count(&self, reason: Reason) {
        self.count_times(reason, 1);
    }

    fn count_times(&self, reason: Reason, times: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += times;
    }
}

impl Journal {
    pub(super) fn new(history: History, kept: Kept) -> Self {
        Self { listeners: broadcast::Sender::new(LISTENER_BACKLOG), history, kept, denials: Arc::default() }
    }

    /// Tells what happens from now on.
    pub fn listen(&self) -> broadcast::Receiver<Event> {
        self.listeners.subscribe()
    }

    /// What happened before.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// How often each wall refused something.
    pub fn denials(&self) -> &DenialCounts {
        &self.denials
    }

    /// Something happened. Waits for nobody.
    pub fn record(&self, id: &SessionId, owner: &UserId, what: What) {
        match &what {
            What::Denied { denial, .. } => self.denials.count(denial.reason),
            What::Connection { refused: true, times, .. } => self.denials.count_times(Reason::Network, *times),
            _ => {}
        }
        let event = Event::now(id, owner, what);
        if self.listeners.receiver_count() > 0 {
            let _ = self.listeners.send(event.clone());
        }
        if self.kept.has(&event.what) {
            self.history.record(event);
        }
    }
}
