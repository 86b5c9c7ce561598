//! What is in a folder, level by level, in a stable order, with bounded memory.

use std::{
    collections::{BinaryHeap, VecDeque},
    os::fd::OwnedFd,
};

use rustix::{
    fs::{AtFlags, Dir, OFlags, statat},
    io::Errno,
};
use sandbox_executor::{
    carrier::{Flow, FlowWriter},
    frame::FrameError,
    protocol::{Failure, FileInfo, FileKind, Path, Reply},
};

use super::{
    Executor,
    failure::about,
    places::{info, open_beneath},
};

/// No listing is longer, whoever asks.
const MOST_ENTRIES: usize = 1_000_000;
/// Entries of one message: even with the longest paths they fit into a frame.
const BATCH: usize = 128;
/// Longest path beneath the listed folder.
const MAX_PATH: usize = 4095;
/// Entries between two moments at which other requests get their turn.
const TURN: usize = 512;

/// Sends what is in a folder.
pub async fn list(executor: &Executor, path: &Path, depth: u32, limit: u32, mut flow: Flow) -> Result<(), FrameError> {
    let root = match executor.places.open_file(path, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(root) => root,
        Err(failure) => return flow.writer.message(&Reply::Failed(failure)).await,
    };
    let left = (limit as usize).min(MOST_ENTRIES);
    let mut listing = Listing { left, batch: Vec::new(), truncated: false, closed: false, last: None };
    match listing.walk(&root, path, depth, &mut flow.writer).await? {
        Ok(()) => {
            listing.send(&mut flow.writer).await?;
            if listing.truncated || listing.closed {
                flow.writer.message(&Reply::Truncated).await?;
            }
            flow.writer.message(&Reply::Done).await?;
        }
        Err(failure) => flow.writer.message(&Reply::Failed(failure)).await?,
    }
    Ok(flow.writer.finish().await?)
}

struct Listing {
    left: usize,
    batch: Vec<FileInfo>,
    truncated: bool,
    /// There was a folder that is closed to us: nobody should take this for all that there is.
    closed: bool,
    /// The folder that was read last: in a tree with one folder in each, the next one is in it, and no way is walked twice.
    last: Option<(Vec<u8>, OwnedFd)>,
}

impl Listing {
    /// Breadth first. Only folders that were listed themselves wait to be read, so the limit bounds the queue too.
    async fn walk(
        &mut self,
        root: &OwnedFd,
        path: &Path,
        depth: u32,
        writer: &mut FlowWriter,
    ) -> Result<Result<(), Failure>, FrameError> {
        let mut waiting = VecDeque::from([(Vec::new(), 1)]);
        while let Some((folder, level)) = waiting.pop_front() {
            if depth == 0 || self.truncated {
                break;
            }
            let names = match self.names(root, &folder).await {
                Ok(names) => names,
                // A folder further down may be gone or closed to us; what is above it is still worth telling.
                Err(error) if level > 1 => {
                    self.closed |= error == Errno::ACCESS;
                    continue;
                }
                Err(error) => return Ok(Err(about(&path.0, error))),
            };
            for entry in names {
                let is_folder = entry.kind == FileKind::Folder;
                if is_folder && level < depth {
                    waiting.push_back((entry.path.0.clone(), level + 1));
                }
                self.batch.push(entry);
                self.left -= 1;
                if self.batch.len() >= BATCH {
                    self.send(writer).await?;
                }
            }
        }
        Ok(Ok(()))
    }

    /// The first names of a folder, as many as are wanted, in order.
    async fn names(&mut self, root: &OwnedFd, folder: &[u8]) -> rustix::io::Result<Vec<FileInfo>> {
        use std::os::fd::AsFd;
        let above = self.last.as_ref().and_then(|(path, open)| {
            let rest = folder.strip_prefix(path.as_slice())?.strip_prefix(b"/")?;
            Some((open.as_fd(), rest))
        });
        let (above, name) = above.unwrap_or((root.as_fd(), if folder.is_empty() { b"." } else { folder }));
        let open = open_beneath(above, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
        let mut first = BinaryHeap::new();
        for (count, entry) in Dir::read_from(&open)?.enumerate() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            first.push(name.to_vec());
            if first.len() > self.left {
                first.pop();
                self.truncated = true;
            }
            if count % TURN == TURN - 1 {
                tokio::task::yield_now().await;
            }
        }
        let mut found = Vec::with_capacity(first.len());
        for (count, name) in first.into_sorted_vec().into_iter().enumerate() {
            let path = if folder.is_empty() { name.clone() } else { [folder, &name].join(&b'/') };
            if path.len() > MAX_PATH {
                self.truncated = true;
                continue;
            }
            if let Ok(stat) = statat(&open, &name[..], AtFlags::SYMLINK_NOFOLLOW) {
                found.push(info(path, &stat));
            }
            if count % TURN == TURN - 1 {
                tokio::task::yield_now().await;
            }
        }
        self.last = Some((folder.to_vec(), open));
        Ok(found)
    }

    async fn send(&mut self, writer: &mut FlowWriter) -> Result<(), FrameError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let entries = std::mem::take(&mut self.batch);
        writer.message(&Reply::Entries(entries)).await
    }
}
