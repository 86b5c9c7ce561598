//! Makes an image fit for sandboxes, once: folders where each mounts its own things, a name for who commands are, and how
//! names of hosts are found.

use std::{
    ffi::CStr,
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{CWD, Mode, OFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::tree::{Attributes, FOLDER, Owners, failed, remove_at};
use crate::ImageError;

/// What the backend puts into every image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fittings {
    /// Folders where something is mounted, with those above each first. What is no folder there is replaced by one: a link
    /// would lead whoever mounts astray.
    pub folders: Vec<String>,
    /// Files in `/etc` that are always these.
    pub etc: Vec<(String, String)>,
    /// Lines of files in `/etc` that are added where no line has the same number in its third field.
    pub accounts: Vec<(String, String)>,
}

/// Nothing longer is taken for a list of users.
const LONGEST: u64 = 1 << 20;

/// Does it, beneath this folder.
pub fn fit(root: &Path, fittings: &Fittings, owners: Owners) -> Result<(), ImageError> {
    let root = rustix::fs::openat(CWD, root, FOLDER, Mode::empty());
    let root = root.map_err(|error| failed("entering", &[], error))?;
    for path in &fittings.folders {
        make_folder(root.as_fd(), path, owners)
            .map_err(|error| ImageError::Io { doing: format!("making /{path} in the image"), source: error.into() })?;
    }
    let etc = match rustix::fs::openat(&root, c"etc", FOLDER, Mode::empty()) {
        Err(Errno::NOENT) => new_folder(root.as_fd(), c"etc", owners),
        other => other,
    };
    // An image whose /etc is a link has made up its mind; programs in it find what it leads to.
    let Ok(etc) = etc else { return Ok(()) };
    for (name, content) in &fittings.etc {
        replace(&etc, name, content, owners).map_err(ImageError::io(format!("writing /etc/{name} in the image")))?;
    }
    for (name, line) in &fittings.accounts {
        let found = read(&etc, name);
        if let Some(text) = with_account(&found, line) {
            replace(&etc, name, &text, owners).map_err(ImageError::io(format!("writing /etc/{name} in the image")))?;
        }
    }
    Ok(())
}

fn make_folder(root: BorrowedFd<'_>, path: &str, owners: Owners) -> rustix::io::Result<()> {
    let mut here: OwnedFd = rustix::fs::openat(root, c".", FOLDER, Mode::empty())?;
    for part in path.split('/') {
        let name = std::ffi::CString::new(part).map_err(|_| Errno::INVAL)?;
        here = match rustix::fs::openat(&here, &name, FOLDER, Mode::empty()) {
            Err(Errno::NOENT) => new_folder(here.as_fd(), &name, owners)?,
            Err(Errno::LOOP | Errno::NOTDIR) => {
                remove_at(here.as_fd(), &name)?;
                new_folder(here.as_fd(), &name, owners)?
            }
            other => other?,
        };
    }
    Ok(())
}

fn new_folder(above: BorrowedFd<'_>, name: &CStr, owners: Owners) -> rustix::io::Result<OwnedFd> {
    rustix::fs::mkdirat(above, name, Mode::RWXU)?;
    let folder = rustix::fs::openat(above, name, FOLDER, Mode::empty())?;
    Attributes::PLAIN.apply(folder.as_fd(), owners)?;
    Ok(folder)
}

/// A new file: the old one may be a layer's, which others share.
fn replace(etc: &OwnedFd, name: &str, content: &str, owners: Owners) -> std::io::Result<()> {
    let c_name = std::ffi::CString::new(name)?;
    remove_at(etc.as_fd(), &c_name)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(etc, &c_name, flags, Mode::RUSR | Mode::WUSR)?;
    let mut file = File::from(file);
    file.write_all(content.as_bytes())?;
    Ok(Attributes { mode: 0o644, ..Attributes::PLAIN }.apply(file.as_fd(), owners)?)
}

/// What is no plain file counts as empty.
fn read(etc: &OwnedFd, name: &str) -> Vec<u8> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut content = Vec::new();
    if let Ok(file) = rustix::fs::openat(etc, name, flags, Mode::empty()) {
        let file = File::from(file);
        if file.metadata().is_ok_and(|found| found.is_file()) {
            let _ = file.take(LONGEST).read_to_end(&mut content);
        }
    }
    content
}

/// With the line at its end, unless somebody has its number or its name.
fn with_account(known: &[u8], line: &str) -> Option<String> {
    let text = String::from_utf8_lossy(known);
    let fields = |line: &str| {
        let mut fields = line.split(':');
        (fields.next().map(str::to_owned), fields.nth(1).map(str::to_owned))
    };
    let (name, number) = fields(line);
    let taken = text.lines().map(fields).any(|(other, count)| other == name || count == number);
    if taken {
        return None;
    }
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    Some(format!("{text}{end}{line}\n"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn an_account_is_added_where_nobody_has_its_number() {
        let line = "sandbox:x:1000:1000::/home/sandbox:/bin/sh";
        assert_eq!(with_account(b"", line).unwrap(), format!("{line}\n"));
        assert_eq!(with_account(b"root:x:0:0", line).unwrap(), format!("root:x:0:0\n{line}\n"));
        assert_eq!(with_account(b"root:x:0:0\nnode:x:1000:1000::/:\n", line), None);
    }

    #[test]
    fn links_at_mount_points_are_replaced_and_never_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
        fs::create_dir_all(&root).unwrap();
        fs::create_dir_all(&outside).unwrap();
        symlink(&outside, root.join("home")).unwrap();
        symlink(outside.join("x"), root.join("proc")).unwrap();
        fs::write(root.join("workspace"), "a file").unwrap();
        fs::create_dir(root.join("etc")).unwrap();
        symlink(outside.join("resolv.conf"), root.join("etc/resolv.conf")).unwrap();
        fs::write(outside.join("passwd"), "secret:x:1:1").unwrap();
        symlink(outside.join("passwd"), root.join("etc/passwd")).unwrap();
        let fittings = Fittings {
            folders: ["proc", "home", "home/sandbox", "workspace"].map(String::from).into(),
            etc: vec![("resolv.conf".into(), "nameserver 1\n".into())],
            accounts: vec![("passwd".into(), "a:x:5:5".into())],
        };
        fit(&root, &fittings, Owners::Single).unwrap();
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(outside.join("passwd")).unwrap(), "secret:x:1:1");
        assert!(root.join("home/sandbox").is_dir() && root.join("workspace").is_dir());
        assert_eq!(fs::read_to_string(root.join("etc/resolv.conf")).unwrap(), "nameserver 1\n");
        assert_eq!(fs::read_to_string(root.join("etc/passwd")).unwrap(), "a:x:5:5\n");
    }
}
