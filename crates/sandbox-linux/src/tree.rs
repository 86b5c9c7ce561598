//! Whole trees of files that a sandbox made: how large they are, and how to be rid of them.
//!
//! Everything here was made by somebody hostile: names of any kind, folders nested deeper than a path can say, folders
//! that forbid entry. So trees are walked by descriptors, links are never followed, and depth is bounded.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags},
    io::Errno,
};
use sandbox_core::exec::DiskTrouble;

/// Folders within folders that are still entered.
const DEEPEST: usize = 200;
/// A file costs at least this much, also if it is empty: names and inodes are not free, and a disk has only so many.
const LEAST: u64 = 4096;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Bytes beneath a folder, or why they cannot be told.
pub fn size(root: &Path) -> Result<u64, DiskTrouble> {
    match measure(root) {
        Ok(bytes) => Ok(bytes),
        Err(Errno::NOENT) => Ok(0),
        Err(Errno::NAMETOOLONG) => Err(DiskTrouble::TooDeep),
        Err(_) => Err(DiskTrouble::Unreadable),
    }
}

fn measure(root: &Path) -> Result<u64, Errno> {
    let mut open = vec![Dir::new(rustix::fs::openat(CWD, root, FOLDER, Mode::empty())?)?];
    let mut total: u64 = 0;
    while let Some(folder) = open.last_mut() {
        let Some(entry) = folder.read() else {
            open.pop();
            continue;
        };
        let (entry, here) = (entry?, folder.fd()?);
        if [c".", c".."].contains(&entry.file_name()) {
            continue;
        }
        // What vanishes while we look is not there.
        let Ok(found) = rustix::fs::statat(here, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
        total = total.saturating_add(LEAST.max(found.st_blocks as u64 * 512));
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            let inner = match rustix::fs::openat(here, entry.file_name(), FOLDER, Mode::empty()) {
                Err(Errno::NOENT | Errno::NOTDIR) => continue,
                other => other?,
            };
            if open.len() >= DEEPEST {
                return Err(Errno::NAMETOOLONG);
            }
            open.push(Dir::new(inner)?);
        }
    }
    Ok(total)
}

/// Removes everything in a folder, but not the folder.
pub fn clear(root: &Path) -> io::Result<()> {
    let top = rustix::fs::openat(CWD, root, FOLDER, Mode::empty())?;
    // What is too deep is moved up and removed in a later round, so every round gets nearer to the end.
    for round in 0u32.. {
        let mut moved = 0;
        clear_round(&top, round, &mut moved)?;
        if moved == 0 {
            return Ok(());
        }
    }
    Ok(())
}

fn clear_round(top: &OwnedFd, round: u32, moved: &mut u32) -> Result<(), Errno> {
    let mut open = vec![(Dir::read_from(top)?, std::ffi::CString::default())];
    loop {
        let depth = open.len();
        let Some((folder, _)) = open.last_mut() else { return Ok(()) };
        let Some(entry) = folder.read() else {
            let Some((_, name)) = open.pop() else { return Ok(()) };
            if let Some((above, _)) = open.last() {
                let _ = rustix::fs::unlinkat(above.fd()?, name, AtFlags::REMOVEDIR);
            }
            continue;
        };
        let (name, here) = (entry?.file_name().to_owned(), folder.fd()?);
        if [c".", c".."].contains(&name.as_c_str()) || rustix::fs::unlinkat(here, &name, AtFlags::empty()).is_ok() {
            continue;
        }
        let Ok(inner) = enter(here, &name) else { continue };
        if depth < DEEPEST {
            open.push((Dir::new(inner)?, name));
        } else if rustix::fs::renameat(here, &name, top, format!("deep-{round}-{moved}")).is_ok() {
            *moved += 1;
        }
    }
}

/// Also a folder that forbids it to its owner.
fn enter(folder: BorrowedFd<'_>, name: &std::ffi::CStr) -> Result<OwnedFd, Errno> {
    let _ = rustix::fs::chmodat(folder, name, Mode::RWXU, AtFlags::SYMLINK_NOFOLLOW);
    rustix::fs::openat(folder, name, FOLDER, Mode::empty()).or_else(|_| {
        // Kernels before 6.6 cannot change a mode without following links; a folder is no link.
        rustix::fs::chmodat(folder, name, Mode::RWXU, AtFlags::empty())?;
        rustix::fs::openat(folder, name, FOLDER, Mode::empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Folders nested deeper than any path can say.
    fn nest(top: &Path, levels: usize) {
        let mut here = rustix::fs::openat(CWD, top, FOLDER, Mode::empty()).expect("the top");
        for _ in 0..levels {
            rustix::fs::mkdirat(&here, "a-name-of-some-length", Mode::RWXU).expect("one deeper");
            here = rustix::fs::openat(&here, "a-name-of-some-length", FOLDER, Mode::empty()).expect("one deeper");
        }
        rustix::fs::openat(&here, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).expect("a file at the bottom");
    }

    #[test]
    fn folders_deeper_than_a_path_can_say_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        nest(folder.path(), 1500);
        fs::create_dir(folder.path().join("shut")).expect("a folder");
        fs::write(folder.path().join("shut/file"), "x").expect("a file");
        rustix::fs::chmod(folder.path().join("shut"), Mode::empty()).expect("a folder that forbids entry");
        clear(folder.path()).expect("cleared");
        assert_eq!(fs::read_dir(folder.path()).expect("still there").count(), 0);
    }

    #[test]
    fn what_is_too_deep_to_measure_is_named_so() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("file"), vec![1; 100_000]).expect("a file");
        fs::write(folder.path().join("empty"), "").expect("a file");
        let found = size(folder.path());
        assert!(found.is_ok_and(|size| (104_000..120_000).contains(&size)), "{found:?}");
        nest(folder.path(), DEEPEST + 1);
        assert_eq!(size(folder.path()), Err(DiskTrouble::TooDeep));
        clear(folder.path()).expect("cleared");
    }
}
