//! Puts unpacked layers on top of each other, once: a tree of new folders with hard links to the layers' files. A sandbox
//! then stands on a single folder, however many layers the image has, and files that images share are there once.

use std::{
    collections::BTreeSet,
    ffi::{CStr, CString},
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags},
    io::Errno,
};

use super::{
    layer::LayerFacts,
    name::Name,
    tree::{Attributes, FOLDER, Missing, Owners, Tree, clear, entries, failed, remove_at},
};
use crate::ImageError;

/// Adds a layer to what those below it have made in `root`.
pub fn add(root: &Path, layer: &Path, facts: &LayerFacts, owners: Owners) -> Result<(), ImageError> {
    let mut tree = Tree::at(root).map_err(|error| failed("entering", &[], error))?;
    for path in &facts.opaque {
        empty(&mut tree, &path.name()?)?;
    }
    for path in &facts.whiteouts {
        remove(&mut tree, &path.name()?)?;
    }
    let from = rustix::fs::openat(CWD, layer, FOLDER, Mode::empty());
    let from = from.map_err(|error| failed("entering", &[], error))?;
    let implied: Result<BTreeSet<Vec<u8>>, ImageError> =
        facts.implied.iter().map(|path| path.name().map(|name| name.to_bytes())).collect();
    let mut merging = Merging { owners, implied: implied?, here: Vec::new() };
    let fresh = entries(tree.root()).map_err(|error| failed("reading", &[], error))?.is_empty();
    let lies = if fresh { Beneath::Nothing } else { Beneath::Something };
    merging.folder(from.as_fd(), tree.root(), lies).map_err(|error| failed("putting together", &merging.here, error))
}

/// Whether lower layers may have made something where the next one is put.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beneath {
    Something,
    Nothing,
}

/// A whiteout removes what it names and nothing that a link leads to: through a link it names nothing.
fn remove(tree: &mut Tree, name: &Name) -> Result<(), ImageError> {
    match tree.remove(name.parts()) {
        Err(ImageError::Malformed(_)) => Ok(()),
        other => other,
    }
}

fn empty(tree: &mut Tree, name: &Name) -> Result<(), ImageError> {
    let found = match name.split() {
        None => Ok(Some((tree.root(), c"."))),
        Some((above, last)) => match tree.folder(above, Missing::Reported) {
            Ok(folder) => Ok(folder.map(|folder| (folder, last))),
            Err(ImageError::Malformed(_)) => Ok(None),
            Err(error) => Err(error),
        },
    };
    let Some((folder, last)) = found? else { return Ok(()) };
    match clear(folder, last) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
        Err(error) => Err(failed("emptying", name.parts(), error)),
    }
}

struct Merging {
    owners: Owners,
    implied: BTreeSet<Vec<u8>>,
    here: Vec<CString>,
}

impl Merging {
    fn folder(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, beneath: Beneath) -> rustix::io::Result<()> {
        let before = Attributes::read(to)?;
        for (name, kind) in entries(from)? {
            self.here.push(name.clone());
            match kind {
                FileType::Directory => self.inner(from, to, &name, beneath)?,
                _ => self.link(from, to, &name, beneath)?,
            }
            self.here.pop();
        }
        // A folder that the layer only went through stays as lower ones described it.
        let described = beneath == Beneath::Nothing || !self.implied.contains(&Name::of(&self.here).to_bytes());
        let attributes = if described { Attributes::read(from)? } else { before };
        attributes.apply(to, self.owners)
    }

    fn inner(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        beneath: Beneath,
    ) -> rustix::io::Result<()> {
        let source = rustix::fs::openat(from, name, FOLDER, Mode::empty())?;
        let mode = Mode::RWXU;
        let (target, beneath): (OwnedFd, Beneath) = match rustix::fs::mkdirat(to, name, mode) {
            Ok(()) => (rustix::fs::openat(to, name, FOLDER, Mode::empty())?, Beneath::Nothing),
            Err(Errno::EXIST) if beneath == Beneath::Something => {
                match rustix::fs::openat(to, name, FOLDER, Mode::empty()) {
                    Ok(there) => (there, Beneath::Something),
                    Err(_) => {
                        remove_at(to, name)?;
                        rustix::fs::mkdirat(to, name, mode)?;
                        (rustix::fs::openat(to, name, FOLDER, Mode::empty())?, Beneath::Nothing)
                    }
                }
            }
            Err(error) => return Err(error),
        };
        self.folder(source.as_fd(), target.as_fd(), beneath)
    }

    fn link(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr, beneath: Beneath) -> rustix::io::Result<()> {
        let linked = match rustix::fs::linkat(from, name, to, name, AtFlags::empty()) {
            Err(Errno::EXIST) if beneath == Beneath::Something => {
                remove_at(to, name)?;
                rustix::fs::linkat(from, name, to, name, AtFlags::empty())
            }
            other => other,
        };
        match linked {
            // A file has only so many names.
            Err(Errno::MLINK) => self.copy(from, to, name),
            other => other,
        }
    }

    fn copy(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<()> {
        let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let write = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let source = rustix::fs::openat(from, name, read, Mode::empty())?;
        let target = rustix::fs::openat(to, name, write, Mode::RUSR | Mode::WUSR)?;
        let attributes = Attributes::read(source.as_fd())?;
        let (mut source, mut target) = (File::from(source), File::from(target));
        io::copy(&mut source, &mut target).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        attributes.apply(target.as_fd(), self.owners)
    }
}
