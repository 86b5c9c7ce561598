//! One layer, unpacked into a folder of its own. What it removes from lower layers is written down beside it, and done
//! when layers are put together.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::CString,
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use tar::EntryType;

use super::{
    archive::{Archive, Entry, broken},
    name::{Meaning, Name, shown},
    tree::{Attributes, Missing, Owners, Tree, failed, remove_at},
};
use crate::{ImageError, limits::Limits};

/// What is known about an unpacked layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerFacts {
    /// Bytes of its files.
    pub size: u64,
    /// Files, folders and links.
    pub entries: u64,
    /// What it removes from lower layers.
    pub whiteouts: Vec<Path8>,
    /// Folders of which nothing of lower layers is left.
    pub opaque: Vec<Path8>,
    /// Folders that the layer does not describe: lower layers may.
    pub implied: Vec<Path8>,
    /// Devices that were left out; every sandbox has its own.
    pub devices: u64,
}

/// A path of any bytes, as text of hexadecimal digits where it is not text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Path8 {
    /// Most are.
    Text(String),
    /// Some are not.
    Bytes(Vec<u8>),
}

impl Path8 {
    /// To be written down.
    pub fn of(name: &Name) -> Self {
        String::from_utf8(name.to_bytes()).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }

    /// Checked again when it is read.
    pub fn name(&self) -> Result<Name, ImageError> {
        match self {
            Self::Text(text) => Name::parse(text.as_bytes()),
            Self::Bytes(bytes) => Name::parse(bytes),
        }
    }
}

/// Unpacks an archive into an empty folder. `tell` hears how many bytes of files were written so far.
pub fn unpack(
    reader: impl Read,
    root: &Path,
    owners: Owners,
    limits: Limits,
    tell: &mut dyn FnMut(u64),
) -> Result<LayerFacts, ImageError> {
    let tree = Tree::at(root).map_err(|error| failed("entering", &[], error))?;
    let mut unpacking = Unpacking {
        tree,
        owners,
        facts: LayerFacts::default(),
        folders: BTreeMap::new(),
        implied: BTreeSet::new(),
        buffer: vec![0; 256 << 10],
    };
    let mut archive = Archive::new(reader);
    while let Some(entry) = archive.next()? {
        unpacking.facts.entries += 1;
        if unpacking.facts.entries > limits.entries {
            return Err(ImageError::malformed(format!("a layer has more than {} entries", limits.entries)));
        }
        unpacking.take(entry, &mut archive, limits)?;
        tell(unpacking.facts.size);
    }
    unpacking.finish()
}

struct Unpacking {
    tree: Tree,
    owners: Owners,
    facts: LayerFacts,
    /// Attributes of folders are given at the end: what is made in them would change their times.
    folders: BTreeMap<Vec<CString>, Attributes>,
    implied: BTreeSet<Vec<CString>>,
    buffer: Vec<u8>,
}

impl Unpacking {
    fn take(&mut self, entry: Entry, content: &mut impl Read, limits: Limits) -> Result<(), ImageError> {
        let name = match Name::parse(&entry.name)?.meaning()? {
            Meaning::Ignored => return Ok(()),
            Meaning::Whiteout(name) => {
                let Some((above, _)) = name.split() else { return Ok(()) };
                self.make_way(above)?;
                self.facts.whiteouts.push(Path8::of(&name));
                return Ok(());
            }
            Meaning::Opaque(name) => {
                self.make_way(name.parts())?;
                self.facts.opaque.push(Path8::of(&name));
                return Ok(());
            }
            Meaning::Entry(name) => name,
        };
        let attributes = Attributes {
            uid: u32::try_from(entry.uid).unwrap_or(u32::MAX),
            gid: u32::try_from(entry.gid).unwrap_or(u32::MAX),
            mode: entry.mode,
            modified: entry.modified,
        };
        // Very old archives mark a folder by a slash only.
        let old_folder = entry.name.ends_with(b"/") && matches!(entry.kind, EntryType::Regular);
        match entry.kind {
            EntryType::Directory => self.folder(&name, attributes),
            _ if old_folder => self.folder(&name, attributes),
            _ if name.parts().is_empty() => Err(ImageError::malformed("a layer's root is no folder")),
            EntryType::Regular | EntryType::Continuous => self.file(&name, attributes, entry.size, content, limits),
            EntryType::Symlink => self.symlink(&name, attributes, &entry.link),
            EntryType::Link => self.link(&name, &entry.link),
            EntryType::Fifo => self.fifo(&name, attributes),
            EntryType::Char | EntryType::Block => self.device(&name),
            kind => Err(ImageError::malformed(format!(
                "`{}` is of a kind that is not understood ({:?})",
                name.shown(),
                char::from(kind.as_byte())
            ))),
        }
    }

