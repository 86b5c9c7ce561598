//! Folders of ended sandboxes, emptied, that wait to be used again.
//!
//! A sandbox's folder is five files, and making files can be most of a start: ext4 without a journal looks past every
//! file that was deleted in the last minutes before it gives out a new one. Renaming costs the same everywhere.
//!
//! Whoever empties a folder has its lock: two who sweep the same trash must not, or the second would go on deleting in
//! what the first has given to a new sandbox.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::Path,
};

use crate::{folder::Lock, tree};

/// More than these are not kept.
const MOST: usize = 256;
/// What a sandbox can reach of its folder.
const REACHED: [&str; 2] = ["workspace", "home"];

/// Moves a folder that is ready for a new sandbox to this path, with its lock; nothing if there is none.
pub fn claim(state: &Path, target: &Path) -> Option<Lock> {
    fs::read_dir(state.join("spare")).ok()?.flatten().find_map(|entry| {
        // Who has the lock has the folder, so two who want the same one get two.
        let lock = Lock::take(&entry.path()).ok()??;
        fs::rename(entry.path(), target).ok().map(|()| lock)
    })
}

/// What a sandbox would have changed by touching the folders that it reaches.
#[derive(PartialEq, Eq)]
pub struct Stamp([(i64, i64, i64, i64, u64); 2]);

impl Stamp {
    /// As they are now; nothing if one is missing.
    pub fn of(folder: &Path) -> Option<Self> {
        let look = |name| {
            let found = fs::symlink_metadata(folder.join(name)).ok()?;
            Some((found.ctime(), found.ctime_nsec(), found.mtime(), found.mtime_nsec(), found.ino()))
        };
        Some(Self([look(REACHED[0])?, look(REACHED[1])?]))
    }
}

/// Keeps the folder of an ended sandbox, or removes it where that does not work. Nothing is done to one whose lock
/// somebody else has. With the stamp from before the sandbox ran, folders that it never touched stay as they are.
pub fn retire(state: &Path, folder: &Path, lock: Option<Lock>, before: Option<Stamp>) {
    let Some(_lock) = lock.or_else(|| Lock::take(folder).ok()?) else { return };
    if keep(&state.join("spare"), folder, before).is_err() {
        let _ = tree::clear(folder);
        let _ = fs::remove_dir(folder);
    }
}

fn keep(spare: &Path, folder: &Path, before: Option<Stamp>) -> io::Result<()> {
    let name = folder.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    if fs::read_dir(spare)?.count() >= MOST {
        return Err(io::ErrorKind::QuotaExceeded.into());
    }
    let untouched = before.is_some() && before == Stamp::of(folder);
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.file_name().and_then(|name| name.to_str()) {
            // What they say of the sandbox goes with it.
            Some("lock" | "facts.json") => fs::File::options().write(true).open(&path)?.set_len(0)?,
            Some(name) if REACHED.contains(&name) && untouched => give_back(&path)?,
            _ if fs::symlink_metadata(&path)?.is_dir() => {
                tree::clear(&path)?;
                fs::remove_dir(&path)?;
            }
            _ => fs::remove_file(&path)?,
        }
    }
    if !untouched {
        // New ones: times, attributes, flags and whoever still has the old ones open are not worth the thought.
        for name in REACHED {
            fs::DirBuilder::new().mode(0o755).create(folder.join(name))?;
        }
    }
    fs::rename(folder, spare.join(name))
}

/// An untouched folder belongs to us again.
fn give_back(folder: &Path) -> io::Result<()> {
    let (owner, group) = (rustix::process::geteuid(), rustix::process::getegid());
    Ok(rustix::fs::chown(folder, Some(owner), Some(group))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::fs::PermissionsExt, path::PathBuf};

    /// A state folder with one ended sandbox in it.
    fn ended() -> (tempfile::TempDir, PathBuf) {
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
    fn an_emptied_folder_is_used_again_with_nothing_of_before() {
        let (state, folder) = ended();
        let before = fs::metadata(folder.join("home")).expect("it").ino();
        fs::set_permissions(folder.join("home"), PermissionsExt::from_mode(0o777)).expect("a mode");
        // An inode that is still held is not given out again at once.
        let held = fs::File::open(folder.join("home")).expect("the old one");
        retire(state.path(), &folder, None, None);
        assert!(!folder.exists());
        let target = state.path().join("new");
        let _lock = claim(state.path(), &target).expect("a spare folder");
        let entries = fs::read_dir(&target).expect("a folder").map(|entry| entry.expect("an entry").file_name());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        assert_eq!(names, ["facts.json", "home", "lock", "workspace"]);
        assert_eq!(fs::read_dir(target.join("workspace")).expect("a folder").count(), 0);
        let home = fs::metadata(target.join("home")).expect("it");
        assert_eq!((home.permissions().mode() & 0o7777, home.ino() == before), (0o755, false));
        for name in ["facts.json", "lock"] {
            assert_eq!(fs::metadata(target.join(name)).expect("it").len(), 0, "{name} tells of the one before");
        }
        assert!(claim(state.path(), &state.path().join("newer")).is_none());
        drop(held);
    }

    #[test]
    fn what_was_never_touched_stays_and_what_was_does_not() {
        for touch in [None, Some("mode"), Some("file"), Some("attribute")] {
            let (state, folder) = ended();
            tree::clear(&folder.join("workspace")).expect("emptied");
            let (before, number) = (Stamp::of(&folder), fs::metadata(folder.join("home")).expect("it").ino());
            let home = folder.join("home");
            std::thread::sleep(std::time::Duration::from_millis(20));
            let held = fs::File::open(&home).expect("it");
            match touch {
                Some("mode") => fs::set_permissions(&home, PermissionsExt::from_mode(0o755)).expect("a mode"),
                Some("file") => {
                    fs::write(home.join("x"), "").and_then(|()| fs::remove_file(home.join("x"))).expect("a file")
                }
                Some(_) => {
                    let flags = rustix::fs::XattrFlags::empty();
                    if rustix::fs::setxattr(&home, "user.message", b"from before", flags).is_err() {
                        continue;
                    }
                }
                None => {}
            }
            retire(state.path(), &folder, None, before);
            let same = fs::metadata(state.path().join("spare/one/home")).expect("kept").ino() == number;
            assert_eq!(same, touch.is_none(), "{touch:?}");
            drop(held);
        }
    }

    #[test]
    fn nothing_is_deleted_in_a_folder_that_somebody_else_empties() {
        let (state, folder) = ended();
        let lock = Lock::take(&folder).expect("a lock").expect("nobody has it");
        retire(state.path(), &folder, None, None);
        assert!(folder.join("workspace/deep/file").exists());
        assert_eq!(spares(state.path()), 0);
        retire(state.path(), &folder, Some(lock), None);
        assert_eq!((folder.exists(), spares(state.path())), (false, 1));
    }
}
