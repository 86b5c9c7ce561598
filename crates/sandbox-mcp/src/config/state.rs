//! The state folder must be ours alone: whoever can write to it can reach every sandbox.

use std::{
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::Path,
};

use super::ConfigError;

/// The folder of sandboxes in the state folder.
const SANDBOXES: &str = "sandboxes";

/// Makes the folder where it is missing, and refuses one that others may use.
pub fn prepare(folder: &Path) -> Result<(), ConfigError> {
    let refuse = |why: String, fix: String| ConfigError::State { folder: folder.to_owned(), why, fix };
    let failed =
        |error: io::Error| refuse(error.to_string(), "Name another one with --state DIR or WORKSPACE_BASE".to_owned());
    make(folder).map_err(failed)?;
    let found = std::fs::symlink_metadata(folder).map_err(failed)?;
    let us = rustix::process::geteuid().as_raw();
    let shown = folder.display();
    if !found.is_dir() {
        return Err(refuse("it is not a folder".into(), "Name a folder with --state DIR or WORKSPACE_BASE".into()));
    }
    if found.uid() != us {
        let why = format!("it belongs to user {}, and this program runs as user {us}", found.uid());
        return Err(refuse(why, "Name a folder of your own with --state DIR or WORKSPACE_BASE".into()));
    }
    if found.mode() & 0o777 != 0o700 {
        let why = format!("its mode is {:o}, so others may look into it", found.mode() & 0o777);
        return Err(refuse(why, format!("Make it yours alone: chmod 700 '{shown}'")));
    }
    private().create(folder.join(SANDBOXES)).or_else(exists).map_err(failed)
}

/// Folders above it get the usual mode; only the state folder itself is private.
fn make(folder: &Path) -> io::Result<()> {
    match private().create(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(above) = folder.parent() {
                std::fs::create_dir_all(above)?;
            }
            private().create(folder).or_else(exists)
        }
        made => made.or_else(exists),
    }
}

fn private() -> std::fs::DirBuilder {
    let mut builder = std::fs::DirBuilder::new();
    builder.mode(0o700);
    builder
}

fn exists(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_missing_folder_is_made_ours_alone() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a/b/state");
        prepare(&folder).unwrap();
        prepare(&folder).unwrap();
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
        assert!(folder.join("sandboxes").is_dir());
    }

    #[test]
    fn a_folder_that_others_can_use_is_refused_with_the_fix() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("state");
        prepare(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        let refused = prepare(&folder).unwrap_err().to_string();
        assert!(refused.contains("mode is 755") && refused.contains("chmod 700"), "{refused}");
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(prepare(&link).unwrap_err().to_string().contains("not a folder"));
    }
}
