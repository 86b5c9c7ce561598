//! Results, copied out of a sandbox into a folder of the user's. Names and contents are hostile.
//!
//! Everything is made beneath the folder, step by step and without following a link; only regular files; nothing is
//! replaced unless the user said so; a file appears under its name only when it is whole.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, RenameFlags},
    io::Errno,
};
use sandbox_executor::protocol::FileKind;

use crate::sandboxes::{ChangedFile, Session, patience};

/// What happens to a file that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    Keep,
    Replace,
}

/// Why a file was not copied.
#[derive(Debug, thiserror::Error)]
pub(super) enum OutError {
    #[error("its name would lead out of the folder")]
    Name,
    #[error("it is not a regular file")]
    Kind,
    #[error("{0} is there already; --force replaces it")]
    Exists(PathBuf),
    #[error("a link or file is in the way where a folder must be")]
    InTheWay,
    #[error("the results are larger than the sandbox's disk limit")]
    TooMuch,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Sandbox(String),
}

impl From<Errno> for OutError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

impl OutError {
    /// Whether a result is still inside for it. What is no file has nothing in it that could be lost.
    pub fn is_loss(&self) -> bool {
        !matches!(self, Self::Kind)
    }
}

/// A folder of the user's that results go into.
pub(super) struct OutFolder {
    root: OwnedFd,
    path: PathBuf,
    existing: Existing,
}

impl OutFolder {
    /// Makes it where it is missing. Links in the path that the user typed are the user's own.
    pub fn open(path: &Path, existing: Existing) -> io::Result<Self> {
        std::fs::create_dir_all(path)?;
        let root = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { root, path: path.to_owned(), existing })
    }

    /// Copies files out; for each, how that went.
    pub async fn take<'f>(
        &self,
        session: &Session,
        files: impl IntoIterator<Item = &'f ChangedFile>,
    ) -> Vec<(&'f ChangedFile, Result<(), OutError>)> {
        let mut room = session.facts().spec.policy.limits.disk.0;
        let mut taken = Vec::new();
        for file in files {
            let copied = match file.kind {
                FileKind::File => self.take_one(session, file, &mut room).await,
                _ => Err(OutError::Kind),
            };
            taken.push((file, copied));
        }
        taken
    }

    async fn take_one(&self, session: &Session, file: &ChangedFile, room: &mut u64) -> Result<(), OutError> {
        let from_sandbox = |error: crate::sandboxes::ClientError| OutError::Sandbox(error.to_string());
        let client = session.client().await.map_err(|error| OutError::Sandbox(error.to_string()))?;
        let mut inside = b"/workspace/".to_vec();
        inside.extend_from_slice(&file.path.0);
        let mut reader = patience::soon(client.read(&inside.as_slice().into(), 0, None)).await.map_err(from_sandbox)?;
        let new = self.begin(&file.path.0, reader.info().mode)?;
        while let Some(load) = patience::soon(reader.next_load()).await.map_err(from_sandbox)? {
            *room = room.checked_sub(load.data()).ok_or(OutError::TooMuch)?;
            reader.reuse(load.write_to(&new.file).await?);
        }
        new.finish()
    }

    /// A new file beneath the folder, not yet under its name.
    fn begin(&self, path: &[u8], mode: u32) -> Result<NewOut, OutError> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let names = names(path)?;
        let Some((last, above)) = names.split_last() else { return Err(OutError::Name) };
        let mut folder = self.root.try_clone()?;
        for name in above {
            folder = enter(&folder, name)?;
        }
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let part = format!(".sandbox-mcp-{}-{number}.part", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Set-uid and the like stay inside; the user's own mask takes off what it takes off everywhere.
        let mode = Mode::from_raw_mode((mode & 0o777) | 0o600);
        let file = Arc::new(File::from(rustix::fs::openat(&folder, &part, flags, mode)?));
        let shown = self.path.join(OsStr::from_bytes(path));
        let name = OsStr::from_bytes(last).to_owned();
        Ok(NewOut { file, folder, part: Some(part), name, shown, existing: self.existing })
    }
}

/// A file on its way out; without [`NewOut::finish`] nothing stays.
struct NewOut {
    file: Arc<File>,
    folder: OwnedFd,
    part: Option<String>,
    name: std::ffi::OsString,
    shown: PathBuf,
    existing: Existing,
}

