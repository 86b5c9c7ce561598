//! Makes files beneath a folder without ever following a link: every path is walked part by part, by descriptor.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Timespec, Timestamps},
    io::Errno,
    process::{Gid, Uid},
};
use serde::{Deserialize, Serialize};

use super::name::Name;
use crate::ImageError;

/// Opens a folder, and no link to one.
pub const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Owners that a sandbox does not have are nobody.
const NOBODY: u32 = 65_534;

/// Whose files can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owners {
    /// Everybody's, by root of this machine.
    Machine,
    /// Everybody's, by root of a user namespace with subordinate ids.
    Subordinate,
    /// Only the user's own: everything is theirs.
    Single,
}

/// Who owns something, what may be done with it, and when it was changed.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "see stat(2)")]
pub struct Attributes {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
    pub modified: (i64, u32),
}

impl Attributes {
    /// Of a folder that nothing is said about.
    pub const PLAIN: Self = Self { uid: 0, gid: 0, mode: 0o755, modified: (0, 0) };

    /// As they can be given to a file.
    pub fn of_file(mut self, owners: Owners) -> Self {
        (self.uid, self.gid) = (known(self.uid), known(self.gid));
        self.mode &= 0o7777;
        if owners == Owners::Single {
            // A program that makes everybody who starts it its owner: here that is this very person.
            self.mode &= 0o1777;
        }
        self
    }

    /// The same for a folder: whoever unpacks as nobody special has to get into it.
    pub fn of_folder(self, owners: Owners) -> Self {
        let mut attributes = self.of_file(owners);
        if owners == Owners::Single {
            attributes.mode |= 0o700;
        }
        attributes
    }

    /// Those that something has.
    pub fn read(folder: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let found = rustix::fs::fstat(folder)?;
        let modified = (found.st_mtime as i64, found.st_mtime_nsec as u32);
        Ok(Self { uid: found.st_uid, gid: found.st_gid, mode: found.st_mode & 0o7777, modified })
    }

    fn times(&self) -> Timestamps {
        let time = Timespec { tv_sec: self.modified.0, tv_nsec: i64::from(self.modified.1) as _ };
        Timestamps { last_access: time, last_modification: time }
    }

    /// Gives them to what is open.
    pub fn apply(&self, file: BorrowedFd<'_>, owners: Owners) -> rustix::io::Result<()> {
        if owners != Owners::Single {
            rustix::fs::fchown(file, Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))?;
        }
        // Afterwards: with a change of owners the kernel takes bits away.
        rustix::fs::fchmod(file, Mode::from_raw_mode(self.mode))?;
        rustix::fs::futimens(file, &self.times())
    }

    /// Gives them to a link, or to what cannot be opened without harm.
    pub fn apply_at(&self, folder: BorrowedFd<'_>, name: &CStr, owners: Owners) -> rustix::io::Result<()> {
        if owners != Owners::Single {
            let (uid, gid) = (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)));
            rustix::fs::chownat(folder, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        rustix::fs::utimensat(folder, name, &self.times(), AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// Ids that are in every sandbox's map.
fn known(id: u32) -> u32 {
    if id <= 65_535 { id } else { NOBODY }
}

/// A folder beneath which files are made. It remembers the folders that it went through last, since the next entry is
/// mostly near.
pub struct Tree {
    root: OwnedFd,
    path: Vec<(CString, OwnedFd)>,
}

/// What is done where a folder on the way is missing.
pub enum Missing<'a> {
    /// It is made, and its path (its parts) told.
    Made(&'a mut dyn FnMut(&[CString])),
    /// Nothing is found.
    Reported,
}

impl Tree {
    /// Beneath this folder.
    pub fn at(root: &Path) -> rustix::io::Result<Self> {
        Ok(Self { root: rustix::fs::openat(CWD, root, FOLDER, Mode::empty())?, path: Vec::new() })
    }

    /// The folder itself.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens a folder by its parts. One that is a link, or a file, is an error of the image.
    pub fn folder(
        &mut self,
        parts: &[CString],
        mut missing: Missing<'_>,
    ) -> Result<Option<BorrowedFd<'_>>, ImageError> {
        let same = self.path.iter().zip(parts).take_while(|((known, _), part)| known == *part).count();
        self.path.truncate(same);
        for depth in same..parts.len() {
            let (here, part) = (self.here(), &parts[depth]);
            let opened = match rustix::fs::openat(here, part.as_c_str(), FOLDER, Mode::empty()) {
                Err(Errno::NOENT) => match &mut missing {
                    Missing::Reported => return Ok(None),
                    Missing::Made(tell) => {
                        tell(&parts[..=depth]);
                        rustix::fs::mkdirat(here, part.as_c_str(), Mode::from_raw_mode(0o755))
                            .and_then(|()| rustix::fs::openat(here, part.as_c_str(), FOLDER, Mode::empty()))
                    }
                },
                other => other,
            };
            let opened = opened.map_err(|error| not_entered(&parts[..=depth], error))?;
            self.path.push((part.clone(), opened));
        }
        Ok(Some(self.here()))
    }

    /// Removes what has this name, if anything has.
    pub fn remove(&mut self, parts: &[CString]) -> Result<(), ImageError> {
        let Some((last, above)) = parts.split_last() else { return Ok(()) };
        let Some(folder) = self.folder(above, Missing::Reported)? else { return Ok(()) };
        remove_at(folder, last).map_err(|error| failed("removing", parts, error))
    }

    fn here(&self) -> BorrowedFd<'_> {
        self.path.last().map_or(self.root.as_fd(), |(_, folder)| folder.as_fd())
    }
}

fn not_entered(parts: &[CString], error: Errno) -> ImageError {
    match error {
        Errno::LOOP | Errno::NOTDIR => ImageError::malformed(format!(
            "an entry leads through `{}`, which is a link or a file and no folder",
            Name::of(parts).shown()
        )),
        error => failed("entering", parts, error),
    }
}

/// The kernel's answer, with the path it is about.
pub fn failed(doing: &str, parts: &[CString], error: Errno) -> ImageError {
    let doing = format!("{doing} `{}` of a layer", Name::of(parts).shown());
    match error {
        Errno::NAMETOOLONG | Errno::ILSEQ | Errno::INVAL => {
            ImageError::malformed(format!("{doing} failed: {}", std::io::Error::from(error)))
        }
        error => ImageError::Io { doing, source: error.into() },
    }
}

/// Removes a name with everything beneath it. Nothing there is fine.
pub fn remove_at(folder: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {
            clear(folder, name)?;
            rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)
        }
        Err(error) => Err(error),
    }
}

/// Empties a folder. It is no deeper than names of a layer may be.
pub fn clear(above: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
    let folder = rustix::fs::openat(above, name, FOLDER, Mode::empty()).or_else(|error| {
        // A folder that forbids entry to its owner; it is no link, or it could have been unlinked.
        if error != Errno::ACCESS {
            return Err(error);
        }
        rustix::fs::chmodat(above, name, Mode::RWXU, AtFlags::empty())?;
        rustix::fs::openat(above, name, FOLDER, Mode::empty())
    })?;
    for entry in entries(folder.as_fd())? {
        remove_at(folder.as_fd(), &entry.0)?;
    }
    Ok(())
}

/// Names in a folder, with what each is.
pub fn entries(folder: BorrowedFd<'_>) -> rustix::io::Result<Vec<(CString, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_owned();
        if [c".", c".."].contains(&name.as_c_str()) {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let found = rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                FileType::from_raw_mode(found.st_mode)
            }
            known => known,
        };
        found.push((name, kind));
    }
    Ok(found)
}
