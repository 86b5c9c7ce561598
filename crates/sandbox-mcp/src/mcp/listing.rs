//! list_files: what is there, and what changed.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use sandbox_executor::{
    client::ClientError,
    protocol::{FileInfo, FileKind, Path},
};

use super::{
    answers::{Answer, Entry, Listed},
    arguments::ListFiles,
    error::ToolError,
    paths,
};
use crate::sandboxes::{Session, patience};

/// Entries that are looked at.
const MAX_ENTRIES: u32 = 100_000;
/// Length of one answer, about.
const MAX_ANSWER: usize = 48 << 10;
/// What an entry costs beside its name.
const ENTRY: usize = 110;
/// The kernel stamps files with a clock that lags behind by up to a tick: rather told twice than missed.
const CLOCK_LAG: u64 = 20;

/// Lists a folder.
pub async fn list_files(session: Arc<Session>, asked: ListFiles) -> Result<Answer, ToolError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let text = asked.path.as_deref().unwrap_or("/workspace");
    let folder = paths::parse(session.id(), text)?;
    let depth = asked.depth.unwrap_or(3).max(1);
    let client = session.client().await?;
    let listing = patience::in_time(client.list(&folder, depth, MAX_ENTRIES)).await.map_err(|error| {
        match (paths::denial(&error, text, &session.facts().spec.policy), error) {
            (Some(denial), _) => session.refuse(vec![denial]).into(),
            (None, refused @ ClientError::Refused(_)) => ToolError::Invalid(paths::explained(&refused)),
            (None, other) => other.into(),
        }
    })?;
    let mut found = listing.entries;
    found.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    let after = asked.after.as_deref().map(str::as_bytes);
    let wanted = |file: &&FileInfo| {
        let changed = u64::try_from(file.changed / 1_000_000).unwrap_or(0);
        after.is_none_or(|after| file.path.0.as_slice() > after)
            && asked.changed_since.is_none_or(|since| changed >= since)
    };
    let mut room = MAX_ANSWER;
    let mut truncated = listing.truncated;
    let mut entries = Vec::new();
    for file in found.iter().filter(wanted) {
        let cost = ENTRY + file.path.0.len() * if paths::is_text(&file.path) { 1 } else { 4 };
        if cost > room {
            truncated = true;
            break;
        }
        room -= cost;
        entries.push(entry(&session, &folder, file));
    }
    Ok(Answer::of(&Listed {
        session_id: session.id().to_string(),
        path: paths::shown(&folder),
        entries,
        truncated,
        listed_at: now.saturating_sub(CLOCK_LAG),
    }))
}

fn entry(session: &Session, folder: &Path, file: &FileInfo) -> Entry {
    let kind = match file.kind {
        FileKind::File => "file",
        FileKind::Folder => "folder",
        FileKind::Link => "link",
        FileKind::Other => "other",
    };
    Entry {
        path: paths::shown(&file.path),
        kind: kind.to_owned(),
        size_bytes: file.size,
        mode: format!("{:o}", file.mode & 0o7777),
        modified: u64::try_from(file.modified / 1_000_000).unwrap_or(0),
        uri: (!paths::is_text(&file.path)).then(|| paths::link(session.id(), &beneath(folder, &file.path))),
    }
}

fn beneath(folder: &Path, path: &Path) -> Path {
    let mut whole = if folder.0.starts_with(b"/") { Vec::new() } else { b"/workspace/".to_vec() };
    whole.extend_from_slice(&folder.0);
    if !whole.ends_with(b"/") {
        whole.push(b'/');
    }
    whole.extend_from_slice(&path.0);
    Path(whole)
}
