//! Which files of /workspace a piece of work created, changed or deleted: two listings, compared.

use std::collections::BTreeMap;

use sandbox_executor::protocol::{FileInfo, FileKind, Path};

/// /workspace as it stood at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    files: BTreeMap<Path, Seen>,
    /// When, in nanoseconds since 1970. A sandbox has the same clock.
    taken: i64,
    completeness: Completeness,
}

/// Whether a listing holds everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Completeness {
    #[default]
    Whole,
    Cut,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    kind: FileKind,
    size: u64,
    changed: i64,
}

/// What is different between two moments. Folders are not named, only what is in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Were not there before.
    pub created: Vec<ChangedFile>,
    /// Were there, but different.
    pub changed: Vec<ChangedFile>,
    /// Are no longer there.
    pub deleted: Vec<Path>,
    /// There were more files than are looked at.
    pub truncated: bool,
}

/// A file that is new or different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedFile {
    /// Its path beneath /workspace.
    pub path: Path,
    /// What it is.
    pub kind: FileKind,
    /// Its length.
    pub size: u64,
}

impl Snapshot {
    /// From a listing that was taken now.
    pub fn new(entries: Vec<FileInfo>, truncated: bool, taken: i64) -> Self {
        let seen = |file: FileInfo| (file.path, Seen { kind: file.kind, size: file.size, changed: file.changed });
        let files = entries.into_iter().filter(|file| file.kind != FileKind::Folder).map(seen).collect();
        Self { files, taken, completeness: if truncated { Completeness::Cut } else { Completeness::Whole } }
    }

    /// What is different in `after`. Where a listing was cut, only what is certain is told.
    pub fn compare(&self, after: &Snapshot) -> Changes {
        let cut = |snapshot: &Self| snapshot.completeness == Completeness::Cut;
        let mut changes = Changes { truncated: cut(self) || cut(after), ..Changes::default() };
        for (path, now) in &after.files {
            let file = || ChangedFile { path: path.clone(), kind: now.kind, size: now.size };
            match self.files.get(path) {
                Some(before) if before == now => {}
                Some(_) => changes.changed.push(file()),
                // Perhaps it was there and only did not fit into the listing.
                None if cut(self) && now.changed < self.taken => {}
                None => changes.created.push(file()),
            }
        }
        if !cut(after) {
            changes.deleted = self.files.keys().filter(|path| !after.files.contains_key(path)).cloned().collect();
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, size: u64, changed: i64) -> FileInfo {
        FileInfo { path: path.into(), kind: FileKind::File, size, mode: 0o644, modified: 0, changed }
    }

    fn names(files: &[ChangedFile]) -> Vec<String> {
        files.iter().map(|file| String::from_utf8_lossy(&file.path.0).into_owned()).collect()
    }

    #[test]
    fn tells_created_changed_and_deleted_apart() {
        let before = Snapshot::new(
            vec![file("same", 1, 1), file("grown", 1, 1), file("touched", 1, 1), file("gone", 1, 1)],
            false,
            5,
        );
        let after = Snapshot::new(
            vec![file("same", 1, 1), file("grown", 2, 9), file("touched", 1, 9), file("new", 0, 9)],
            false,
            10,
        );
        let changes = before.compare(&after);
        assert_eq!(names(&changes.created), ["new"]);
        assert_eq!(names(&changes.changed), ["grown", "touched"]);
        assert_eq!(changes.deleted, [Path::from("gone")]);
        assert!(!changes.truncated);
    }

    #[test]
    fn a_file_that_becomes_a_link_has_changed_and_folders_are_not_named() {
        let before = Snapshot::new(vec![file("a", 1, 1)], false, 5);
        let link = FileInfo { kind: FileKind::Link, ..file("a", 1, 1) };
        let folder = FileInfo { kind: FileKind::Folder, ..file("d", 1, 9) };
        let changes = before.compare(&Snapshot::new(vec![link, folder], false, 9));
        assert_eq!(names(&changes.changed), ["a"]);
        assert!(changes.created.is_empty());
    }

    #[test]
    fn a_cut_listing_claims_nothing_that_is_not_certain() {
        let before = Snapshot::new(vec![file("a", 1, 1)], true, 5);
        let after = Snapshot::new(vec![file("old", 1, 1), file("new", 1, 9)], true, 10);
        let changes = before.compare(&after);
        assert_eq!(names(&changes.created), ["new"]);
        assert!(changes.deleted.is_empty() && changes.truncated);
    }
}
