//! What an agent remembers of a sandbox, kept outside in the state folder: a file for each sandbox and agent. It lives as
//! long as its sandbox does.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sandbox_core::SessionId;
use serde_json::Value;

use super::TaskId;

/// Larger ones are not kept: the next task begins anew.
const LARGEST: usize = 64 << 20;

/// What is to be kept again so soon waits: an agent says so after each of its steps, and only the last word counts.
const PAUSE: Duration = Duration::from_millis(100);

/// The memory of one agent in one sandbox.
#[derive(Clone)]
pub struct Conversation(Arc<Kept>);

struct Kept {
    file: PathBuf,
    waiting: Mutex<Waiting>,
    /// Of two writers the later one has the newer word.
    writing: Mutex<()>,
}

#[derive(Default)]
struct Waiting {
    memory: Option<Value>,
    /// Whether somebody will write it.
    is_due: bool,
}

impl Conversation {
    /// Of this agent in this sandbox.
    pub fn of(state: &Path, session: &SessionId, agent: &str) -> Self {
        let file = folder(state).join(session.as_str()).join(format!("{agent}.json"));
        Self(Arc::new(Kept { file, waiting: Mutex::default(), writing: Mutex::default() }))
    }

    /// What was kept, if anything was.
    pub fn recall(&self) -> Option<Value> {
        serde_json::from_slice(&fs::read(&self.0.file).ok()?).ok()
    }

    /// Keeps something in place of what was there. Returns at once; it is written soon.
    pub fn keep(&self, memory: Value) {
        let runtime = tokio::runtime::Handle::try_current();
        let mut waiting = self.waiting();
        waiting.memory = Some(memory);
        match runtime {
            Ok(_) if waiting.is_due => {}
            Ok(runtime) => {
                waiting.is_due = true;
                let later = self.clone();
                runtime.spawn(async move {
                    tokio::time::sleep(PAUSE).await;
                    later.waiting().is_due = false;
                    let _ = tokio::task::spawn_blocking(move || later.flush()).await;
                });
            }
            Err(_) => {
                drop(waiting);
                self.flush();
            }
        }
    }

    /// Writes now what is still to be written: whoever goes on with the conversation must find all of it.
    pub fn flush(&self) {
        let _in_turn = self.0.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(memory) = self.waiting().memory.take() else { return };
        if let Err(error) = write(&self.0.file, &memory) {
            tracing::warn!("a conversation could not be kept: {error}");
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Whoever holds this is the only one to work on a task in this sandbox, among all programs of this state folder.
pub fn claim(state: &Path, session: &SessionId) -> Result<File, TryLockError> {
    let above = folder(state).join(session.as_str());
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&above);
    let claim = made.and_then(|()| File::create(above.join(CLAIM))).map_err(TryLockError::Error)?;
    claim.try_lock().map(|()| claim)
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
const CLAIM: &str = "claim";

fn folder(state: &Path) -> PathBuf {
    state.join("conversations")
}

fn write(file: &Path, memory: &Value) -> io::Result<()> {
    let text = serde_json::to_vec(memory)?;
    if text.len() > LARGEST {
        return Err(io::Error::other("it is too large"));
    }
    let part = file.with_extension("part");
    if let Err(error) = fs::write(&part, &text) {
        // The folder is made for the first one.
        let above = file.parent().filter(|_| error.kind() == io::ErrorKind::NotFound).ok_or(error)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(above)?;
        fs::write(&part, text)?;
    }
    fs::rename(part, file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sandbox_core::UserId;

    #[tokio::test]
    async fn the_last_word_is_kept_soon_and_at_once_where_somebody_goes_on() {
        let state = tempfile::tempdir().unwrap();
        let session = SessionId::random(&UserId::local()).unwrap();
        let conversation = Conversation::of(state.path(), &session, "claude");
        for number in 0..100 {
            conversation.keep(Value::from(number));
        }
        conversation.flush();
        assert_eq!(conversation.recall(), Some(Value::from(99)));
        conversation.keep(Value::from(100));
        let end = std::time::Instant::now() + Duration::from_secs(10);
        while conversation.recall() != Some(Value::from(100)) {
            assert!(std::time::Instant::now() < end, "nobody writes it");
            tokio::time::sleep(PAUSE / 4).await;
        }
    }

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
