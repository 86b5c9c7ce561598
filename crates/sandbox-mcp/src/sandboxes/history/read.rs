//! Reading the history back.

use rusqlite::{Connection, params};
use sandbox_core::{SessionId, UserId};

use super::{Query, Recorded, TaskRecord};

/// Oldest first.
pub(super) fn events(database: &Connection, query: &Query) -> rusqlite::Result<Vec<Recorded>> {
    let order = if query.after.is_some() { "ASC" } else { "DESC" };
    let sql = format!(
        "SELECT id, event FROM events WHERE (?1 IS NULL OR owner = ?1) AND (?2 IS NULL OR session = ?2) AND id > ?3
         AND (?5 IS NULL OR kind = ?5) ORDER BY id {order} LIMIT ?4"
    );
    let session = query.session.as_ref().map(SessionId::as_str);
    let owner = query.owner.as_ref().map(UserId::as_str);
    let mut statement = database.prepare(&sql)?;
    let rows = statement
        .query_map(params![owner, session, query.after.unwrap_or(0), query.limit, query.kind], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
        })?;
    let mut events = Vec::new();
    for row in rows {
        let (id, json) = row?;
        // A newer program may have written kinds that this one does not know.
        events.extend(serde_json::from_str(&json).ok().map(|event| Recorded { id, event }));
    }
    if query.after.is_none() {
        events.reverse();
    }
    Ok(events)
}

/// Newest first.
pub(super) fn tasks(database: &Connection, owner: &UserId, limit: u32) -> rusqlite::Result<Vec<TaskRecord>> {
    let mut statement = database.prepare(
        "SELECT at, session, agent, task, status, seconds, error FROM tasks WHERE owner = ?1 ORDER BY id DESC LIMIT ?2",
    )?;
    let rows = statement.query_map(params![owner.as_str(), limit], |row| {
        let session: String = row.get(1)?;
        let session_id = session.parse().map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Text, Box::new(error))
        })?;
        Ok(TaskRecord {
            at: row.get::<_, i64>(0)? as u64,
            session_id,
            owner: owner.clone(),
            agent: row.get(2)?,
            task: row.get(3)?,
            status: row.get(4)?,
            seconds: row.get(5)?,
            error: row.get(6)?,
        })
    })?;
    rows.collect()
}
