//! Reads an archive entry by entry (tar: POSIX 1988, pax, GNU long names), with a bound on everything that it says.
//!
//! The fields of a header are read by the crate `tar`; it would also put long names together, but without a bound on their
//! length, so that is done here.

use std::io::{self, Read, Seek};

use tar::{EntryType, Header};

use super::name::shown;
use crate::{ImageError, limits};

const BLOCK: usize = 512;

/// An archive.
pub struct Archive<R> {
    reader: R,
    /// Content of the last entry that is still to come, and what fills up its last block.
    left: u64,
    padding: u64,
}

/// One entry, after which its content can be read from the archive.
pub struct Entry {
    /// Its name, unchecked.
    pub name: Vec<u8>,
    /// What it links to, unchecked.
    pub link: Vec<u8>,
    /// What it is.
    pub kind: EntryType,
    /// Length of its content.
    pub size: u64,
    /// Permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u64,
    /// Owning group.
    pub gid: u64,
    /// When it was changed last: seconds and nanoseconds.
    pub modified: (i64, u32),
}

/// What an entry says about the next one.
#[derive(Default)]
struct Extension {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    modified: Option<(i64, u32)>,
}

impl<R: Read> Archive<R> {
    /// An archive that is read from here.
    pub fn new(reader: R) -> Self {
        Self { reader, left: 0, padding: 0 }
    }

    /// The next entry; what was not read of the one before is passed over.
    pub fn next(&mut self) -> Result<Option<Entry>, ImageError> {
        let mut extension = Extension::default();
        let mut extensions = 0;
        loop {
            self.pass_over(self.left + self.padding)?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = header.entry_size().map_err(strange)?;
            let kind = header.entry_type();
            if !matches!(
                kind,
                EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader | EntryType::XGlobalHeader
            ) {
                return self.entry(&header, size, extension).map(Some);
            }
            extensions += 1;
            if size > limits::EXTENSION || extensions > 8 {
                return Err(ImageError::malformed("an entry of a layer has a description that is too long"));
            }
            self.expect(size);
            let mut text = vec![0; size as usize];
            self.read_exact(&mut text).map_err(broken)?;
            match kind {
                EntryType::GNULongName => extension.name = Some(until_zero(text)),
                EntryType::GNULongLink => extension.link = Some(until_zero(text)),
                EntryType::XHeader => extension.read(&text)?,
                _ => {}
            }
        }
    }

    fn entry(&mut self, header: &Header, size: u64, extension: Extension) -> Result<Entry, ImageError> {
        let modified = || Some((i64::try_from(header.mtime().ok()?).ok()?, 0));
        let link = || header.link_name_bytes().map(|name| name.into_owned()).unwrap_or_default();
        let entry = Entry {
            name: extension.name.unwrap_or_else(|| header.path_bytes().into_owned()),
            link: extension.link.unwrap_or_else(link),
            kind: header.entry_type(),
            size: extension.size.unwrap_or(size),
            mode: header.mode().map_err(strange)?,
            uid: extension.uid.map_or_else(|| owner(&header.as_old().uid, header.uid()), Ok)?,
            gid: extension.gid.map_or_else(|| owner(&header.as_old().gid, header.gid()), Ok)?,
            modified: extension.modified.or_else(modified).unwrap_or_default(),
        };
        // Only files have content, whatever the header of another kind says.
        let has_content = matches!(entry.kind, EntryType::Regular | EntryType::Continuous) || entry.kind.as_byte() == 0;
        if !has_content && entry.size > 0 && !matches!(entry.kind, EntryType::Link) {
            let name = shown(&entry.name);
            return Err(ImageError::malformed(format!("the entry `{name}` has content, though it is no file")));
        }
        // Some programs write the length of what a hard link leads to, and no content.
        self.expect(if has_content { entry.size } else { 0 });
        Ok(entry)
    }

    /// Content follows.
    fn expect(&mut self, size: u64) {
        self.left = size;
        self.padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
    }

    /// What this reads from.
    pub fn reader(&self) -> &R {
        &self.reader
    }

