//! A tree of empty folders with the names of another tree.
//!
//! An ordinary user who layers a folder of their own over this machine's `/usr` may change nothing in it: its folders
//! belong to somebody who does not exist inside. With a tree of the same folders between the two, that belong to the
//! user, everything can be made, removed and renamed (`notes` in ARCHITECTURE.md, "A root that can be changed").

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags},
    io::Errno,
};

/// Folders within folders that are still entered.
const DEEPEST: usize = 100;
/// More folders than these are no system's programs.
const MOST: usize = 500_000;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Makes `target` and in it the folders of `source`, with their modes. A folder that may not be read is left out, and
/// so stays as unreadable as it is.
pub fn copy(source: &Path, target: &Path) -> io::Result<()> {
    let source = rustix::fs::openat(CWD, source, FOLDER, Mode::empty())?;
    rustix::fs::mkdir(target, Mode::RWXU)?;
    let target = rustix::fs::openat(CWD, target, FOLDER, Mode::empty())?;
    rustix::fs::fchmod(&target, mode_of(&source)?)?;
    let mut left = MOST;
    let mut open = vec![(Dir::new(source)?, target)];
    while let Some((folder, target)) = open.last_mut() {
        let Some(entry) = folder.read() else {
            open.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name().to_owned();
        // Some file systems do not say what an entry is.
        let maybe_folder = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
        if !maybe_folder || [c".", c".."].contains(&name.as_c_str()) {
            continue;
        }
        if let Some(pair) = enter(folder, target, &name)? {
            left = left.checked_sub(1).ok_or(io::ErrorKind::QuotaExceeded)?;
            if open.len() < DEEPEST {
                open.push(pair);
            }
        }
    }
    Ok(())
}

/// The folder of this name on both sides; nothing if it is none, or not for us.
fn enter(folder: &Dir, target: &OwnedFd, name: &CString) -> io::Result<Option<(Dir, OwnedFd)>> {
    let inner = match rustix::fs::openat(folder.fd()?, name, FOLDER, Mode::empty()) {
        Err(Errno::ACCESS | Errno::PERM | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        other => other?,
    };
    rustix::fs::mkdirat(target, name, Mode::RWXU)?;
    // Not by the mode of the call, which the process's own mask would change.
    rustix::fs::chmodat(target.as_fd(), name, mode_of(&inner)?, AtFlags::empty())?;
    let copy = rustix::fs::openat(target, name, FOLDER, Mode::empty())?;
    Ok(Some((Dir::new(inner)?, copy)))
}

/// Its owner, who is another now, must be able to go on.
fn mode_of(folder: &OwnedFd) -> io::Result<Mode> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(folder)?.st_mode & 0o1777);
    Ok(mode | Mode::RWXU)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    #[test]
    fn only_folders_are_copied_with_their_modes() {
        let folder = tempfile::tempdir().expect("a folder");
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        fs::create_dir_all(source.join("a/b")).expect("folders");
        fs::write(source.join("a/file"), "x").expect("a file");
        std::os::unix::fs::symlink("/etc", source.join("link")).expect("a link");
        fs::set_permissions(source.join("a/b"), fs::Permissions::from_mode(0o1777)).expect("a mode");
        copy(&source, &target).expect("copied");
        let mode = fs::metadata(target.join("a/b")).expect("copied").permissions().mode();
        assert_eq!(mode & 0o7777, 0o1777);
        let entries = |path: &str| fs::read_dir(target.join(path)).expect("a folder").count();
        assert_eq!((entries("."), entries("a"), entries("a/b")), (1, 1, 0));
    }
}
