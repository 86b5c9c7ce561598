//! Files that an agent reads and writes, beneath the sandbox's own places.

use std::time::{Duration, Instant};

use sandbox_executor::protocol::{FileInfo, FileKind, NewFile};

use super::{Note, WorkError, Worker};
use crate::{
    agent::Change,
    sandboxes::{ChangedFile, Piece, patience},
};

/// Looking at /workspace may take so much of the time.
const SHARE: u32 = 50;
/// Files that are told one by one after one step.
const TOLD: usize = 20;

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Not to be read as a whole.
    #[error("{path} has {size} bytes, and at most {most} are read at once: look at a part of it, with a command")]
    TooLarge {
        /// Which file.
        path: String,
        /// How large it is.
        size: u64,
        /// How large it may be.
        most: u64,
    },
}

impl Worker<'_> {
    /// Writes a file, and the folders above it. One that was there keeps its permissions: a script stays one, and what others
    /// may not read stays closed to them.
    pub async fn write(&self, path: &str, content: &[u8]) -> Result<(), WorkError> {
        // A link is replaced by a file, and its own permissions mean nothing.
        let before = self.stat(path).await.ok().filter(|info| info.kind == FileKind::File);
        let mode = before.map(|info| info.mode & 0o777);
        let mut writer = patience::soon(self.session.client().await?.write()).await?;
        patience::soon(writer.begin(&NewFile { path: path.into(), mode })).await?;
        patience::in_time(writer.data(content)).await?;
        Ok(patience::in_time(writer.finish()).await?)
    }

    /// What a file or folder is, links not followed.
    pub async fn stat(&self, path: &str) -> Result<FileInfo, WorkError> {
        Ok(patience::soon(self.session.client().await?.stat(&path.into())).await?)
    }

    /// A whole file, if it is not larger than this.
    pub async fn read(&self, path: &str, most: u64) -> Result<Vec<u8>, WorkError> {
        let client = self.session.client().await?;
        let mut reader = patience::soon(client.read(&path.into(), 0, Some(most + 1))).await?;
        let size = reader.info().size;
        let too_large = || FileError::TooLarge { path: path.to_owned(), size, most };
        if size > most {
            return Err(too_large().into());
        }
        let mut content = Vec::new();
        while let Some(piece) = patience::in_time(reader.next()).await? {
            match piece {
                Piece::Data(data) => content.extend_from_slice(&data),
                Piece::Hole(length) => content.resize(content.len() + (length.min(most + 1)) as usize, 0),
            }
            if content.len() as u64 > most {
                return Err(too_large().into());
            }
        }
        Ok(content)
    }

    /// What is in a folder, at most so many entries; and whether there is more.
    pub async fn list(&self, path: &str, depth: u32, most: u32) -> Result<(Vec<FileInfo>, bool), WorkError> {
        let client = self.session.client().await?;
        let listing = patience::in_time(client.list(&path.into(), depth, most)).await?;
        Ok((listing.entries, listing.truncated))
    }

    /// Tells which files of /workspace are new or different since somebody last looked. In a large workspace it does so
    /// less often: looking must not take more time than working.
    pub async fn look_for_changes(&self, worked: Duration) {
        let mut seen = self.seen.lock().await;
        if worked < seen.1 * SHARE && seen.1 > Duration::from_millis(2) {
            return;
        }
        let began = Instant::now();
        let Ok(now) = self.session.snapshot().await else { return };
        let changes = seen.0.compare(&now);
        *seen = (now, began.elapsed());
        drop(seen);
        let named = |file: &ChangedFile| (file.kind == FileKind::File).then(|| shown(&file.path.0));
        let created = changes.created.iter().filter_map(named).map(|path| (path, Change::Created));
        let changed = changes.changed.iter().filter_map(named).map(|path| (path, Change::Changed));
        let deleted = changes.deleted.iter().map(|path| (shown(&path.0), Change::Deleted));
        for (path, change) in created.chain(changed).chain(deleted).take(TOLD).collect::<Vec<_>>() {
            self.note(Note::File { path, change }).await;
        }
    }
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
