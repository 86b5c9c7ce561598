//! The history: events and tasks in SQLite. It never says what is alive.
//!
//! Writes go to one background thread that opens the database with the first of them, so that nobody waits for a
//! disk. Reads open the database on their own: several servers write to the same file.

mod read;
mod write;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicIsize, AtomicU64, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    time::Duration,
};

use rusqlite::{Connection, OpenFlags, params};
use sandbox_core::{SessionId, UserId};
use serde::Serialize;

use super::{Event, SandboxesError, What};

/// Entries that wait for the disk; more than that are dropped rather than waited for.
const BACKLOG: usize = 4096;
/// Connections are dropped when so many entries wait: a sandbox can make as many as it likes, and what else happens is to
/// be on record all the same.
const CROWD: isize = 2048;
/// Where events and tasks are kept. Clones share one writer.
#[derive(Clone)]
pub struct History(Arc<Shared>);

struct Shared {
    file: PathBuf,
    writer: Mutex<Option<SyncSender<Entry>>>,
    /// Entries that the writer has not taken yet, or a few more or less.
    waiting: Arc<AtomicIsize>,
    dropped: AtomicU64,
}

impl Shared {
    fn new(file: PathBuf) -> Self {
        Self { file, writer: Mutex::new(None), waiting: Arc::default(), dropped: AtomicU64::new(0) }
    }
}

/// A task and how it went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskRecord {
    /// When it began, in milliseconds since 1970.
    pub at: u64,
    /// In which sandbox.
    pub session_id: SessionId,
    /// Whose it is.
    pub owner: UserId,
    /// Which agent worked on it.
    pub agent: String,
    /// The task, shortened.
    pub task: String,
    /// How it went.
    pub status: String,
    /// How long it took.
    pub seconds: f64,
    /// What went wrong.
    pub error: Option<String>,
}

/// Which events to read.
#[derive(Clone, Debug)]
pub struct Query {
    /// Of this owner only.
    pub owner: Option<UserId>,
    /// Of this sandbox only.
    pub session: Option<SessionId>,
    /// Those after this number, oldest first; without it the newest.
    pub after: Option<i64>,
    /// Of this kind only.
    pub kind: Option<&'static str>,
    /// At most so many.
    pub limit: u32,
}

/// An event with its number.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recorded {
    /// Counts up; events after it are newer.
    pub id: i64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

enum Entry {
    Event(Box<Event>),
    Task(Box<TaskRecord>),
    Flush(SyncSender<()>),
}

impl History {
    /// The history in this state folder. Nothing is opened yet.
    pub fn new(state: &Path) -> Self {
        Self(Arc::new(Shared::new(state.join("history.db"))))
    }

    /// Keeps an event. Returns at once.
    pub fn record(&self, event: Event) {
        self.send(Entry::Event(Box::new(event)));
    }

    /// Keeps a task. Returns at once.
    pub fn record_task(&self, task: TaskRecord) {
        self.send(Entry::Task(Box::new(task)));
    }

    /// Events, oldest first.
    pub async fn events(&self, query: Query) -> Result<Vec<Recorded>, SandboxesError> {
        self.reading(move |database| read::events(database, &query)).await
    }

    /// The newest tasks of an owner, newest first.
    pub async fn tasks(&self, owner: UserId, limit: u32) -> Result<Vec<TaskRecord>, SandboxesError> {
        self.reading(move |database| read::tasks(database, &owner, limit)).await
    }

    /// Whether a sandbox of this owner was there once and was removed.
    pub async fn was_removed(&self, owner: UserId, session: SessionId) -> bool {
        let sql = "SELECT 1 FROM events WHERE session = ?1 AND owner = ?2 AND kind = 'removed' LIMIT 1";
        let found =
            self.reading(move |database| database.prepare(sql)?.exists(params![session.as_str(), owner.as_str()]));
        found.await.unwrap_or(false)
    }

    /// Waits, though not for long, until everything is written.
    pub fn flush(&self) {
        let writer = self.writer();
        let Some(writer) = writer else { return };
        let (done, wait) = sync_channel(1);
        if writer.send(Entry::Flush(done)).is_ok() {
            let _ = wait.recv_timeout(Duration::from_secs(2));
        }
    }

