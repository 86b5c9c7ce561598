//! Where an image comes from besides a registry: archives (`docker save`, OCI) and folders with an OCI layout. All are
//! content by names of files; nothing of them is copied before it is unpacked.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::OFlags;
use sandbox_core::Reference;

use crate::{
    ImageError,
    error::Doing,
    limits::{self, Limits},
    unpack::{
        archive::Archive,
        name::Name,
        stream::{Piece, Stream},
    },
};

/// Where an image comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A registry.
    Registry(Reference),
    /// A file, as `docker save` makes it, or with an OCI layout in it.
    Archive(PathBuf),
    /// A folder with an OCI layout.
    Layout(PathBuf),
}

impl Source {
    /// What somebody typed. What looks like a path is one, and must be there.
    pub fn parse(text: &str) -> Result<Self, ImageError> {
        let path = Path::new(text);
        let looks_like_one = text.starts_with(['/', '.', '~']) || text.ends_with(".tar") || text.ends_with(".tgz");
        match path.metadata() {
            Ok(found) if found.is_dir() && (looks_like_one || path.join("oci-layout").exists()) => {
                Ok(Self::Layout(path.to_owned()))
            }
            Ok(found) if found.is_file() && (looks_like_one || text.contains(".tar")) => {
                Ok(Self::Archive(path.to_owned()))
            }
            Err(error) if looks_like_one => Err(ImageError::NoSource(format!("{text} cannot be read: {error}"))),
            _ => text.parse().map(Self::Registry).map_err(|error| ImageError::NoSource(format!("{error}"))),
        }
    }
}

/// Files by name, in an archive or in a folder.
pub enum Files {
    /// Where each begins in the archive, and how long it is.
    Archive {
        /// The archive, not compressed.
        file: Arc<File>,
        /// Its files.
        places: BTreeMap<Vec<u8>, (u64, u64)>,
        /// Its links, which old archives have in place of the same layer once more.
        links: BTreeMap<Vec<u8>, Vec<u8>>,
    },
    /// In this folder.
    Folder(PathBuf),
}

/// Some content of a file.
#[derive(Clone)]
pub struct Found {
    /// Which.
    pub file: Arc<File>,
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub length: u64,
}

impl Files {
    /// Looks through an archive. A compressed one is unpacked to a file without a name in `scratch` first.
    pub fn of_archive(path: &Path, scratch: &Path) -> Result<Self, ImageError> {
        let file = open(path)?;
        let mut head = [0; 4];
        let _ = file.read_at(&mut head, 0);
        let compressed = head.starts_with(&[0x1f, 0x8b]) || head == [0x28, 0xb5, 0x2f, 0xfd];
        let file = Arc::new(if compressed { inflate(file, scratch)? } else { file });
        let mut reader = Archive::new(Position::new(file.clone()));
        let (mut places, mut links) = (BTreeMap::new(), BTreeMap::new());
        let no_archive = || ImageError::NoSource(format!("{} is no archive of an image", path.display()));
        let mut next = reader.next().map_err(|_| no_archive())?;
        while let Some(entry) = next {
            if places.len() + links.len() >= limits::ARCHIVE_ENTRIES {
                return Err(ImageError::malformed("the archive has too many files in it"));
            }
            let name = Name::parse(&entry.name)?.to_bytes();
            match entry.kind {
                kind if kind.is_file() => {
                    places.insert(name, (reader.position(), entry.size));
                }
                kind if kind.is_symlink() || kind.is_hard_link() => {
                    let from = if kind.is_symlink() { beside(&name, &entry.link) } else { entry.link };
                    links.insert(name, Name::parse(&from)?.to_bytes());
                }
                _ => {}
            }
            reader.skip()?;
            next = reader.next()?;
        }
        Ok(Self::Archive { file, places, links })
    }

    /// Content by its name.
    pub fn find(&self, name: &str) -> Result<Found, ImageError> {
        let missing =
            || ImageError::malformed(format!("`{}` is missing in it", crate::unpack::name::shown(name.as_bytes())));
        let checked = Name::parse(name.as_bytes())?.to_bytes();
        match self {
            Self::Archive { file, places, links } => {
                let real = links.get(&checked).unwrap_or(&checked);
                let (offset, length) = *places.get(real).ok_or_else(missing)?;
                Ok(Found { file: file.clone(), offset, length })
            }
            Self::Folder(folder) => {
                let file = open(&folder.join(name)).map_err(|_| missing())?;
                let length = file.metadata().doing(|| format!("reading {name}"))?.len();
                Ok(Found { file: Arc::new(file), offset: 0, length })
            }
        }
    }

    /// A short file as a whole.
    pub fn read(&self, name: &str, most: u64) -> Result<Vec<u8>, ImageError> {
        let found = self.find(name)?;
        if found.length > most {
            return Err(ImageError::malformed(format!("`{name}` in it is longer than {most} bytes")));
        }
        let mut content = vec![0; found.length as usize];
        found.file.read_exact_at(&mut content, found.offset).doing(|| format!("reading {name}"))?;
        Ok(content)
    }
}

/// A plain file; nobody is waited for at a pipe.
fn open(path: &Path) -> Result<File, ImageError> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file =
        File::options().read(true).custom_flags(flags).open(path).doing(|| format!("opening {}", path.display()))?;
    if file.metadata().is_ok_and(|found| found.is_file()) {
        return Ok(file);
    }
    Err(ImageError::NoSource(format!("{} is no file", path.display())))
}

fn inflate(file: File, scratch: &Path) -> Result<File, ImageError> {
    let doing = || format!("unpacking the archive to {}", scratch.display());
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let target = rustix::fs::open(scratch, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).doing(doing)?;
    let mut target = File::from(target);
    let length = file.metadata().doing(doing)?.len();
    let most = Limits::default().unpacked(length);
    let mut stream = Stream::open(Piece { file, offset: 0, end: length }, most, false).doing(doing)?;
    io::copy(&mut stream, &mut target).map_err(crate::unpack::archive::broken)?;
    target.flush().doing(doing)?;
    Ok(target)
}

/// What a link beside a name leads to, in the simple way that `docker save` has them (`../ID/layer.tar`).
fn beside(name: &[u8], link: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = name.split(|byte| *byte == b'/').collect();
    parts.pop();
    for part in link.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join(&b'/')
}

/// Reads a file in order, and can pass over what nobody wants.
pub struct Position {
    file: Arc<File>,
    at: u64,
}

impl Position {
    fn new(file: Arc<File>) -> Self {
        Self { file, at: 0 }
    }
}

impl Read for Position {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read_at(buffer, self.at)?;
        self.at += length as u64;
        Ok(length)
    }
}

impl Seek for Position {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = match to {
            SeekFrom::Start(at) => at,
            SeekFrom::Current(by) => self.at.saturating_add_signed(by),
            SeekFrom::End(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(self.at)
    }
}

impl Archive<Position> {
    /// Where the next content is.
    fn position(&self) -> u64 {
        self.reader().at
    }
}
