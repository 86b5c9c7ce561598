//! Removing a folder with all in it, however deep and however large, without following a link.

use std::os::fd::{AsFd, OwnedFd};

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, chmodat, openat, renameat, unlinkat},
    io::Errno,
};
use sandbox_executor::protocol::{Failure, Path};

use super::{Executor, failure::about, places::Entry, sys};

/// Folders that are held open at once. What is deeper is moved up first.
const MAX_DEPTH: usize = 32;
/// Removed things between two moments at which other requests get their turn.
const TURN: u32 = 128;

/// Removes a file, or a folder with all in it.
pub async fn remove(executor: &Executor, path: &Path) -> Result<(), Failure> {
    let Entry { folder, name } = executor.places.entry(path)?;
    match unlinkat(&folder, &name[..], AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        other => return other.map_err(|error| about(&path.0, error)),
    }
    Removal { count: 0 }.folder(&folder, &name).await.map_err(|error| about(&path.0, error))
}

struct Removal {
    count: u32,
}

impl Removal {
    /// Empties from the bottom up, with a stack of open folders instead of recursion.
    async fn folder(&mut self, above: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
        let mut stack = vec![open_folder(above, name)?];
        let mut names = vec![name.to_vec()];
        while let Some(top) = stack.last() {
            match self.empty(top).await? {
                Some(deeper) if stack.len() < MAX_DEPTH => {
                    let folder = open_folder(top, &deeper)?;
                    stack.push(folder);
                    names.push(deeper);
                }
                Some(deeper) => move_up(top, &deeper, &stack[0])?,
                None => {
                    stack.pop();
                    let Some(name) = names.pop() else { break };
                    let parent = stack.last().unwrap_or(above);
                    unlinkat(parent, &name[..], AtFlags::REMOVEDIR)?;
                }
            }
        }
        Ok(())
    }

    /// Removes what is not a folder; the first folder found is returned.
    async fn empty(&mut self, folder: &OwnedFd) -> Result<Option<Vec<u8>>, Errno> {
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            match unlinkat(folder, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) => return Ok(Some(name.to_bytes().to_vec())),
                Err(error) => return Err(error),
            }
            self.count += 1;
            if self.count.is_multiple_of(TURN) {
                tokio::task::yield_now().await;
            }
        }
        Ok(None)
    }
}

/// Opens a folder so that things in it can be removed, also where its owner had closed it.
fn open_folder(above: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(above.as_fd(), name, flags, Mode::empty());
    let writable = |folder: &OwnedFd| rustix::fs::fstat(folder).is_ok_and(|stat| stat.st_mode & 0o300 == 0o300);
    match opened {
        Ok(folder) if writable(&folder) => Ok(folder),
        Ok(folder) => {
            let _ = rustix::fs::fchmod(&folder, Mode::from_raw_mode(0o700));
            Ok(folder)
        }
        Err(Errno::ACCESS) => {
            let kind = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode;
            if rustix::fs::FileType::from_raw_mode(kind) == rustix::fs::FileType::Directory {
                chmodat(above, name, Mode::from_raw_mode(0o700), AtFlags::empty())?;
            }
            openat(above.as_fd(), name, flags, Mode::empty())
        }
        Err(error) => Err(error),
    }
}

fn move_up(folder: &OwnedFd, name: &[u8], top: &OwnedFd) -> Result<(), Errno> {
    let mut chance = [0; 8];
    sys::fill_with_chance(&mut chance).map_err(|_| Errno::IO)?;
    let new = format!(".removed-{:016x}", u64::from_ne_bytes(chance));
    renameat(folder, name, top, new.as_str())
}
