//! A sandbox that no server looks after has a way out that nobody serves, and whatever connects inside waits. So whoever
//! uses such a sandbox serves it for as long as this program runs; the lock says to all others that somebody does.

use std::{
    fs::File,
    path::PathBuf,
    sync::{Arc, PoisonError},
    time::Duration,
};

use super::{Care, Sandboxes, SandboxesError, Session, folders};
use sandbox_core::{SessionId, UserId};

/// Between two looks at whether somebody else still looks after it.
const PAUSE: Duration = Duration::from_millis(500);

impl Sandboxes {
    /// A sandbox of the caller in which something is about to be done.
    pub async fn find_to_use(&self, caller: &UserId, id: &SessionId) -> Result<Arc<Session>, SandboxesError> {
        let session = self.find(caller, id).await?;
        if let Err(error) = self.tend(&session).await {
            tracing::warn!("nobody looks after the network of {id}: {error}");
        }
        Ok(session)
    }

    /// Serves the way out of a sandbox if nobody does, or as soon as nobody does any more.
    async fn tend(&self, session: &Arc<Session>) -> Result<(), SandboxesError> {
        let reaches = session.facts().spec.has_way_out();
        if session.care() == Care::Ours || session.is_ended() || !reaches {
            return Ok(());
        }
        if !self.0.tended.lock().unwrap_or_else(PoisonError::into_inner).insert(session.id().clone()) {
            return Ok(());
        }
        let lock = folders::attend(session.folder());
        if lock.is_some()
            && let Err(error) = self.reopen_way_out(session).await
        {
            self.0.tended.lock().unwrap_or_else(PoisonError::into_inner).remove(session.id());
            return Err(error);
        }
        let (centre, session) = (Arc::downgrade(&self.0), session.clone());
        tokio::spawn(async move {
            let held = async {
                let _lock = match lock {
                    Some(lock) => lock,
                    None => {
                        let lock = until_left(session.folder().to_owned()).await;
                        let Some(inner) = centre.upgrade() else { return };
                        if let Err(error) = Sandboxes(inner).reopen_way_out(&session).await {
                            tracing::warn!("{} has no network any longer: {error}", session.id());
                        }
                        lock
                    }
                };
                std::future::pending().await
            };
            tokio::select! {
                () = held => {}
                _ = session.sandbox().ended() => {}
            }
        });
        Ok(())
    }

    /// Gives up the ways out of sandboxes that live on, so that their connections are written down.
    pub(super) async fn leave_ways_out(&self) {
        let visited: Vec<_> = self.0.visited.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for session in self.ours().into_iter().chain(visited) {
            if let Some(way_out) = session.way_out.get() {
                way_out.close().await;
            }
        }
    }
}

/// The lock of a sandbox, once whoever has it now is gone.
async fn until_left(folder: PathBuf) -> File {
    loop {
        tokio::time::sleep(PAUSE).await;
        if let Some(lock) = folders::attend(&folder) {
            return lock;
        }
    }
}