    fn pass_over(&mut self, mut bytes: u64) -> Result<(), ImageError> {
        let mut buffer = [0; 16 << 10];
        while bytes > 0 {
            let most = bytes.min(buffer.len() as u64) as usize;
            self.reader.read_exact(&mut buffer[..most]).map_err(broken)?;
            bytes -= most as u64;
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    /// The next header; nothing at the end, which is a block of zeros or the end of the stream between entries.
    fn header(&mut self) -> Result<Option<Header>, ImageError> {
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        let mut read = 0;
        while read < BLOCK {
            match self.reader.read(&mut block[read..]).map_err(broken)? {
                0 if read == 0 => return Ok(None),
                0 => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
                more => read += more,
            }
        }
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let checksum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
        let sum = checksum(&block[..148]) + 8 * u32::from(b' ') + checksum(&block[156..]);
        if header.cksum().ok() != Some(sum) {
            return Err(ImageError::malformed(
                "a layer is not an archive, or is damaged (a header's checksum is wrong)",
            ));
        }
        Ok(Some(header))
    }
}

impl<R: Read + Seek> Archive<R> {
    /// Passes over the content of the last entry without reading it. That it is there shows when it is read.
    pub fn skip(&mut self) -> Result<(), ImageError> {
        let by = i64::try_from(self.left.saturating_add(self.padding)).unwrap_or(i64::MAX);
        self.reader.seek_relative(by).map_err(broken)?;
        (self.left, self.padding) = (0, 0);
        Ok(())
    }
}

impl<R: Read> Read for Archive<R> {
    /// Content of the last entry.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = (buffer.len() as u64).min(self.left) as usize;
        if most == 0 {
            return Ok(0);
        }
        let read = self.reader.read(&mut buffer[..most])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read as u64;
        Ok(read)
    }
}

impl Extension {
    /// Records of the form `LENGTH KEY=VALUE\n`; see pax(1).
    fn read(&mut self, mut text: &[u8]) -> Result<(), ImageError> {
        let bad = || ImageError::malformed("an entry of a layer is described in a way that cannot be read (pax)");
        while !text.is_empty() {
            let space = text.iter().take(20).position(|byte| *byte == b' ').ok_or_else(bad)?;
            let length: usize = number(&text[..space]).and_then(|length| length.try_into().ok()).ok_or_else(bad)?;
            let record = text.get(space + 1..length).ok_or_else(bad)?;
            let record = record.strip_suffix(b"\n").ok_or_else(bad)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(bad)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(number(value).ok_or_else(bad)?),
                b"uid" => self.uid = Some(number(value).ok_or_else(bad)?),
                b"gid" => self.gid = Some(number(value).ok_or_else(bad)?),
                b"mtime" => self.modified = time(value),
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(ImageError::malformed("a layer has a sparse file in a form that is not understood"));
                }
                _ => {}
            }
            text = &text[length..];
        }
        Ok(())
    }
}

/// Some programs leave the owner out where it is root.
fn owner(field: &[u8], number: io::Result<u64>) -> Result<u64, ImageError> {
    if field.iter().all(|byte| matches!(byte, 0 | b' ')) { Ok(0) } else { number.map_err(strange) }
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}

/// Seconds with a fraction, also before 1970.
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds = if whole.starts_with('-') { 0 } else { digits.parse().ok()? };
    Some((whole.parse().ok()?, nanoseconds))
}

fn until_zero(mut text: Vec<u8>) -> Vec<u8> {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text.truncate(end);
    text
}

fn strange(error: io::Error) -> ImageError {
    ImageError::malformed(format!("a header of a layer cannot be read: {error}"))
}

/// Of what is read through this module's reader: what the image itself is to blame for is marked so.
pub fn broken(error: io::Error) -> ImageError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => ImageError::malformed("a layer ends in the middle of an entry"),
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
            ImageError::malformed(format!("a layer cannot be unpacked: {error}"))
        }
        _ => ImageError::Io { doing: "reading a layer".into(), source: error },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn names(bytes: &[u8]) -> Result<Vec<String>, String> {
        let mut archive = Archive::new(bytes);
        let mut names = Vec::new();
        while let Some(entry) = archive.next().map_err(|error| error.to_string())? {
            names.push(String::from_utf8_lossy(&entry.name).into_owned());
        }
        Ok(names)
    }

    fn tar_of(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, content) in entries {
            let mut header = Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            builder.append_data(&mut header, name, *content).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn long_names_are_read() {
        let long = "folder/".repeat(60) + "file";
        let bytes = tar_of(&[("short", b"1"), (&long, b"22"), ("last", b"")]);
        assert_eq!(names(&bytes).unwrap(), ["short", &long, "last"]);
        // Without the blocks of zeros at the end it is an archive too.
        assert_eq!(names(&bytes[..bytes.len() - 1024]).unwrap().len(), 3);
        assert!(names(&bytes[..700]).unwrap_err().contains("ends in the middle"));
    }

    #[test]
    fn a_description_without_end_is_refused() {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::GNULongName);
        header.set_size(1 << 40);
        header.set_cksum();
        let error = Archive::new(&header.as_bytes()[..]).next().err().unwrap().to_string();
        assert!(error.contains("too long"), "{error}");
    }

    #[test]
    fn pax_records_win() {
        let mut extension = Extension::default();
        extension.read(b"13 path=a\xffb\n0\n").unwrap_err();
        let mut extension = Extension::default();
        extension.read(b"12 path=a/b\n18 uid=4294967296\n20 mtime=12.5000000\n").unwrap();
        assert_eq!(extension.name.unwrap(), b"a/b");
        assert_eq!((extension.uid, extension.modified), (Some(1 << 32), Some((12, 500_000_000))));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..2048), text: Vec<u8>) {
            let _ = names(&bytes);
            let _ = Extension::default().read(&text);
            // The same behind a header whose checksum is right.
            bytes.resize(bytes.len().max(512), 0);
            let mut header = Header::new_old();
            header.as_mut_bytes().copy_from_slice(&bytes[..512]);
            header.set_cksum();
            bytes[..512].copy_from_slice(header.as_bytes());
            let _ = names(&bytes);
        }
    }
}
