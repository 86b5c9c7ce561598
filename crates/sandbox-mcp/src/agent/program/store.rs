//! Programs that this user has fetched: `STATE/agents/NAME/VERSION`, and a file `current` that says which version is used.
//! What is being made has a name that begins with a dot, and is renamed when it is whole.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use sandbox_core::Tool;

use super::Kind;

/// Names the version that is used.
const CURRENT: &str = "current";

/// A program that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Which version.
    pub version: String,
    /// Its folder.
    pub folder: PathBuf,
}

/// All programs of a user.
#[derive(Clone, Debug)]
pub struct Store(PathBuf);

impl Store {
    /// In this state folder.
    pub fn of(state: &Path) -> Self {
        Self(state.join("agents"))
    }

    /// What is there of this program.
    pub fn find(&self, kind: &Kind) -> Option<Installed> {
        let version = fs::read_to_string(self.0.join(kind.name).join(CURRENT)).ok()?;
        let version = version.trim().to_owned();
        let folder = self.0.join(kind.name).join(&version);
        (is_version(&version) && folder.join(kind.program).is_file()).then_some(Installed { version, folder })
    }

    /// An empty folder to make something in. Whoever was interrupted before has left one that is removed now.
    pub fn draft(&self, kind: &Kind) -> io::Result<PathBuf> {
        let above = self.0.join(kind.name);
        private(&above)?;
        let draft = above.join(format!(".new-{}", std::process::id()));
        for entry in fs::read_dir(&above)?.flatten() {
            if is_abandoned(&entry.file_name().to_string_lossy()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let _ = fs::remove_dir_all(&draft);
        private(&draft)?;
        Ok(draft)
    }

    /// From now on this is the version that is used; others are removed. Who runs one of them keeps it until they end.
    pub fn adopt(&self, kind: &Kind, draft: &Path, version: &str) -> io::Result<Installed> {
        let above = self.0.join(kind.name);
        let folder = above.join(version);
        if folder.exists() {
            let old = above.join(format!(".old-{}", std::process::id()));
            fs::rename(&folder, &old)?;
            let _ = fs::remove_dir_all(&old);
        }
        fs::rename(draft, &folder)?;
        let part = above.join(format!(".current-{}", std::process::id()));
        fs::write(&part, version)?;
        fs::rename(part, above.join(CURRENT))?;
        for entry in fs::read_dir(&above)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_version(&name) && name != version && name != CURRENT {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Ok(Installed { version: version.to_owned(), folder })
    }

    /// Whether there was anything to remove.
    pub fn remove(&self, kind: &Kind) -> io::Result<bool> {
        let there = self.find(kind).is_some();
        match fs::remove_dir_all(self.0.join(kind.name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
            Ok(()) => Ok(there),
        }
    }
}

impl Installed {
    /// As a sandbox has it.
    pub fn tool(&self, kind: &Kind) -> Tool {
        Tool { source: self.folder.clone(), target: kind.folder_inside() }
    }
}

/// One name of a folder, as versions are written.
pub fn is_version(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-+_".contains(&byte);
    (1..=60).contains(&text.len()) && text.bytes().all(fits) && text.starts_with(|first: char| first.is_ascii_digit())
}

/// Whether whoever made it is no more.
fn is_abandoned(name: &str) -> bool {
    let maker = name.strip_prefix(".new-").and_then(|pid| pid.parse::<u32>().ok());
    maker.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

fn private(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{super::OPENCODE, *};

    fn made(store: &Store, version: &str) -> Installed {
        let draft = store.draft(&OPENCODE).unwrap();
        fs::create_dir(draft.join("bin")).unwrap();
        fs::write(draft.join(OPENCODE.program), version).unwrap();
        store.adopt(&OPENCODE, &draft, version).unwrap()
    }

    #[test]
    fn the_last_version_is_used_and_others_are_removed() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::of(state.path());
        assert_eq!(store.find(&OPENCODE), None);
        let first = made(&store, "1.2.3");
        assert_eq!(store.find(&OPENCODE), Some(first.clone()));
        let second = made(&store, "1.3.0");
        assert_eq!(store.find(&OPENCODE), Some(second.clone()));
        assert!(!first.folder.exists() && second.folder.exists());
        assert_eq!(made(&store, "1.3.0"), second, "the same once more");
        assert!(store.remove(&OPENCODE).unwrap() && !store.remove(&OPENCODE).unwrap());
        assert_eq!(store.find(&OPENCODE), None);
    }

    #[test]
    fn a_version_is_one_folder_and_nothing_else() {
        for wrong in ["", "..", "../1", "1/2", "latest", ".1", "current", "1\n2"] {
            assert!(!is_version(wrong), "{wrong}");
        }
        assert!(is_version("2.1.326") && is_version("1.0.0-beta.1+x"));
    }
}