impl NewOut {
    fn finish(mut self) -> Result<(), OutError> {
        let Some(part) = &self.part else { return Ok(()) };
        let folder = self.folder.as_fd();
        match self.existing {
            Existing::Replace => rustix::fs::renameat(folder, part, folder, &self.name)?,
            Existing::Keep => match appear(folder, part, &self.name) {
                Err(Errno::EXIST) => return Err(OutError::Exists(self.shown.clone())),
                appeared => appeared?,
            },
        }
        self.part = None;
        Ok(())
    }
}

impl Drop for NewOut {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            let _ = rustix::fs::unlinkat(&self.folder, part, AtFlags::empty());
        }
    }
}

/// Under its name, if nothing has that name yet. Not every file system can rename so; all that matter can link.
fn appear(folder: std::os::fd::BorrowedFd<'_>, part: &str, name: &OsStr) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(folder, part, folder, name, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(folder, part, folder, name, AtFlags::empty())?;
            rustix::fs::unlinkat(folder, part, AtFlags::empty())
        }
        renamed => renamed,
    }
}

/// One folder deeper, made if missing, never through a link.
fn enter(folder: &OwnedFd, name: &[u8]) -> Result<OwnedFd, OutError> {
    match rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(folder, name, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NOTDIR) => Err(OutError::InTheWay),
        opened => Ok(opened?),
    }
}

/// The names in a path, if each is one that only leads down.
pub(super) fn names(path: &[u8]) -> Result<Vec<&[u8]>, OutError> {
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let leads_down = |name: &&[u8]| !matches!(*name, b"" | b"." | b"..") && !name.contains(&0);
    if names.iter().all(leads_down) { Ok(names) } else { Err(OutError::Name) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{
        io::Write,
        os::unix::fs::{MetadataExt, symlink},
    };

    fn put(folder: &OutFolder, path: &str, mode: u32, content: &[u8]) -> Result<(), OutError> {
        let new = folder.begin(path.as_bytes(), mode)?;
        (&*new.file).write_all(content)?;
        new.finish()
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = OutFolder::open(&root.path().join("out"), Existing::Keep).unwrap();
        for name in ["../escaped", "a/../../escaped", "/etc/escaped", "", ".", "..", "a//b", "a/", "a\0b"] {
            assert!(matches!(put(&folder, name, 0o644, b"x"), Err(OutError::Name)), "{name:?}");
        }
        assert!(!root.path().join("escaped").exists());
    }

    #[test]
    fn a_planted_link_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let (out, outside) = (root.path().join("out"), root.path().join("outside"));
        std::fs::create_dir_all(&out).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        symlink(&outside, out.join("folder")).unwrap();
        symlink(outside.join("target"), out.join("file")).unwrap();
        for existing in [Existing::Keep, Existing::Replace] {
            let folder = OutFolder::open(&out, existing).unwrap();
            assert!(matches!(put(&folder, "folder/file", 0o644, b"x"), Err(OutError::InTheWay)));
        }
        let keep = OutFolder::open(&out, Existing::Keep).unwrap();
        assert!(matches!(put(&keep, "file", 0o644, b"x"), Err(OutError::Exists(_))));
        let replace = OutFolder::open(&out, Existing::Replace).unwrap();
        put(&replace, "file", 0o644, b"x").unwrap();
        assert!(out.join("file").symlink_metadata().unwrap().is_file());
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn nothing_is_replaced_unless_asked_and_nothing_half_stays() {
        let out = tempfile::tempdir().unwrap();
        std::fs::write(out.path().join("a"), "mine").unwrap();
        let keep = OutFolder::open(out.path(), Existing::Keep).unwrap();
        assert!(matches!(put(&keep, "a", 0o644, b"theirs"), Err(OutError::Exists(_))));
        drop(keep.begin(b"half", 0o644).unwrap());
        assert_eq!(std::fs::read_to_string(out.path().join("a")).unwrap(), "mine");
        assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 1);
    }

    #[test]
    fn folders_are_made_and_special_bits_stay_behind() {
        let out = tempfile::tempdir().unwrap();
        let folder = OutFolder::open(out.path(), Existing::Keep).unwrap();
        put(&folder, "deep/er/tool", 0o6755, b"#!").unwrap();
        let mode = out.path().join("deep/er/tool").metadata().unwrap().mode();
        assert_eq!(mode & 0o7000, 0);
        assert_eq!(mode & 0o700, 0o700);
    }
}