    fn writer(&self) -> Option<SyncSender<Entry>> {
        self.0.writer.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn send(&self, entry: Entry) {
        let mut writer = self.0.writer.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let sender = writer.get_or_insert_with(|| {
            let (sender, receiver) = sync_channel(BACKLOG);
            let (file, waiting) = (self.0.file.clone(), Arc::clone(&self.0.waiting));
            let write = move || write::run(&file, &receiver, &waiting);
            let started = std::thread::Builder::new().name("history".into()).spawn(write);
            if let Err(error) = started {
                tracing::warn!("no history is kept: {error}");
            }
            sender
        });
        // Connections leave room for what matters more.
        let is_connection = matches!(&entry, Entry::Event(event) if matches!(event.what, What::Connection { .. }));
        let crowded = is_connection && self.0.waiting.load(Ordering::Relaxed) >= CROWD;
        let sent = !crowded && sender.try_send(entry).is_ok();
        if sent {
            self.0.waiting.fetch_add(1, Ordering::Relaxed);
        }
        if !sent && self.0.dropped.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!("the disk is too slow for the history: some events are not kept");
        }
    }

    async fn reading<T: Send + Default + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, SandboxesError> {
        let history = self.clone();
        let work = move || {
            history.flush();
            let file = &history.0.file;
            if !file.exists() {
                return Ok(T::default());
            }
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let opened = Connection::open_with_flags(file, flags);
            let patient = |database: Connection| database.busy_timeout(Duration::from_secs(5)).map(|()| database);
            let answer = opened.and_then(patient).and_then(|database| read(&database));
            answer.map_err(|source| SandboxesError::History { file: file.clone(), source })
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(answer) => answer,
            Err(error) => Err(SandboxesError::io("reading the history")(std::io::Error::other(error))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sandboxes::What;

    fn removed(id: &SessionId, owner: &UserId) -> Event {
        Event::now(id, owner, What::Removed { why: "test".into() })
    }

    #[tokio::test]
    async fn what_is_recorded_can_be_read_by_its_owner_only() {
        let state = tempfile::tempdir().unwrap();
        let (ann, bob): (UserId, UserId) = ("ann".parse().unwrap(), "bob".parse().unwrap());
        let (first, second) = (SessionId::random(&ann).unwrap(), SessionId::random(&ann).unwrap());
        let history = History::new(state.path());
        let query =
            |owner: &UserId, after| Query { owner: Some(owner.clone()), session: None, after, kind: None, limit: 10 };
        assert_eq!(history.events(query(&ann, None)).await.unwrap(), []);
        history.record(removed(&first, &ann));
        history.record(removed(&second, &ann));
        let all = history.events(query(&ann, None)).await.unwrap();
        assert_eq!(all.iter().map(|recorded| &recorded.event.session_id).collect::<Vec<_>>(), [&first, &second]);
        assert_eq!(history.events(query(&ann, Some(all[0].id))).await.unwrap(), all[1..]);
        assert_eq!(history.events(query(&bob, None)).await.unwrap(), []);
        assert!(history.was_removed(ann.clone(), first.clone()).await);
        assert!(!history.was_removed(bob, first).await);
    }

    #[tokio::test]
    async fn several_servers_write_one_history() {
        let state = tempfile::tempdir().unwrap();
        let ann = UserId::local();
        let id = SessionId::random(&ann).unwrap();
        let servers: Vec<History> = (0..4).map(|_| History::new(state.path())).collect();
        for _ in 0..50 {
            servers.iter().for_each(|server| server.record(removed(&id, &ann)));
        }
        servers.iter().for_each(History::flush);
        // Who only waits for the writer is none of those that wait to be written.
        servers.iter().for_each(History::flush);
        assert!(servers.iter().all(|server| server.0.waiting.load(Ordering::Relaxed) == 0));
        let query = Query { owner: Some(ann), session: Some(id), after: Some(0), kind: None, limit: 1000 };
        assert_eq!(servers[0].events(query).await.unwrap().len(), 200);
    }

    #[tokio::test]
    async fn a_damaged_file_is_told_with_what_to_do() {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(
            state.path().join("history.db"),
            "this is no database, and long enough to be looked at".repeat(99),
        )
        .unwrap();
        let history = History::new(state.path());
        history.record(removed(&SessionId::random(&UserId::local()).unwrap(), &UserId::local()));
        let query = Query { owner: Some(UserId::local()), session: None, after: None, kind: None, limit: 1 };
        let refused = history.events(query).await.unwrap_err().to_string();
        assert!(refused.contains("move it away"), "{refused}");
    }
}
