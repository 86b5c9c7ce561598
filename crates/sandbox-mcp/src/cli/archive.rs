//! Results in one archive, `.zip` or `.tar.gz`. Names and contents are hostile: every name is relative and leads down, only
//! regular files go in, with permissions of our own and no owner, so that whoever unpacks it anywhere gets files and nothing else.

use std::{
    fs::File,
    io::{self, Seek, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use flate2::{Compression, write::GzEncoder};
use sandbox_executor::protocol::FileKind;
use zip::{ZipWriter, write::SimpleFileOptions};

use super::out::{OutError, names};
use crate::sandboxes::{ChangedFile, Piece, Session, patience};

/// Which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Zip,
    TarGz,
}

/// An archive that will be there when it is whole.
pub(super) struct Archive {
    form: Form,
    target: PathBuf,
    part: tempfile::NamedTempFile,
}

impl Archive {
    /// Checks the name and the place before anything is made.
    pub fn begin(target: &Path, replace: bool) -> anyhow::Result<Self> {
        let name = target.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_lowercase();
        let form = match () {
            () if name.ends_with(".zip") => Form::Zip,
            () if name.ends_with(".tar.gz") || name.ends_with(".tgz") => Form::TarGz,
            () => bail!("{}: an archive is called something.zip or something.tar.gz", target.display()),
        };
        if target.exists() && !replace {
            bail!("{} is there already; --force replaces it", target.display());
        }
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let part = tempfile::Builder::new().prefix(".sandbox-mcp-").tempfile_in(folder);
        let part = part.with_context(|| format!("an archive cannot be written to {}", folder.display()))?;
        Ok(Self { form, target: target.to_owned(), part })
    }

    /// Where it will be.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Puts files in; for each, how that went.
    pub async fn take<'f>(
        self,
        session: &Session,
        files: impl IntoIterator<Item = &'f ChangedFile>,
    ) -> anyhow::Result<Vec<(&'f ChangedFile, Result<(), OutError>)>> {
        let mut room = session.facts().spec.policy.limits.disk.0;
        let mut pack = Pack::new(self.form, self.part.as_file().try_clone()?);
        let mut taken = Vec::new();
        for file in files {
            let copied = match file.kind {
                FileKind::File => pack_one(&mut pack, session, file, &mut room).await,
                _ => Err(OutError::Kind),
            };
            taken.push((file, copied));
        }
        pack.finish()?;
        let target = self.target.display().to_string();
        self.part.persist(&self.target).with_context(|| format!("{target} cannot be written"))?;
        Ok(taken)
    }
}

async fn pack_one(pack: &mut Pack, session: &Session, file: &ChangedFile, room: &mut u64) -> Result<(), OutError> {
    let name = safe_name(&file.path.0)?;
    let inside = [b"/workspace/".as_slice(), &file.path.0].concat();
    let from_sandbox = |error: crate::sandboxes::ClientError| OutError::Sandbox(error.to_string());
    let client = session.client().await.map_err(|error| OutError::Sandbox(error.to_string()))?;
    let mut reader = patience::soon(client.read(&inside.as_slice().into(), 0, None)).await.map_err(from_sandbox)?;
    // It may grow while it is read; an entry says its length first.
    let mut content = tempfile::tempfile()?;
    while let Some(piece) = patience::soon(reader.next()).await.map_err(from_sandbox)? {
        match &piece {
            Piece::Data(data) => {
                *room = room.checked_sub(data.len() as u64).ok_or(OutError::TooMuch)?;
                content.write_all(data)?;
            }
            Piece::Hole(length) => {
                let end = content.stream_position()?.checked_add(*length).ok_or(OutError::TooMuch)?;
                if *length > *room {
                    return Err(OutError::TooMuch);
                }
                content.set_len(end)?;
                content.seek(io::SeekFrom::Start(end))?;
            }
        }
        reader.recycle(piece);
    }
    content.rewind()?;
    let info = reader.info();
    let written = Duration::from_nanos(u64::try_from(info.modified).unwrap_or_default());
    pack.add(&name, info.mode & 0o111 != 0, UNIX_EPOCH + written, content)
}

