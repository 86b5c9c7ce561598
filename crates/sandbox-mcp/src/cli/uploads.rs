//! Files that a task needs, as a person names them: a file, a folder with all that is in it, a pattern, or data in base64.
//! All is looked at before anything is made: a name that is mistyped costs nothing.

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use sandbox_core::Bytes;

use super::screen;
use crate::agent::{Content, TaskFile};

/// Files that one task may bring.
const MOST: usize = 10_000;
/// Folders in folders.
const DEEPEST: usize = 64;

/// All that was named, under the paths that it will have in /workspace, but for what this program keeps itself.
pub(super) fn gather(named: &[PathBuf], data: &[(String, String)], state: &Path) -> anyhow::Result<Vec<TaskFile>> {
    let mut gathered = Gathered { state: state.to_owned(), ..Gathered::default() };
    for path in named {
        gathered.add(path)?;
    }
    for (name, text) in data {
        let content = BASE64_STANDARD.decode(text.trim());
        let content = content.with_context(|| format!("the data of {name} is not base64"))?;
        gathered.put(name.clone(), PathBuf::from(name), Content::Bytes(content), None)?;
    }
    if gathered.links > 0 {
        screen::tell(&format!("{} links were left out: only files themselves are taken along", gathered.links));
    }
    Ok(gathered.files)
}

/// Fails where files take more room than a sandbox has: that is better said before they are copied for minutes.
pub(super) fn check_room(files: &[TaskFile], room: Bytes) -> anyhow::Result<()> {
    let size = |file: &TaskFile| match &file.content {
        Content::Path(path) => fs::metadata(path).map_or(0, |found| found.len()),
        Content::File(file) => file.metadata().map_or(0, |found| found.len()),
        Content::Bytes(bytes) => bytes.len() as u64,
    };
    let all = Bytes(files.iter().map(size).fold(0, u64::saturating_add));
    if all > room {
        let (count, largest) = (files.len(), files.iter().max_by_key(|file| size(file)));
        let largest =
            largest.map(|file| format!("; the largest is {} ({})", file.path, Bytes(size(file)))).unwrap_or_default();
        bail!(
            "the {count} files that you named are {all} together, and a sandbox has room for {room}{largest}. Bring fewer"
        );
    }
    Ok(())
}

#[derive(Default)]
struct Gathered {
    state: PathBuf,
    files: Vec<TaskFile>,
    /// Where each came from.
    sources: Vec<PathBuf>,
    links: usize,
}

impl Gathered {
    fn add(&mut self, path: &Path) -> anyhow::Result<()> {
        let text = path.to_str().unwrap_or_default();
        if !path.exists() && text.contains(['*', '?', '[']) {
            return self.add_pattern(text);
        }
        let found = fs::metadata(path).with_context(|| format!("the file {} cannot be read", path.display()))?;
        if found.is_dir() {
            return self.add_folder(path, path, 0);
        }
        self.add_file(path, path.file_name().map(Path::new).unwrap_or(path))
    }

    /// Shells do this too, unless the pattern is in quotes.
    fn add_pattern(&mut self, pattern: &str) -> anyhow::Result<()> {
        let found = glob::glob(pattern).with_context(|| format!("`{pattern}` is no pattern"))?;
        let found: Vec<PathBuf> = found.filter_map(Result::ok).take(MOST + 1).collect();
        if found.is_empty() {
            bail!("there is no file like {pattern}");
        }
        // Whoever names a link means what it leads to; a pattern names nothing, and links may lead anywhere.
        let is_link = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        let (links, found): (Vec<PathBuf>, Vec<PathBuf>) = found.into_iter().partition(is_link);
        self.links += links.len();
        found.iter().try_for_each(|path| self.add(path))
    }

