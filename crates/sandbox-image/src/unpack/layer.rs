//! One layer, unpacked into a folder of its own. What it removes from lower layers is written down beside it, and done
//! when layers are put together.

use std::{
    collections::BTreeMap,
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
use crate::{
    ImageError,
    limits::{BLOCK, Limits, PATHS},
};

/// A folder is made twice: in its layer, and where layers are put together.
const OF_FOLDER: u64 = 2 * BLOCK;

/// What is known about an unpacked layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerFacts {
    /// Bytes of its files.
    pub size: u64,
    /// Bytes that it takes up: whole blocks, and one at least for whatever has a name.
    #[serde(default)]
    pub taken: u64,
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

impl LayerFacts {
    /// What it takes up of the room for images.
    pub fn room(&self) -> u64 {
        self.taken.max(self.size)
    }
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
    pub fn of(path: Vec<u8>) -> Self {
        String::from_utf8(path).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
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
        remembered: 0,
        buffer: vec![0; 256 << 10],
    };
    let mut archive = Archive::new(reader);
    while let Some(entry) = archive.next()? {
        unpacking.facts.entries += 1;
        if unpacking.facts.entries > limits.entries {
            return Err(ImageError::malformed(format!("a layer has more than {} entries", limits.entries)));
        }
        unpacking.take(entry, &mut archive, limits)?;
        unpacking.check(limits)?;
        tell(unpacking.facts.taken);
    }
    unpacking.finish()
}

struct Unpacking {
    tree: Tree,
    owners: Owners,
    facts: LayerFacts,
    /// Attributes of folders are given at the end: what is made in them would change their times.
    /// Those that the layer does not describe have none. Paths are kept in one piece: a layer can have many, of many parts.
    folders: BTreeMap<Vec<u8>, Option<Attributes>>,
    /// Bytes of all paths that are kept.
    remembered: usize,
    buffer: Vec<u8>,
}

impl Unpacking {
    fn take(&mut self, entry: Entry, content: &mut impl Read, limits: Limits) -> Result<(), ImageError> {
        let name = match Name::parse(&entry.name)?.meaning()? {
            Meaning::Ignored => return Ok(()),
            Meaning::Whiteout(name) => {
                let Some((above, _)) = name.split() else { return Ok(()) };
                self.make_way(above)?;
                let path = self.remember(&name);
                self.facts.whiteouts.push(Path8::of(path));
                return Ok(());
            }
            Meaning::Opaque(name) => {
                self.make_way(name.parts())?;
                let path = self.remember(&name);
                self.facts.opaque.push(Path8::of(path));
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
        let (folders, facts, remembered) = (&mut self.folders, &mut self.facts, &mut self.remembered);
        let mut tell = |parts: &[CString]| {
            let path = Name::of(parts).to_bytes();
            *remembered += path.len();
            folders.insert(path, None);
            facts.entries += 1;
            facts.taken = facts.taken.saturating_add(OF_FOLDER);
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
        let path = self.remember(name);
        self.folders.insert(path, Some(attributes.of_folder(self.owners)));
        self.facts.taken = self.facts.taken.saturating_add(OF_FOLDER);
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
        let blocks = size.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
        self.facts.taken = self.facts.taken.saturating_add(blocks.saturating_sub(BLOCK));
        self.check(limits)?;
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
        self.facts.taken = self.facts.taken.saturating_add(BLOCK);
        let folder = self.make_way(above)?;
        let made = match make(folder, last) {
            Err(Errno::EXIST) => remove_at(folder, last).and_then(|()| make(folder, last)),
            other => other,
        };
        made.map_err(|error| failed("making", name.parts(), error))
    }

    /// Folders get their attributes, the innermost first. One that was replaced by something else meanwhile has none.
    fn finish(mut self) -> Result<LayerFacts, ImageError> {
        let folders = std::mem::take(&mut self.folders);
        let root = Name::default();
        for (path, attributes) in folders.iter().rev().filter(|(path, _)| **path != root.to_bytes()) {
            self.give(&Name::parse(path)?, attributes.unwrap_or(Attributes::PLAIN.of_folder(self.owners)))?;
        }
        self.give(&root, folders.get(&root.to_bytes()).copied().flatten().unwrap_or(Attributes::PLAIN))?;
        let implied = folders.into_iter().filter(|(_, attributes)| attributes.is_none());
        self.facts.implied = implied.map(|(path, _)| Path8::of(path)).collect();
        Ok(self.facts)
    }

    fn give(&mut self, name: &Name, attributes: Attributes) -> Result<(), ImageError> {
        match self.tree.folder(name.parts(), Missing::Reported) {
            Ok(Some(folder)) => {
                let given = attributes.apply(folder, self.owners);
                given.map_err(|error| failed("giving an owner to", name.parts(), error))
            }
            Ok(None) | Err(ImageError::Malformed(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A path that is kept until the end.
    fn remember(&mut self, name: &Name) -> Vec<u8> {
        let path = name.to_bytes();
        self.remembered += path.len();
        path
    }

    /// Neither the disk nor memory is used up.
    fn check(&self, limits: Limits) -> Result<(), ImageError> {
        if self.facts.taken > limits.bytes {
            let most = limits.bytes >> 20;
            let what =
                format!("a layer takes up more than the {most} MiB that the setting `image_budget` leaves for it");
            return Err(ImageError::malformed(what));
        }
        if self.remembered > PATHS {
            let most = PATHS >> 20;
            return Err(ImageError::malformed(format!("the paths of a layer's folders are longer than {most} MiB")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::unpack::merge;
    use proptest::prelude::*;
    use std::fs;
    use tar::Header;

    /// Few names, so that entries meet; many of them bad.
    fn name() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            4 => "[abc]",
            1 => Just("..".to_owned()),
            1 => Just(".".to_owned()),
            1 => Just(".wh.a".to_owned()),
            1 => Just(".wh..wh..opq".to_owned()),
            1 => Just(String::new()),
        ];
        proptest::collection::vec(part, 1..5).prop_map(|parts| parts.join("/"))
    }

    fn entry() -> impl Strategy<Value = (u8, String, String)> {
        let kind = prop_oneof![Just(b'0'), Just(b'1'), Just(b'2'), Just(b'5'), Just(b'6'), Just(b'3')];
        let link = prop_oneof![
            name(),
            Just("OUTSIDE".to_owned()),
            Just("../outside".to_owned()),
            Just("../../outside".to_owned())
        ];
        (kind, name(), link)
    }

    fn archive(entries: &[(u8, String, String)], outside: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, name, link) in entries {
            let mut header = Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            let link = link.replace("OUTSIDE", outside);
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
            header.set_entry_type(EntryType::new(*kind));
            header.set_mode(0o755);
            header.set_size(0);
            header.set_cksum();
            bytes.extend(header.as_bytes());
        }
        bytes.extend([0; 1024]);
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn whatever_layers_say_nothing_happens_outside(
            one in proptest::collection::vec(entry(), 0..12),
            two in proptest::collection::vec(entry(), 0..12),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let outside = folder.path().join("outside");
            fs::create_dir_all(outside.join("a/b")).unwrap();
            fs::write(outside.join("b"), "precious").unwrap();
            let root = folder.path().join("root");
            fs::create_dir(&root).unwrap();
            for (number, entries) in [one, two].iter().enumerate() {
                let layer = folder.path().join(format!("layer-{number}"));
                fs::create_dir(&layer).unwrap();
                let bytes = archive(entries, outside.to_str().unwrap());
                if let Ok(facts) = unpack(&bytes[..], &layer, Owners::Single, Limits::default(), &mut |_| ()) {
                    merge::add(&root, &layer, &facts, Owners::Single).unwrap();
                }
            }
            prop_assert_eq!(fs::read_to_string(outside.join("b")).unwrap(), "precious");
            prop_assert_eq!(fs::read_dir(&outside).unwrap().count(), 2);
            prop_assert_eq!(fs::read_dir(outside.join("a")).unwrap().count(), 1);
            prop_assert_eq!(fs::read_dir(outside.join("a/b")).unwrap().count(), 0);
            prop_assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
        }
    }
}
