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
    path::{Path, PathBuf},
};

use crate::{
    folder::{Lock, overwrite},
    tree,
};

/// More than these are not kept.
const MOST: usize = 64;
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
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stamp([Seen; 2]);

/// Times, number, mode, and flags where the file system has them.
type Seen = ([i64; 4], u64, u32, Option<u32>);

impl Stamp {
    /// As they are now; nothing if one is missing.
    pub fn of(folder: &Path) -> Option<Self> {
        let look = |name| {
            let found = fs::symlink_metadata(folder.join(name)).ok()?;
            let times = [found.ctime(), found.ctime_nsec(), found.mtime(), found.mtime_nsec()];
            let flags = fs::File::open(folder.join(name)).ok().and_then(|file| rustix::fs::ioctl_getflags(file).ok());
            Some((times, found.ino(), found.mode(), flags.map(|flags| flags.bits())))
        };
        Some(Self([look(REACHED[0])?, look(REACHED[1])?]))
    }

    /// Whether that is how they still are. A clock that ticks slowly does not tell all, so what could be left by a sandbox
    /// that was very quick is looked for too.
    fn holds(self, folder: &Path) -> bool {
        let empty = |name| {
            let path = folder.join(name);
            let attributes = rustix::fs::llistxattr_query(&path);
            fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_none())
                && matches!(attributes, Ok(0) | Err(rustix::io::Errno::NOTSUP))
        };
        Self::of(folder) == Some(self) && REACHED.into_iter().all(empty)
    }
}

/// Where folders wait, and for how many there is room.
pub struct Shelf {
    path: PathBuf,
    room: usize,
}

impl Shelf {
    /// That of a state folder.
    pub fn of(state: &Path) -> Self {
        let path = state.join("spare");
        let taken = fs::read_dir(&path).map_or(MOST, Iterator::count);
        Self { path, room: MOST.saturating_sub(taken) }
    }

    /// Keeps the folder of an ended sandbox, or removes it where that does not work. Nothing is done to one whose lock
    /// somebody else has. With the stamp from before the sandbox ran, folders that it never touched stay as they are.
    pub fn retire(&mut self, folder: &Path, lock: Option<Lock>, before: Option<Stamp>) {
        let Some(_lock) = lock.or_else(|| Lock::take(folder).ok()?) else { return };
        if self.keep(folder, before).is_err() {
            let _ = tree::clear(folder);
            let _ = fs::remove_dir(folder);
        }
    }

    fn keep(&mut self, folder: &Path, before: Option<Stamp>) -> io::Result<()> {
        let name = folder.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        self.room = self.room.checked_sub(1).ok_or(io::ErrorKind::QuotaExceeded)?;
        let untouched = before.is_some_and(|before| before.holds(folder));
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            match path.file_name().and_then(|name| name.to_str()) {
                // What they say of the sandbox goes with it.
                Some("lock" | "facts.json") => overwrite(&fs::File::options().write(true).open(&path)?, b"\n")?,
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
        fs::rename(folder, self.path.join(name))
    }
}

/// An untouched folder belongs to us again.
fn give_back(folder: &Path) -> io::Result<()> {
    let (owner, group) = (rustix::process::geteuid(), rustix::process::getegid());
    Ok(rustix::fs::chown(folder, Some(owner), Some(group))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::{fd::AsRawFd, unix::fs::PermissionsExt};

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
        Shelf::of(state.path()).retire(&folder, None, None);
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
            assert_eq!(fs::read(target.join(name)).expect("it"), b"\n", "{name} tells of the one before");
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
            Shelf::of(state.path()).retire(&folder, None, before);
            let same = fs::metadata(state.path().join("spare/one/home")).expect("kept").ino() == number;
            assert_eq!(same, touch.is_none(), "{touch:?}");
            drop(held);
        }
    }

    #[test]
    fn what_a_sandbox_left_before_the_clock_moved_on_is_noticed() {
        for leave in ["file", "attribute"] {
            let (state, folder) = ended();
            tree::clear(&folder.join("workspace")).expect("emptied");
            let home = folder.join("home");
            if leave == "file" {
                fs::write(home.join("x"), "").expect("a file");
            } else if rustix::fs::setxattr(&home, "user.x", b"x", rustix::fs::XattrFlags::empty()).is_err() {
                continue;
            }
            // As if all of that had happened at the same time.
            let before = Stamp::of(&folder);
            let held = fs::File::open(&home).expect("it");
            Shelf::of(state.path()).retire(&folder, None, before);
            let kept = fs::metadata(state.path().join("spare/one/home")).expect("kept");
            assert_ne!(kept.ino(), fs::metadata(format!("/proc/self/fd/{}", held.as_raw_fd())).expect("it").ino());
            assert!(!state.path().join("spare/one/home/x").exists());
        }
    }

    #[test]
    fn nothing_is_deleted_in_a_folder_that_somebody_else_empties() {
        let (state, folder) = ended();
        let lock = Lock::take(&folder).expect("a lock").expect("nobody has it");
        Shelf::of(state.path()).retire(&folder, None, None);
        assert!(folder.join("workspace/deep/file").exists());
        assert_eq!(spares(state.path()), 0);
        Shelf::of(state.path()).retire(&folder, Some(lock), None);
        assert_eq!((folder.exists(), spares(state.path())), (false, 1));
    }
}
