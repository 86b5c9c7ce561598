//! The background thread that writes the history.

use std::{
    path::Path,
    sync::{
        atomic::{AtomicIsize, Ordering},
        mpsc::Receiver,
    },
    thread,
    time::{Duration, Instant},
};

use rusqlite::{Connection, params};

use super::Entry;

/// Entries of each table that are kept.
const KEPT: u32 = 100_000;
/// Connections of one sandbox that are kept: it can make as many as it likes, and nobody else is to lose anything by that.
const CONNECTIONS: u32 = 10_000;
/// After so many entries old ones are removed.
const OFTEN: usize = 2000;
/// Entries that are written together.
const LARGEST: usize = 256;
/// What happens again so soon waits to be written together: a sandbox can make thousands of connections in a second.
const PAUSE: Duration = Duration::from_millis(20);

const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    CREATE TABLE IF NOT EXISTS events (
        id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, session TEXT NOT NULL, owner TEXT NOT NULL,
        kind TEXT NOT NULL, event TEXT NOT NULL);
    CREATE INDEX IF NOT EXISTS events_of_session ON events (session, id);
    CREATE TABLE IF NOT EXISTS tasks (
        id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, session TEXT NOT NULL, owner TEXT NOT NULL,
        agent TEXT NOT NULL, task TEXT NOT NULL, status TEXT NOT NULL, seconds REAL NOT NULL, error TEXT);";

/// The background thread. A history that cannot be written is missed, but stops nobody.
pub(super) fn run(file: &Path, entries: &Receiver<Entry>, waiting: &AtomicIsize) {
    let mut database = match open_for_writing(file) {
        Ok(database) => Some(database),
        Err(error) => {
            tracing::warn!("no history is kept: {} cannot be opened: {error}", file.display());
            None
        }
    };
    let (mut written, mut next) = (0, Instant::now());
    while let Ok(first) = entries.recv() {
        if !matches!(first, Entry::Flush(_)) {
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        let mut flushes = Vec::new();
        let batch = std::iter::once(first).chain(std::iter::from_fn(|| entries.try_recv().ok())).take(LARGEST);
        let batch: Vec<Entry> = batch.collect();
        let taken = batch.iter().filter(|entry| !matches!(entry, Entry::Flush(_))).count();
        waiting.fetch_sub(taken as isize, Ordering::Relaxed);
        if let Some(database) = &mut database
            && let Err(error) = write(database, &batch)
        {
            tracing::warn!("the history in {} misses something: {error}", file.display());
        }
        written += batch.len();
        if let Some(database) = database.as_ref().filter(|_| written >= OFTEN) {
            written = 0;
            if let Err(error) = prune(database) {
                tracing::debug!("old entries of {} stay: {error}", file.display());
            }
        }
        // Where there is more already, nothing is gained by waiting.
        next = Instant::now() + if batch.len() < LARGEST { PAUSE } else { Duration::ZERO };
        flushes.extend(batch.into_iter().filter_map(|entry| match entry {
            Entry::Flush(done) => Some(done),
            _ => None,
        }));
        for done in flushes {
            let _ = done.send(());
        }
    }
}

fn open_for_writing(file: &Path) -> rusqlite::Result<Connection> {
    let database = Connection::open(file)?;
    database.busy_timeout(Duration::from_secs(5))?;
    database.execute_batch(SCHEMA)?;
    prune(&database)?;
    Ok(database)
}

/// Removes what is old: of connections all but the last of each sandbox, and of all else what there is too much of. Whoever
/// makes many connections removes nothing but connections by that.
fn prune(database: &Connection) -> rusqlite::Result<()> {
    let sql = format!(
        "DELETE FROM events WHERE id IN (SELECT id FROM (
             SELECT id, row_number() OVER (PARTITION BY session ORDER BY id DESC) AS place
             FROM events WHERE kind = 'connection') WHERE place > {CONNECTIONS})"
    );
    database.execute(&sql, [])?;
    for (table, some) in [("events", "kind = 'connection'"), ("events", "kind <> 'connection'"), ("tasks", "TRUE")] {
        let oldest = format!("SELECT id FROM {table} WHERE {some} ORDER BY id DESC LIMIT 1 OFFSET {KEPT}");
        database.execute(&format!("DELETE FROM {table} WHERE {some} AND id <= ({oldest})"), [])?;
    }
    Ok(())
}

fn write(database: &mut Connection, batch: &[Entry]) -> rusqlite::Result<()> {
    let transaction = database.transaction()?;
    for entry in batch {
        match entry {
            Entry::Event(event) => {
                let json = serde_json::to_value(event.as_ref()).unwrap_or_default();
                let kind = json.get("event").and_then(serde_json::Value::as_str).unwrap_or_default();
                transaction
                    .prepare_cached("INSERT INTO events (at, session, owner, kind, event) VALUES (?1, ?2, ?3, ?4, ?5)")?
                    .execute(params![
                        event.at as i64,
                        event.session_id.as_str(),
                        event.owner.as_str(),
                        kind,
                        json.to_string()
                    ])?;
            }
            Entry::Task(task) => {
                transaction
                    .prepare_cached(
                        "INSERT INTO tasks (at, session, owner, agent, task, status, seconds, error)
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                    )?
                    .execute(params![
                        task.at as i64,
                        task.session_id.as_str(),
                        task.owner.as_str(),
                        task.agent,
                        task.task,
                        task.status,
                        task.seconds,
                        task.error
                    ])?;
            }
            Entry::Flush(_) => {}
        }
    }
    transaction.commit()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn whoever_makes_many_connections_removes_only_own_connections_and_nobody_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut database = open_for_writing(&folder.path().join("history.db")).unwrap();
        let transaction = database.transaction().unwrap();
        {
            let insert = "INSERT INTO events (at, session, owner, kind, event) VALUES (0, ?1, 'local', ?2, '{}')";
            let mut insert = transaction.prepare(insert).unwrap();
            insert.execute(params!["quiet", "created"]).unwrap();
            insert.execute(params!["quiet", "connection"]).unwrap();
            for _ in 0..KEPT + 3000 {
                insert.execute(params!["loud", "connection"]).unwrap();
            }
        }
        transaction.commit().unwrap();
        let began = Instant::now();
        prune(&database).unwrap();
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        let count = |session: &str| -> u32 {
            database.query_row("SELECT count(*) FROM events WHERE session = ?1", [session], |row| row.get(0)).unwrap()
        };
        assert_eq!((count("quiet"), count("loud")), (2, CONNECTIONS));
    }
}
