//! Opening something beneath a folder step by step, for kernels that cannot be asked to (gVisor has no openat2).
//!
//! Every name on the way is opened in the folder that is held, never through a link: links are read and walked the same
//! way. What is renamed meanwhile leads to what is held, which lies beneath, or was moved by who may.

use std::{collections::VecDeque, os::fd::BorrowedFd, os::fd::OwnedFd};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, openat, readlinkat, statat},
    io::Errno,
};

/// Links on the way of one path, as the kernel counts.
const MOST_LINKS: u32 = 40;

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens it. Answers as the kernel does: EXDEV for what leads out or is absolute, ELOOP for too many links.
pub fn open_step_by_step(folder: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    if name.starts_with(b"/") {
        return Err(Errno::XDEV);
    }
    let mut path = vec![openat(folder, c".", FOLDER, Mode::empty())?];
    let mut rest: VecDeque<Vec<u8>> = parts(name).collect();
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        let Some(here) = path.last() else { return Err(Errno::XDEV) };
        if part == b".." {
            path.pop();
            if path.is_empty() {
                return Err(Errno::XDEV);
            }
            continue;
        }
        let last = rest.is_empty();
        let found = statat(here, &part[..], AtFlags::SYMLINK_NOFOLLOW);
        let kind = found.map(|found| FileType::from_raw_mode(found.st_mode));
        match kind {
            Ok(FileType::Symlink) if !(last && flags.contains(OFlags::NOFOLLOW)) => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::LOOP);
                }
                let target = readlinkat(here, &part[..], Vec::new())?;
                if target.as_bytes().starts_with(b"/") {
                    return Err(Errno::XDEV);
                }
                parts(target.as_bytes()).rev().for_each(|part| rest.push_front(part));
            }
            Err(error) if !last => return Err(error),
            _ if last => match openat(here, &part[..], flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
                // It has just become a link.
                Err(Errno::LOOP) if !flags.contains(OFlags::NOFOLLOW) => return Err(Errno::AGAIN),
                other => return other,
            },
            _ => {
                let next = openat(here, &part[..], FOLDER, Mode::empty())?;
                path.push(next);
            }
        }
    }
    let Some(here) = path.last() else { return Err(Errno::XDEV) };
    openat(here, c".", flags | OFlags::CLOEXEC, Mode::empty())
}

fn parts(name: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    let parts: Vec<_> = name.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && part != b".").collect();
    parts.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{fs, os::fd::AsFd, os::unix::fs::symlink};

    use rustix::fs::{ResolveFlags, fstat, open, openat2};

    use super::*;

    /// Whatever the kernel answers, we answer.
    #[test]
    fn every_path_leads_where_the_kernel_says() {
        let top = tempfile::tempdir().unwrap();
        let root = top.path().join("root");
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::write(root.join("a/b/file"), "x").unwrap();
        fs::write(top.path().join("secret"), "x").unwrap();
        for (name, to) in [
            ("out", "../secret"),
            ("a/out", "../../secret"),
            ("a/up", ".."),
            ("a/b/back", "../../a/b/file"),
            ("absolute", "/etc/passwd"),
            ("chain", "a/up/a/b/back"),
            ("self", "self"),
            ("dangling", "a/none"),
            ("a/round", "b/../b/../../root/a/b/file"),
            ("folder", "a/b"),
        ] {
            symlink(to, root.join(name)).unwrap();
        }
        let names = [
            "",
            ".",
            "..",
            "a",
            "a/",
            "a/b/file",
            "a/b/file/",
            "a/b/../b/file",
            "a/../..",
            "a/../../root/a",
            "out",
            "a/out",
            "a/up/a/b/file",
            "a/b/back",
            "absolute",
            "chain",
            "self",
            "dangling",
            "a/round",
            "folder/file",
            "folder/c",
            "folder",
            "none",
            "none/x",
            "a/b/file/x",
            "//a",
            "/a",
            "folder/../../a",
            "a//b/./file",
            "a/b/c/../../../../secret",
        ];
        let held = open(&root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for name in names.iter().filter(|name| !name.is_empty() && !name.ends_with("file/")) {
            for flags in
                [OFlags::PATH, OFlags::RDONLY, OFlags::PATH | OFlags::DIRECTORY, OFlags::RDONLY | OFlags::NOFOLLOW]
            {
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                let theirs = openat2(&held, *name, flags, Mode::empty(), resolve);
                let ours = open_step_by_step(held.as_fd(), name.as_bytes(), flags);
                let which = |file: OwnedFd| fstat(&file).map(|found| found.st_ino).unwrap();
                assert_eq!(ours.map(which), theirs.map(which), "{name} {flags:?}");
            }
        }
    }
}
