//! Opening things beneath the places for files. The kernel sees to it that no link leads out.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    fs::{
        AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, fstatfs, mkdirat, open, openat2, readlinkat, statat,
    },
    io::Errno,
};
use sandbox_executor::protocol::{Failure, FileInfo, FileKind, Path, Reason};

use super::{
    beneath::open_step_by_step,
    failure::{about, failed, shown},
    paths::{Located, locate},
};

/// Tries where somebody renames things while they are looked up.
const RACES: u32 = 32;
/// Links with an absolute target on the way of one path.
const MAX_LINKS: u32 = 16;

/// The places for files, each held open.
pub struct Places {
    roots: Vec<OwnedFd>,
    names: Vec<String>,
    workspace: String,
}

/// A name in a folder that is held open.
pub struct Entry {
    /// The folder.
    pub folder: OwnedFd,
    /// The name in it.
    pub name: Vec<u8>,
}

impl Places {
    /// Opens them.
    pub fn open(names: &[String], workspace: &str) -> Result<Self, String> {
        let open_one = |name: &String| {
            open(name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(|error| format!("the place for files {name} cannot be opened: {error}"))
        };
        let roots = names.iter().map(open_one).collect::<Result<_, _>>()?;
        Ok(Self { roots, names: names.to_vec(), workspace: workspace.to_owned() })
    }

    /// Opens what a path leads to, links followed as long as they stay within the places.
    pub fn open_file(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Failure> {
        let located = self.locate(path)?;
        self.follow(located, flags).map_err(|error| about(&path.0, error))
    }

    /// Opens the folder that a path's last name is in.
    pub fn entry(&self, path: &Path) -> Result<Entry, Failure> {
        let located = self.locate(path)?;
        self.entry_at(&located, path, Missing::Fails)
    }

    /// The same, and makes the folders above where they are missing.
    pub fn new_entry(&self, path: &Path) -> Result<Entry, Failure> {
        let located = self.locate(path)?;
        self.entry_at(&located, path, Missing::IsMade)
    }

    /// Two names in one place.
    pub fn entries(&self, from: &Path, to: &Path) -> Result<(Entry, Entry), Failure> {
        let (old, new) = (self.locate(from)?, self.locate(to)?);
        if old.place != new.place {
            let what =
                format!("{} and {} are in different places: copy the file instead", shown(&from.0), shown(&to.0));
            return Err(failed(Reason::Invalid, what));
        }
        Ok((self.entry_at(&old, from, Missing::Fails)?, self.entry_at(&new, to, Missing::Fails)?))
    }

    /// Makes a folder and those above it.
    pub fn make_folder(&self, path: &Path) -> Result<(), Failure> {
        let located = self.locate(path)?;
        self.make_folders(located.place, &located.rest).map(drop).map_err(|error| about(&path.0, error))
    }

    /// What a path names, its last link not followed.
    pub fn stat(&self, path: &Path) -> Result<FileInfo, Failure> {
        let located = self.locate(path)?;
        let stat = match located.split() {
            None => fstat(&self.roots[located.place]).map_err(|error| about(&path.0, error))?,
            Some(_) => {
                let entry = self.entry_at(&located, path, Missing::Fails)?;
                statat(&entry.folder, &entry.name[..], AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(|error| about(&path.0, error))?
            }
        };
        Ok(info(self.absolute(&located), &stat))
    }

    /// A path as it is called inside the sandbox.
    pub fn absolute_path(&self, path: &Path) -> Result<Vec<u8>, Failure> {
        self.locate(path).map(|located| self.absolute(&located))
    }

    fn absolute(&self, located: &Located) -> Vec<u8> {
        let place = self.names[located.place].trim_end_matches('/').as_bytes();
        if located.rest.is_empty() { place.to_vec() } else { [place, &located.rest].join(&b'/') }
    }

    fn locate(&self, path: &Path) -> Result<Located, Failure> {
        locate(path, &self.names, &self.workspace)
    }

    fn entry_at(&self, located: &Located, path: &Path, missing: Missing) -> Result<Entry, Failure> {
        let Some((above, name)) = located.split() else {
            return Err(failed(Reason::Invalid, format!("{} is a place for files itself", shown(&path.0))));
        };
        let folder = match self.follow(Located { place: located.place, rest: above.to_vec() }, FOLDER) {
            Err(Errno::NOENT) if missing == Missing::IsMade => self.make_folders(located.place, above),
            other => other,
        };
        Ok(Entry { folder: folder.map_err(|error| about(&path.0, error))?, name: name.to_vec() })
    }

    fn make_folders(&self, place: usize, rest: &[u8]) -> Result<OwnedFd, Errno> {
        let mut folder = self.beneath(place, b"", FOLDER)?;
        let ends = rest.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).chain([rest.len()]);
        for end in ends.filter(|&end| end > 0) {
            let so_far = || self.follow(Located { place, rest: rest[..end].to_vec() }, FOLDER);
            folder = match so_far() {
                Err(Errno::NOENT) => {
                    let name = rest[..end].rsplit(|&byte| byte == b'/').next().unwrap_or_default();
                    match mkdirat(&folder, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => so_far()?,
                        Err(error) => return Err(error),
                    }
                }
                other => other?,
            };
        }
        Ok(folder)
    }

    /// Opens it. The kernel refuses links with an absolute target even where they stay within the places, so those
    /// are replaced by where they lead, and checked like any path.
    fn follow(&self, mut located: Located, flags: OFlags) -> Result<OwnedFd, Errno> {
        for _ in 0..MAX_LINKS {
            match self.beneath(located.place, &located.rest, flags) {
                Err(Errno::XDEV) => located = self.replace_link(&located).ok_or(Errno::XDEV)?,
                other => return other,
            }
        }
        Err(Errno::LOOP)
    }

    fn beneath(&self, place: usize, rest: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let name = if rest.is_empty() { b"." } else { rest };
        open_beneath(self.roots[place].as_fd(), name, flags)
    }

    /// The path with its first absolute link replaced by that link's target.
    fn replace_link(&self, located: &Located) -> Option<Located> {
        let rest = &located.rest;
        let ends = rest.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).chain([rest.len()]);
        for end in ends {
            let (above, name) = Located { place: located.place, rest: rest[..end].to_vec() }.split().map(owned)?;
            let folder = self.beneath(located.place, &above, FOLDER).ok()?;
            let Ok(target) = readlinkat(&folder, &name[..], Vec::new()) else { continue };
            if target.as_bytes().starts_with(b"/") {
                let path = [target.as_bytes(), &rest[end..]].concat();
                return self.locate(&Path(path)).ok();
            }
        }
        None
    }
}

/// The type of `/proc`, see statfs(2).
const PROC: rustix::fs::FsWord = 0x9fa0;

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Fails,
    IsMade,
}

fn owned((above, name): (&[u8], &[u8])) -> (Vec<u8>, Vec<u8>) {
    (above.to_vec(), name.to_vec())
}

/// Opens something beneath a folder, whatever links lie on the way.
pub fn open_beneath(folder: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..RACES {
        let opened = match openat2(folder, name, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::NOSYS) => open_step_by_step(folder, name, flags),
            other => other,
        };
        match opened {
            Err(Errno::AGAIN | Errno::INTR) => {}
            // What is told there is about us, not about files.
            Ok(found) if fstatfs(&found)?.f_type == PROC => return Err(Errno::ACCESS),
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// What the system says about a file, for the other side.
pub fn info(path: Vec<u8>, stat: &Stat) -> FileInfo {
    let time = |seconds: i64, nanos: u64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos as i64);
    FileInfo {
        path: Path(path),
        kind: match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Folder,
            FileType::Symlink => FileKind::Link,
            _ => FileKind::Other,
        },
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        mode: stat.st_mode & 0o7777,
        modified: time(stat.st_mtime, stat.st_mtime_nsec),
        changed: time(stat.st_ctime, stat.st_ctime_nsec),
    }
}
