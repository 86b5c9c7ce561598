//! Where events go: to whoever listens now, and to the history.

use sandbox_core::{SessionId, UserId};
use tokio::sync::broadcast;

use super::{Event, History, What};

/// Events that a slow listener may be behind before it misses some.
const LISTENER_BACKLOG: usize = 1024;

/// Takes down what happens. Clones write the same journal.
#[derive(Clone)]
pub struct Journal {
    listeners: broadcast::Sender<Event>,
    history: History,
}

impl Journal {
    pub(super) fn new(history: History) -> Self {
        Self { listeners: broadcast::Sender::new(LISTENER_BACKLOG), history }
    }

    /// Tells what happens from now on.
    pub fn listen(&self) -> broadcast::Receiver<Event> {
        self.listeners.subscribe()
    }

    /// What happened before.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Something happened. Waits for nobody.
    pub fn record(&self, id: &SessionId, owner: &UserId, what: What) {
        let event = Event::now(id, owner, what);
        if self.listeners.receiver_count() > 0 {
            let _ = self.listeners.send(event.clone());
        }
        self.history.record(event);
    }
}