    /// Everything in a folder, under its path there. Links are not followed: they may lead anywhere.
    fn add_folder(&mut self, root: &Path, folder: &Path, depth: usize) -> anyhow::Result<()> {
        let cannot = || format!("the folder {} cannot be read", folder.display());
        let mut entries: Vec<_> =
            fs::read_dir(folder).with_context(cannot)?.collect::<Result<_, _>>().with_context(cannot)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (path, kind) = (entry.path(), entry.file_type().with_context(cannot)?);
            match kind {
                kind if kind.is_symlink() => self.links += 1,
                _ if fs::canonicalize(&path).is_ok_and(|path| path == self.state) => {}
                kind if kind.is_dir() && depth < DEEPEST => self.add_folder(root, &path, depth + 1)?,
                kind if kind.is_file() => self.add_file(&path, path.strip_prefix(root).unwrap_or(&path))?,
                _ => {}
            }
        }
        Ok(())
    }

    fn add_file(&mut self, path: &Path, name: &Path) -> anyhow::Result<()> {
        let file = File::open(path).with_context(|| format!("the file {} cannot be read", path.display()))?;
        let found = file.metadata()?;
        if !found.is_file() {
            bail!("{} is not a regular file", path.display());
        }
        let name = name.to_str().with_context(|| format!("the name of {} is not UTF-8: rename it", path.display()))?;
        // Opened again when it is its turn: thousands at once would be too many.
        self.put(name.to_owned(), path.to_owned(), Content::Path(path.to_owned()), Some(found.mode() & 0o777))
    }

    fn put(&mut self, name: String, source: PathBuf, content: Content, mode: Option<u32>) -> anyhow::Result<()> {
        if let Some(number) = self.files.iter().position(|file| file.path == name) {
            let (first, second) = (self.sources[number].display(), source.display());
            bail!("{first} and {second} have the same name, and one would replace the other: rename one of them");
        }
        if self.files.len() >= MOST {
            bail!("there are more than {MOST} files: pack them into one archive and bring that");
        }
        self.files.push(TaskFile { path: name, content, mode });
        self.sources.push(source);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(named: &[PathBuf], data: &[(String, String)]) -> Result<Vec<String>, String> {
        let gathered = gather(named, data, Path::new("/nowhere")).map_err(|error| format!("{error:#}"));
        gathered.map(|files| files.into_iter().map(|file| file.path).collect())
    }

    #[test]
    fn files_folders_patterns_and_data_are_taken_along() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("in/deep")).unwrap();
        for name in ["a.csv", "b.csv", "in/x.txt", "in/deep/y.txt"] {
            fs::write(at(name), name).unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", at("in/link")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", at("key.csv")).unwrap();
        std::os::unix::fs::symlink("/etc", at("folder.csv")).unwrap();
        assert_eq!(names(&[at("a.csv")], &[]).unwrap(), ["a.csv"]);
        assert_eq!(names(&[at("*.csv")], &[]).unwrap(), ["a.csv", "b.csv"]);
        assert_eq!(names(&[at("key.csv")], &[]).unwrap(), ["key.csv"], "who names it means it");
        assert_eq!(names(&[at("in")], &[]).unwrap(), ["deep/y.txt", "x.txt"]);
        let gathered = gather(&[at("in")], &[], &fs::canonicalize(at("in/deep")).unwrap()).unwrap();
        assert_eq!(gathered.len(), 1, "what this program keeps itself is left out");
        assert!(check_room(&gathered, Bytes(8)).is_ok());
        let too_much = check_room(&gathered, Bytes(7)).unwrap_err().to_string();
        assert!(too_much.contains("x.txt") && too_much.contains("room for 7"), "{too_much}");
        let data = [("d.bin".to_owned(), "aGk=".to_owned())];
        assert_eq!(names(&[], &data).unwrap(), ["d.bin"]);
        assert!(names(&[at("*.xml")], &[]).unwrap_err().contains("no file like"));
        assert!(names(&[at("gone.csv")], &[]).unwrap_err().contains("gone.csv"));
        fs::write(at("in/a.csv"), "other").unwrap();
        assert!(names(&[at("a.csv"), at("in")], &[]).unwrap_err().contains("have the same name"));
        assert!(names(&[], &[("d".to_owned(), "%%".to_owned())]).unwrap_err().contains("not base64"));
    }
}