    /// Folders above an entry. Those that the layer has not described are made as usual.
    fn make_way(&mut self, parts: &[CString]) -> Result<BorrowedFd<'_>, ImageError> {
        let (implied, entries) = (&mut self.implied, &mut self.facts.entries);
        let mut tell = |parts: &[CString]| {
            implied.insert(parts.to_vec());
            *entries += 1;
        };
        let folder = self.tree.folder(parts, Missing::Made(&mut tell))?;
        folder.ok_or_else(|| ImageError::malformed("a folder could not be made"))
    }

    fn folder(&mut self, name: &Name, attributes: Attributes) -> Result<(), ImageError> {
        if let Some((above, last)) = name.split() {
            let folder = self.make_way(above)?;
            let mode = Mode::from_raw_mode(0o700);
            let replaced = match rustix::fs::mkdirat(folder, last, mode) {
                Err(Errno::EXIST) => {
                    let found = rustix::fs::statat(folder, last, AtFlags::SYMLINK_NOFOLLOW);
                    match found.map(|found| FileType::from_raw_mode(found.st_mode)) {
                        Ok(FileType::Directory) => Ok(()),
                        _ => remove_at(folder, last).and_then(|()| rustix::fs::mkdirat(folder, last, mode)),
                    }
                }
                other => other,
            };
            replaced.map_err(|error| failed("making", name.parts(), error))?;
        }
        self.implied.remove(name.parts());
        self.folders.insert(name.parts().to_vec(), attributes.of_folder(self.owners));
        Ok(())
    }

    fn file(
        &mut self,
        name: &Name,
        attributes: Attributes,
        size: u64,
        content: &mut impl Read,
        limits: Limits,
    ) -> Result<(), ImageError> {
        self.facts.size = self.facts.size.saturating_add(size);
        if self.facts.size > limits.bytes {
            let most = limits.bytes >> 20;
            return Err(ImageError::malformed(format!("a layer has files of more than {most} MiB")));
        }
        let owners = self.owners;
        let made = self.make(name, |folder, last| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(folder, last, flags, Mode::from_raw_mode(0o600))
        })?;
        let mut file = File::from(made);
        let mut left = size;
        while left > 0 {
            let most = left.min(self.buffer.len() as u64) as usize;
            content.read_exact(&mut self.buffer[..most]).map_err(broken)?;
            let written = file.write_all(&self.buffer[..most]);
            written.map_err(ImageError::io(format!("writing `{}` of a layer", name.shown())))?;
            left -= most as u64;
        }
        let given = attributes.of_file(owners).apply(file.as_fd(), owners);
        given.map_err(|error| failed("giving an owner to", name.parts(), error))
    }

    fn symlink(&mut self, name: &Name, attributes: Attributes, to: &[u8]) -> Result<(), ImageError> {
        let bad = |why: &str| ImageError::malformed(format!("the link `{}` {why}", name.shown()));
        if to.is_empty() {
            return Err(bad("leads nowhere"));
        }
        if to.len() > crate::limits::PATH {
            return Err(bad("leads to a name that is too long"));
        }
        let to = CString::new(to).map_err(|_| bad("leads to a name with a zero byte in it"))?;
        let owners = self.owners;
        self.make(name, |folder, last| {
            rustix::fs::symlinkat(to.as_c_str(), folder, last)?;
            attributes.of_file(owners).apply_at(folder, last, owners)
        })
    }

    /// To something of this layer only: what lower ones have is not here.
    fn link(&mut self, name: &Name, to: &[u8]) -> Result<(), ImageError> {
        let target = Name::parse(to)?;
        let bad = |why: &str| {
            ImageError::malformed(format!("the hard link `{}` leads to `{}`, {why}", name.shown(), shown(to)))
        };
        if target == *name {
            return Err(bad("which is itself"));
        }
        let Some((above, last)) = target.split() else { return Err(bad("which is the root")) };
        let Some(source) = self.tree.folder(above, Missing::Reported)? else {
            return Err(bad("which is not in the same layer"));
        };
        let source = source.try_clone_to_owned().map_err(ImageError::io("opening a folder of a layer"))?;
        let found = rustix::fs::statat(&source, last, AtFlags::SYMLINK_NOFOLLOW);
        match found.map(|found| FileType::from_raw_mode(found.st_mode)) {
            Ok(FileType::Directory) => return Err(bad("which is a folder")),
            Ok(_) => {}
            Err(_) => return Err(bad("which is not in the same layer")),
        }
        self.make(name, |folder, new| rustix::fs::linkat(&source, last, folder, new, AtFlags::empty()))
    }

    fn fifo(&mut self, name: &Name, attributes: Attributes) -> Result<(), ImageError> {
        let owners = self.owners;
        self.make(name, |folder, last| {
            let attributes = attributes.of_file(owners);
            rustix::fs::mknodat(folder, last, FileType::Fifo, Mode::from_raw_mode(attributes.mode), 0)?;
            attributes.apply_at(folder, last, owners)
        })
    }

    /// Every sandbox has its own `/dev`, so those of the image are not missed; elsewhere one can only be meant badly.
    fn device(&mut self, name: &Name) -> Result<(), ImageError> {
        if name.parts().len() > 1 && name.parts()[0].as_c_str() == c"dev" {
            self.facts.devices += 1;
            return Ok(());
        }
        Err(ImageError::malformed(format!("`{}` is a device, and sandboxes get none from images", name.shown())))
    }

    /// Makes something in place of what has the name so far: of two entries the later counts.
    fn make<T>(
        &mut self,
        name: &Name,
        make: impl Fn(BorrowedFd<'_>, &std::ffi::CStr) -> rustix::io::Result<T>,
    ) -> Result<T, ImageError> {
        let Some((above, last)) = name.split() else { return Err(ImageError::malformed("the root is no folder")) };
        let folder = self.make_way(above)?;
        let made = match make(folder, last) {
            Err(Errno::EXIST) => remove_at(folder, last).and_then(|()| make(folder, last)),
            other => other,
        };
        made.map_err(|error| failed("making", name.parts(), error))
    }

    /// Folders get their attributes, the innermost first. One that was replaced by something else meanwhile has none.
    fn finish(mut self) -> Result<LayerFacts, ImageError> {
        for parts in &self.implied {
            self.folders.insert(parts.clone(), Attributes::PLAIN.of_folder(self.owners));
        }
        let root = Vec::new();
        self.folders.entry(root).or_insert(Attributes::PLAIN);
        for (parts, attributes) in std::mem::take(&mut self.folders).iter().rev() {
            match self.tree.folder(parts, Missing::Reported) {
                Ok(Some(folder)) => {
                    attributes.apply(folder, self.owners).map_err(|error| failed("giving an owner to", parts, error))?
                }
                Ok(None) | Err(ImageError::Malformed(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.facts.implied = self.implied.iter().map(|parts| Path8::of(&Name::of(parts))).collect();
        Ok(self.facts)
    }
}
