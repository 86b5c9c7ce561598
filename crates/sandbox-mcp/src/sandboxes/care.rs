//! Looking after sandboxes: noticing when one ends, and cleaning up those that nobody uses.

use std::{
    sync::{Arc, PoisonError, Weak},
    time::Duration,
};

use sandbox_egress::Leak;
use sandbox_executor::protocol::Target;
use tokio::{sync::watch, task::AbortHandle};

use super::{Inner, Sandboxes, SandboxesError, Session, What, folders};

/// Between the end of a sandbox that another server removes, and the end of its folder.
const REMOVAL: Duration = Duration::from_millis(300);

/// Notes the end of a sandbox that ends by itself. Its files stay until clean-up.
pub(super) fn watch_end(sandboxes: &Sandboxes, session: &Arc<Session>) {
    let (centre, watched) = (Arc::downgrade(&sandboxes.0), session.clone());
    let watcher = tokio::spawn(async move {
        let why = watched.sandbox().ended().await;
        watched.mark_ended(&why);
        // Whoever removes it ends it first, and its folder after that.
        tokio::time::sleep(REMOVAL).await;
        let Some(inner) = centre.upgrade() else { return };
        if inner.folders.exists(watched.id()) {
            watched.record(What::Ended { why });
        } else {
            // Another server removed it, and has said so. What only its backend knows of (a cgroup) is left to do.
            let _ = watched.sandbox().destroy().await;
            Sandboxes(inner).forget(watched.id());
        }
    });
    *session.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(watcher.abort_handle());
}

/// Stops every process of a sandbox, and ends its connections, when it has sent what it may not.
pub(super) fn freeze_when_told(session: &Arc<Session>, leaked: &watch::Sender<Option<Leak>>) {
    let (session, mut leaked) = (Arc::downgrade(session), leaked.subscribe());
    tokio::spawn(async move {
        let Ok(Some(leak)) = leaked.wait_for(Option::is_some).await.map(|leak| leak.clone()) else { return };
        let Some(session) = session.upgrade() else { return };
        let why = format!("it sent the placeholder of the secret `{}` to {}", leak.secret, leak.target);
        // First what does not depend on anybody inside, and outlives this server.
        session.freeze(&why);
        session.record(What::Frozen { why });
        // Twice: what was just being started was not there yet.
        for _ in 0..2 {
            let stop = async { session.client().await.ok()?.signal(Target::All, STOP).await.ok() };
            let _ = tokio::time::timeout(STOPPING, stop).await;
        }
    });
}

impl Session {
    /// Returns when it has ended.
    pub async fn until_ended(&self) -> String {
        self.sandbox().ended().await
    }

    /// Returns when it is stopped for good: what runs in it will never end by itself.
    pub async fn until_frozen(&self) -> String {
        loop {
            if let Some(why) = self.frozen() {
                return why;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Between two looks at whether a sandbox is frozen.
const LOOK: Duration = Duration::from_millis(200);
/// Time for an executor to stop everything.
const STOPPING: Duration = Duration::from_secs(3);
/// SIGSTOP, which nobody can ignore.
const STOP: i32 = 19;

/// Ends sandboxes that nobody has used for as long as the operator allows. Persistent ones never.
pub(super) fn clean_up_when_idle(sandboxes: &Sandboxes) {
    let Some(limit) = sandboxes.settings().idle else { return };
    let centre: Weak<Inner> = Arc::downgrade(&sandboxes.0);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(pause(limit)).await;
            let Some(inner) = centre.upgrade() else { return };
            let sandboxes = Sandboxes(inner);
            sandboxes.clean_up(limit).await;
        }
    });
}

/// Between two looks at who is idle.
fn pause(limit: Duration) -> Duration {
    (limit / 4).clamp(Duration::from_millis(200), Duration::from_secs(60))
}

/// A sandbox counts as used while this is there.
pub struct InUse(AbortHandle);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Session {
    /// Counts as used, for all servers, until that is dropped.
    pub fn keep_in_use(self: &Arc<Self>) -> InUse {
        let session = self.clone();
        let pause = pause(session.settings().idle.unwrap_or(Duration::MAX));
        let touching = async move {
            loop {
                session.touch();
                tokio::time::sleep(pause).await;
            }
        };
        InUse(tokio::spawn(touching).abort_handle())
    }
}

impl Sandboxes {
    /// Removes what was idle for longer than the limit: ours, and what nobody looks after any more.
    async fn clean_up(&self, limit: Duration) {
        for session in self.ours() {
            if session.facts().spec.persistent || session.idle() < limit {
                continue;
            }
            if session.running_jobs().await > 0 {
                session.touch();
            } else {
                self.report(&session, self.end(&session, "nobody used it").await);
            }
        }
        self.forget_removed();
        for id in self.0.folders.ids() {
            let folder = self.0.folders.folder(&id);
            if folders::idle(&folder) < limit || folders::is_attended(&folder) {
                continue;
            }
            let temporary = self.0.folders.facts(&id).is_some_and(|facts| !facts.spec.persistent);
            if temporary && let Ok(session) = self.reach(&id) {
                self.report(&session, self.end(&session, "nobody used it, and its server is gone").await);
            }
        }
    }

    /// Those of other servers that are no longer there.
    fn forget_removed(&self) {
        let mut visited = self.0.visited.write().unwrap_or_else(PoisonError::into_inner);
        visited.retain(|id, _| self.0.folders.exists(id));
    }

    fn report(&self, session: &Session, ended: Result<(), SandboxesError>) {
        match ended {
            Ok(()) => tracing::info!("{} was cleaned up: nobody used it", session.id()),
            Err(error) => tracing::warn!("{} could not be cleaned up: {error}", session.id()),
        }
    }
}
