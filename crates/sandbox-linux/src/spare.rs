//! Folders of ended sandboxes, emptied, that wait to be used again.
//!
//! A sandbox's folder is five files, and making files can be most of a start: ext4 without a journal looks past every
//! file that was deleted in the last minutes before it gives out a new one. Renaming costs the same everywhere.

use std::{fs, io, os::fd::AsFd, path::Path};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use crate::{folder::Lock, tree};

/// More than these are not kept.
const MOST: usize = 256;
/// A folder that once held many names stays large, and slow to list.
const LARGEST: u64 = 4096;

/// Moves a folder that is ready for a new sandbox to this path, with its lock; nothing if there is none.
pub fn claim(state: &Path, target: &Path) -> Option<Lock> {
    fs::read_dir(state.join("spare")).ok()?.flatten().find_map(|entry| {
        // Who has the lock has the folder, so two who want the same one get two.
        let lock = Lock::take(&entry.path()).ok()??;
        fs::rename(entry.path(), target).ok().map(|()| lock)
    })
}

/// Keeps the folder of an ended sandbox, or removes it where it cannot be as good as new. Who has its lock brings it.
pub fn retire(state: &Path, folder: &Path, lock: Option<Lock>) {
    if !matches!(keep(&state.join("spare"), folder, lock), Ok(true)) {
        let _ = tree::clear(folder);
        let _ = fs::remove_dir(folder);
    }
}

fn keep(spare: &Path, folder: &Path, lock: Option<Lock>) -> io::Result<bool> {
    let Some(name) = folder.file_name() else { return Ok(false) };
    if fs::read_dir(spare)?.count() >= MOST {
        return Ok(false);
    }
    let lock = match lock {
        Some(lock) => Some(lock),
        None => Lock::take(folder)?,
    };
    if lock.is_none() {
        return Ok(false);
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.file_name().and_then(|name| name.to_str()) {
            Some("lock" | "facts.json") => {}
            Some("workspace" | "home") => {
                tree::clear(&path)?;
                if !make_as_new(folder, &path)? {
                    return Ok(false);
                }
            }
            _ if fs::symlink_metadata(&path)?.is_dir() => {
                tree::clear(&path)?;
                fs::remove_dir(&path)?;
            }
            _ => fs::remove_file(&path)?,
        }
    }
    fs::rename(folder, spare.join(name))?;
    Ok(true)
}

/// Gives an emptied folder back its owner and mode. False where the sandbox has left anything else on it: names of
/// attributes and flags are those of the folder around it, which no sandbox ever reaches, or it is not as good as new.
fn make_as_new(around: &Path, folder: &Path) -> io::Result<bool> {
    let open = |path| {
        rustix::fs::openat(
            CWD,
            path,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )
    };
    let (around, folder) = (open(around)?, open(folder)?);
    let (owner, group) = (rustix::process::geteuid(), rustix::process::getegid());
    rustix::fs::fchown(&folder, Some(owner), Some(group))?;
    rustix::fs::fchmod(&folder, Mode::from_raw_mode(0o755))?;
    let found = rustix::fs::statat(&folder, "", AtFlags::EMPTY_PATH)?;
    let empty = rustix::fs::Dir::read_from(&folder)?.flatten().all(|entry| [c".", c".."].contains(&entry.file_name()));
    Ok(empty
        && found.st_size as u64 <= LARGEST
        && attributes(&folder)? == attributes(&around)?
        && rustix::fs::ioctl_getflags(&folder) == rustix::fs::ioctl_getflags(&around))
}

/// Names of extended attributes, access lists among them.
fn attributes(folder: impl AsFd) -> io::Result<Vec<u8>> {
    let mut names = vec![0; 4096];
    match rustix::fs::flistxattr(folder, &mut names) {
        Ok(length) => {
            names.truncate(length);
            Ok(names)
        }
        Err(rustix::io::Errno::NOTSUP) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state folder with one ended sandbox in it.
    fn ended() -> (tempfile::TempDir, std::path::PathBuf) {
        let state = tempfile::tempdir().expect("a folder");
        let folder = state.path().join("trash/one");
        for name in ["spare", "trash/one/workspace/deep/deeper", "trash/one/home", "trash/one/upper"] {
            fs::create_dir_all(state.path().join(name)).expect("a folder");
        }
        for name in ["lock", "facts.json", "workspace/deep/file", "upper/file"] {
            fs::write(folder.join(name), "old").expect("a file");
        }
        (state, folder)
    }

    fn spares(state: &Path) -> usize {
        fs::read_dir(state.join("spare")).expect("the spares").count()
    }

    #[test]
    fn an_emptied_folder_is_used_again() {
        let (state, folder) = ended();
        fs::set_permissions(folder.join("home"), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("a mode");
        retire(state.path(), &folder, None);
        assert!(!folder.exists());
        let target = state.path().join("new");
        let _lock = claim(state.path(), &target).expect("a spare folder");
        let mut names: Vec<_> =
            fs::read_dir(&target).expect("a folder").map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["facts.json", "home", "lock", "workspace"]);
        assert_eq!(fs::read_dir(target.join("workspace")).expect("a folder").count(), 0);
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(target.join("home")).expect("it").permissions());
        assert_eq!(mode & 0o7777, 0o755);
        assert!(claim(state.path(), &state.path().join("newer")).is_none());
    }

    #[test]
    fn what_somebody_holds_the_lock_of_is_not_kept() {
        let (state, folder) = ended();
        let _lock = Lock::take(&folder).expect("a lock").expect("nobody has it");
        retire(state.path(), &folder, None);
        assert_eq!((folder.exists(), spares(state.path())), (false, 0));
    }

    #[test]
    fn attributes_and_swollen_folders_do_not_reach_the_next_sandbox() {
        let (state, folder) = ended();
        let set = rustix::fs::setxattr(
            folder.join("workspace"),
            "user.message",
            b"from before",
            rustix::fs::XattrFlags::empty(),
        );
        if set.is_ok() {
            retire(state.path(), &folder, None);
            assert_eq!((folder.exists(), spares(state.path())), (false, 0));
        }
        let (state, folder) = ended();
        for number in 0..2000 {
            fs::write(folder.join(format!("home/a-rather-long-name-{number}")), "").expect("a file");
        }
        let swollen = fs::metadata(folder.join("home")).expect("it").len() > LARGEST;
        retire(state.path(), &folder, None);
        assert_eq!(spares(state.path()), usize::from(!swollen));
    }
}