/// As a clock on the wall shows it here, which is all that a zip can say; the oldest that it can for what is out of its range.
fn by_the_clock(time: SystemTime) -> zip::DateTime {
    let local: chrono::DateTime<chrono::Local> = time.into();
    zip::DateTime::try_from(local.naive_local()).unwrap_or_default()
}

/// A name that every program that unpacks takes for a file beneath where it stands.
fn safe_name(path: &[u8]) -> Result<String, OutError> {
    names(path)?;
    let text = String::from_utf8_lossy(path).into_owned();
    // Others than Linux take these for something else: folders, drives, streams, ends of names.
    let safe = text.chars().map(|letter| match letter {
        '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|' => '_',
        letter if letter.is_control() => '_',
        letter => letter,
    });
    Ok(safe.collect())
}

enum Pack {
    Zip(Box<ZipWriter<File>>),
    TarGz(Box<tar::Builder<GzEncoder<File>>>),
}

impl Pack {
    fn new(form: Form, file: File) -> Self {
        match form {
            Form::Zip => Self::Zip(Box::new(ZipWriter::new(file))),
            Form::TarGz => Self::TarGz(Box::new(tar::Builder::new(GzEncoder::new(file, Compression::default())))),
        }
    }

    /// Times are those that files were written at, as programs inside say.
    fn add(&mut self, name: &str, runs: bool, written: SystemTime, mut content: File) -> Result<(), OutError> {
        let mode = if runs { 0o755 } else { 0o644 };
        match self {
            Self::Zip(zip) => {
                let large = content.metadata()?.len() >= u32::MAX.into();
                let options = SimpleFileOptions::default().unix_permissions(mode).large_file(large);
                let options = options.last_modified_time(by_the_clock(written));
                zip.start_file(name, options).map_err(io::Error::other)?;
                io::copy(&mut content, zip)?;
            }
            Self::TarGz(tar) => {
                let mut header = tar::Header::new_gnu();
                header.set_entry_type(tar::EntryType::Regular);
                header.set_size(content.metadata()?.len());
                header.set_mode(mode);
                header.set_mtime(written.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs());
                tar.append_data(&mut header, name, &mut content)?;
            }
        }
        Ok(())
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Zip(zip) => zip.finish().map_err(io::Error::other)?.sync_all(),
            Self::TarGz(tar) => tar.into_inner()?.finish()?.sync_all(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_lead_down_on_every_system() {
        for wrong in ["../x", "/etc/passwd", "a/../../b", "a//b", ""] {
            assert!(safe_name(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert_eq!(safe_name(b"a/..\\..\\b").unwrap(), "a/.._.._b");
        assert_eq!(safe_name(b"C:evil\n.txt").unwrap(), "C_evil_.txt");
        assert_eq!(safe_name(b"deep/er/report.md").unwrap(), "deep/er/report.md");
    }

    #[test]
    fn both_forms_are_what_they_say() {
        let folder = tempfile::tempdir().unwrap();
        for (name, first) in [("x.zip", b"PK".as_slice()), ("x.tar.gz", &[0x1f, 0x8b]), ("y.TGZ", &[0x1f, 0x8b])] {
            let archive = Archive::begin(&folder.path().join(name), false).unwrap();
            let mut pack = Pack::new(archive.form, archive.part.as_file().try_clone().unwrap());
            let mut content = tempfile::tempfile().unwrap();
            content.write_all(b"hello").unwrap();
            content.rewind().unwrap();
            pack.add("a/b.txt", true, UNIX_EPOCH, content).unwrap();
            pack.finish().unwrap();
            archive.part.persist(&archive.target).unwrap();
            assert!(std::fs::read(folder.path().join(name)).unwrap().starts_with(first), "{name}");
        }
        assert!(Archive::begin(&folder.path().join("x.zip"), false).is_err(), "it is there already");
        assert!(Archive::begin(&folder.path().join("x.rar"), false).is_err());
        let nothing_half: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(nothing_half.len(), 3, "{nothing_half:?}");
    }
}
