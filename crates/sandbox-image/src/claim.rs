//! Folders that are made once though several processes want them: one makes a draft and holds its lock, the others wait and
//! find it done. A draft that nobody holds was left by somebody who was killed.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use rustix::fs::FlockOperation;

/// How the name of a draft ends.
pub const DRAFT: &str = ".draft";

/// Whether something has to be made.
pub enum Claim {
    /// It is there.
    Made,
    /// It is this process's to make.
    Mine(Draft),
}

/// A folder that is being made. Nobody else touches it.
pub struct Draft {
    /// Where.
    pub folder: PathBuf,
    whole: PathBuf,
    _lock: File,
}

/// Waits until `whole` is there, or is this process's to make.
pub fn claim(whole: &Path) -> io::Result<Claim> {
    let folder = draft_of(whole);
    loop {
        if whole.is_dir() {
            return Ok(Claim::Made);
        }
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let Ok(lock) = File::open(&folder) else { continue };
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        // Whoever had the lock may have finished, or thrown it away.
        if !is_named(&lock, &folder) {
            continue;
        }
        return Ok(Claim::Mine(Draft { folder, whole: whole.to_owned(), _lock: lock }));
    }
}

impl Draft {
    /// It is done: it gets its name, unless somebody was faster.
    pub fn finish(self) -> io::Result<()> {
        fs::rename(&self.folder, &self.whole)
    }
}

/// Takes a draft that nobody makes any longer; nothing if somebody does.
pub fn abandoned(folder: &Path) -> Option<File> {
    let lock = File::open(folder).ok()?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    is_named(&lock, folder).then_some(lock)
}

/// Whether this is still what the name stands for.
pub fn is_named(file: &File, name: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(name)) {
        (Ok(held), Ok(named)) => (held.dev(), held.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

fn draft_of(whole: &Path) -> PathBuf {
    let mut name = whole.as_os_str().to_owned();
    name.push(DRAFT);
    name.into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn of_many_who_want_it_one_makes_it() {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join("layer");
        let makers: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| match claim(&whole).unwrap() {
                        Claim::Made => 0,
                        Claim::Mine(draft) => {
                            fs::write(draft.folder.join("content"), "x").unwrap();
                            std::thread::sleep(std::time::Duration::from_millis(20));
                            draft.finish().unwrap();
                            1
                        }
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(makers, 1);
        assert!(whole.join("content").exists() && !draft_of(&whole).exists());
    }

    #[test]
    fn a_draft_is_abandoned_when_its_maker_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join("layer");
        let Claim::Mine(draft) = claim(&whole).unwrap() else { panic!("nobody has made it") };
        let path = draft.folder.clone();
        assert!(abandoned(&path).is_none());
        drop(draft);
        assert!(abandoned(&path).is_some());
    }
}
