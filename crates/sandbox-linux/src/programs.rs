//! Programs of a root file system, looked up before a sandbox is made: which files their names stand for, and what they
//! need to start. Links are followed as they would be inside.

use std::{
    collections::BTreeSet,
    fs,
    io::Read,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use crate::etc;

/// Where programs are, in the order of PATH.
pub const FOLDERS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
/// Longer interpreters' names are not read.
const HEAD: usize = 4096;

/// A root file system.
pub struct Programs {
    root: PathBuf,
    folder: OwnedFd,
    /// Only what is in these is seen inside; everything, if empty.
    seen: Vec<String>,
}

/// One name in a folder of programs.
pub struct Entry {
    /// Where it is, without links before the last part.
    pub path: String,
    /// What it leads to, where it is a link.
    pub leads_to: Option<String>,
}

impl Programs {
    /// Those of the root file system in this folder, of which only the named folders at its top are seen inside.
    pub fn of(root: &Path, seen: Vec<String>) -> std::io::Result<Self> {
        let folder = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { root: name_of(&folder).unwrap_or_else(|| root.into()), folder, seen })
    }

    /// What has such a name in the folders of programs, each folder once.
    pub fn entries(&self, such: impl Fn(&str) -> bool) -> Vec<Entry> {
        let folders: BTreeSet<String> = FOLDERS.iter().filter_map(|folder| self.resolve(folder)).collect();
        let list = |folder: &String| {
            let names = fs::read_dir(self.outside(folder)).into_iter().flatten().flatten();
            let names = names.filter(|entry| entry.file_name().to_str().is_some_and(&such));
            names.filter_map(|entry| self.entry(folder, &entry)).collect::<Vec<_>>()
        };
        folders.iter().flat_map(list).collect()
    }

    /// A link that leads nowhere is no program.
    fn entry(&self, folder: &str, entry: &fs::DirEntry) -> Option<Entry> {
        let name = entry.file_name().into_string().ok()?;
        let path = format!("{folder}/{name}");
        let leads_to = match entry.file_type().ok()?.is_symlink() {
            true => Some(self.resolve(&path)?),
            false => None,
        };
        Some(Entry { path, leads_to })
    }

    /// Changes when a program is added, removed or replaced.
    pub fn stamp(&self) -> Vec<Option<(i64, i64, u64)>> {
        FOLDERS.iter().map(|folder| etc::stamp(&self.outside(folder))).collect()
    }

    /// The files that a name on PATH may stand for.
    pub fn named(&self, name: &str) -> Vec<String> {
        FOLDERS.iter().filter_map(|folder| self.resolve(&format!("{folder}/{name}"))).collect()
    }

    /// Where a path leads to, if that is there and seen inside.
    pub fn resolve(&self, path: &str) -> Option<String> {
        let found = self.open(path, OFlags::PATH)?;
        let real = name_of(&found)?;
        let inside = Path::new("/").join(real.strip_prefix(&self.root).ok()?).to_str()?.to_owned();
        let seen = |top: &String| {
            inside.strip_prefix(&format!("/{top}")).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        (self.seen.is_empty() || self.seen.iter().any(seen)).then_some(inside)
    }

    /// What must be executable besides a file for it to start: the program that loads it, or that reads it.
    pub fn needs(&self, path: &str) -> Vec<String> {
        let head = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK).map(|file| {
            let mut head = Vec::with_capacity(HEAD);
            let _ = fs::File::from(file).take(HEAD as u64).read_to_end(&mut head);
            head
        });
        match head.as_deref() {
            Some(script) if script.starts_with(b"#!") => interpreter(script),
            Some(program) => loader(program).into_iter().collect(),
            None => Vec::new(),
        }
    }

    fn open(&self, path: &str, flags: OFlags) -> Option<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        rustix::fs::openat2(&self.folder, path, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()
    }

    fn outside(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

fn name_of(file: &OwnedFd) -> Option<PathBuf> {
    let name = rustix::fs::readlinkat(CWD, format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new()).ok()?;
    Some(PathBuf::from(name.into_string().ok()?))
}

/// The program in a script's first line; for `env`, also the one that it looks for.
fn interpreter(script: &[u8]) -> Vec<String> {
    let line = script[2..].split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line).into_owned();
    let mut words = line.split_whitespace();
    let Some(program) = words.next() else { return Vec::new() };
    let mut found = vec![program.to_owned()];
    if program.ends_with("/env") {
        found.extend(words.find(|word| !word.starts_with('-') && !word.contains('=')).map(str::to_owned));
    }
    found
}

/// The interpreter that an ELF file names; see elf(5).
fn loader(program: &[u8]) -> Option<String> {
    let number = |at: usize, length: usize| {
        let bytes = program.get(at..at + length)?;
        Some(bytes.iter().rev().fold(0usize, |sum, &byte| sum << 8 | usize::from(byte)))
    };
    // Little-endian ones, of 32 or 64 bits.
    let wide = match program.get(..6)? {
        [0x7f, b'E', b'L', b'F', 2, 1] => true,
        [0x7f, b'E', b'L', b'F', 1, 1] => false,
        _ => return None,
    };
    let (table, size, count) = match wide {
        true => (number(32, 8)?, number(54, 2)?, number(56, 2)?),
        false => (number(28, 4)?, number(42, 2)?, number(44, 2)?),
    };
    (0..count.min(64)).find_map(|index| {
        let header = table.checked_add(index * size)?;
        if number(header, 4)? != 3 {
            return None;
        }
        let (offset, length) = match wide {
            true => (number(header + 8, 8)?, number(header + 32, 8)?),
            false => (number(header + 4, 4)?, number(header + 16, 4)?),
        };
        let name = program.get(offset..offset.checked_add(length)?)?;
        String::from_utf8(name.split(|&byte| byte == 0).next()?.to_vec()).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_of_an_image_never_lead_out_of_it() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("usr/bin")).expect("a folder");
        fs::create_dir_all(folder.path().join("etc")).expect("a folder");
        fs::write(folder.path().join("usr/bin/real"), "#!/usr/bin/env -S VAR=1 python3 -u\n").expect("a file");
        symlink("/usr/bin", folder.path().join("bin")).expect("a link");
        symlink("/etc/real", folder.path().join("usr/bin/name")).expect("a link");
        symlink("../../../usr/bin/real", folder.path().join("etc/real")).expect("a link");
        symlink("/usr/bin/sh", folder.path().join("usr/bin/missing")).expect("a link");
        let programs = Programs::of(folder.path(), Vec::new()).expect("programs");
        assert_eq!(programs.resolve("/bin/name").as_deref(), Some("/usr/bin/real"));
        assert_eq!(programs.resolve("/bin/missing"), None);
        assert_eq!(programs.needs("/bin/name"), ["/usr/bin/env", "python3"]);
        assert_eq!(programs.entries(|_| true).len(), 2);
    }

    #[test]
    fn the_loader_of_this_very_program_is_found() {
        let own = fs::read("/bin/sh").expect("a shell");
        let loader = loader(&own[..own.len().min(HEAD)]).expect("it is loaded dynamically");
        assert!(loader.contains("ld") && Path::new(&loader).exists(), "{loader}");
        assert_eq!(super::loader(b"\x7fELF\x02\x01"), None);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let _ = loader(&[b"\x7fELF\x02\x01", &bytes[..]].concat());
            let _ = interpreter(&[b"#!", &bytes[..]].concat());
        }
    }
}
