//! What an agent remembers of a sandbox, kept outside in the state folder: a file for each sandbox and agent. It lives as
//! long as its sandbox does.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use sandbox_core::SessionId;
use serde_json::Value;

use super::TaskId;

/// Larger ones are not kept: the next task begins anew.
const LARGEST: usize = 64 << 20;

/// The memory of one agent in one sandbox.
#[derive(Clone)]
pub struct Conversation(Arc<Kept>);

struct Kept {
    file: PathBuf,
    /// Counts what is to be written: of two writers the later one is right.
    newest: AtomicU64,
    written: Mutex<u64>,
}

impl Conversation {
    /// Of this agent in this sandbox.
    pub fn of(state: &Path, session: &SessionId, agent: &str) -> Self {
        let file = folder(state).join(session.as_str()).join(format!("{agent}.json"));
        Self(Arc::new(Kept { file, newest: AtomicU64::new(0), written: Mutex::new(0) }))
    }

    /// What was kept, if anything was.
    pub fn recall(&self) -> Option<Value> {
        serde_json::from_slice(&fs::read(&self.0.file).ok()?).ok()
    }

    /// Keeps something in place of what was there. Returns at once.
    pub fn keep(&self, memory: Value) {
        let (kept, number) = (self.0.clone(), self.0.newest.fetch_add(1, Ordering::Relaxed) + 1);
        let write = move || {
            let mut written = kept.written.lock().unwrap_or_else(PoisonError::into_inner);
            if number > *written {
                *written = number;
                if let Err(error) = write(&kept.file, &memory) {
                    tracing::warn!("a conversation could not be kept: {error}");
                }
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(write)),
            Err(_) => write(),
        }
    }
}

/// Forgets what was remembered of sandboxes that are no more.
pub fn sweep(state: &Path) {
    for entry in fs::read_dir(folder(state)).into_iter().flatten().flatten() {
        if !state.join("sandboxes").join(entry.file_name()).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Notes which task is a sandbox's last one.
pub fn note_task(state: &Path, session: &SessionId, task: &TaskId) {
    let above = folder(state).join(session.as_str());
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&above);
    if let Err(error) = made.and_then(|()| fs::write(above.join(LAST), task.as_str())) {
        tracing::warn!("the last task of {session} is not known: {error}");
    }
}

/// The last task of a sandbox.
pub fn last_task(state: &Path, session: &SessionId) -> Option<TaskId> {
    fs::read_to_string(folder(state).join(session.as_str()).join(LAST)).ok()?.parse().ok()
}

const LAST: &str = "last-task";

fn folder(state: &Path) -> PathBuf {
    state.join("conversations")
}

fn write(file: &Path, memory: &Value) -> io::Result<()> {
    let text = serde_json::to_vec(memory)?;
    if text.len() > LARGEST {
        return Err(io::Error::other("it is too large"));
    }
    let above = file.parent().unwrap_or(file);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(above)?;
    let part = file.with_extension("part");
    fs::write(&part, text)?;
    fs::rename(part, file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sandbox_core::UserId;

    #[test]
    fn a_conversation_is_kept_with_its_sandbox() {
        let state = tempfile::tempdir().unwrap();
        let session = SessionId::random(&UserId::local()).unwrap();
        let conversation = Conversation::of(state.path(), &session, "claude");
        assert_eq!(conversation.recall(), None);
        conversation.keep(Value::from(1));
        conversation.keep(Value::from(2));
        assert_eq!(Conversation::of(state.path(), &session, "claude").recall(), Some(Value::from(2)));
        assert_eq!(Conversation::of(state.path(), &session, "mock").recall(), None);
        sweep(state.path());
        assert_eq!(conversation.recall(), None, "its sandbox is not there");
    }
}
