//! Files that have no name any more, but still take room because some process of a sandbox holds them: as a descriptor
//! of any thread, mapped, as its program, or sent over a socket and not yet received.

use std::{
    collections::HashSet,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags},
    io::Errno,
};
use sandbox_core::exec::DiskTrouble;

/// Descriptors and maps that are looked at in one sandbox. Real programs have far fewer.
const MOST_LOOKS: usize = 200_000;
/// File systems in memory, whose files take no room on the disk, see statfs(2).
const IN_MEMORY: [rustix::fs::FsWord; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];
/// Longest part of a process's maps that is read.
const LONGEST_MAPS: usize = 8 << 20;

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unlinked {
    /// Bytes in files that can be asked for their size.
    pub bytes: u64,
    /// There are more, or there may be.
    pub unseen: bool,
}

/// Looks at all processes of a sandbox's `/proc`.
pub fn look(proc: BorrowedFd<'_>) -> Result<Unlinked, DiskTrouble> {
    let mut search = Search {
        proc,
        seen: HashSet::new(),
        mapped: HashSet::new(),
        in_memory: None,
        looks: 0,
        found: Unlinked::default(),
    };
    for process in numbers(proc, ".") {
        // Each thread: they may have tables of their own, and when the first has ended its table is gone, not theirs.
        for thread in numbers(proc, &format!("{process}/task")) {
            search.descriptors(&format!("{process}/task/{thread}"))?;
        }
        // A program can take its own code out of its memory.
        search.add(&format!("{process}/exe"));
        search.maps(process)?;
    }
    Ok(search.found)
}

struct Search<'a> {
    proc: BorrowedFd<'a>,
    seen: HashSet<(u64, u64)>,
    mapped: HashSet<String>,
    /// Devices of file systems in memory, as maps name them, once that was looked for.
    in_memory: Option<HashSet<String>>,
    looks: usize,
    found: Unlinked,
}

impl Search<'_> {
    fn descriptors(&mut self, thread: &str) -> Result<(), DiskTrouble> {
        for descriptor in numbers(self.proc, &format!("{thread}/fd")) {
            self.one_more()?;
            let path = format!("{thread}/fd/{descriptor}");
            let Ok(found) = rustix::fs::statat(self.proc, &*path, AtFlags::empty()) else { continue };
            match FileType::from_raw_mode(found.st_mode) {
                FileType::RegularFile => self.add(&path),
                FileType::Socket => {
                    let text = read(self.proc, &format!("{thread}/fdinfo/{descriptor}"), 4096);
                    self.found.unseen |= holds_descriptors(&text);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn maps(&mut self, process: u32) -> Result<(), DiskTrouble> {
        let text = read(self.proc, &format!("{process}/maps"), LONGEST_MAPS);
        let text = if text.is_empty() { self.maps_of_threads(process) } else { text };
        if text.len() >= LONGEST_MAPS {
            return Err(DiskTrouble::TooManyOpen);
        }
        for Unnamed { range, device, inode } in text.lines().filter_map(Unnamed::read) {
            if self.in_memory.get_or_insert_with(|| devices_in_memory(self.proc, process)).contains(device) {
                continue;
            }
            self.one_more()?;
            // Only root of this machine may ask for the file behind a map; others know that it is at least as long.
            let path = format!("{process}/map_files/{range}");
            match rustix::fs::statat(self.proc, &*path, AtFlags::empty()) {
                Ok(_) => self.add(&path),
                Err(Errno::NOENT | Errno::SRCH) => {}
                Err(_) => {
                    self.found.unseen = true;
                    if self.mapped.insert(format!("{device} {inode}")) {
                        self.found.bytes = self.found.bytes.saturating_add(length(range));
                    }
                }
            }
        }
        Ok(())
    }

    /// A process whose first thread has ended shows its maps only at the others, and its mapped files nowhere.
    fn maps_of_threads(&mut self, process: u32) -> String {
        let threads = numbers(self.proc, &format!("{process}/task")).into_iter();
        let mut texts = threads.map(|thread| read(self.proc, &format!("{process}/task/{thread}/maps"), LONGEST_MAPS));
        let text = texts.find(|text| !text.is_empty()).unwrap_or_default();
        self.found.unseen |= text.lines().any(|line| Unnamed::read(line).is_some());
        text
    }

    fn add(&mut self, path: &str) {
        let Ok(found) = rustix::fs::statat(self.proc, path, AtFlags::empty()) else { return };
        if found.st_nlink == 0 && self.seen.insert((found.st_dev, found.st_ino)) && !self.in_memory(path) {
            self.found.bytes = self.found.bytes.saturating_add(found.st_blocks as u64 * 512);
        }
    }

    fn in_memory(&self, path: &str) -> bool {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(self.proc, path, flags, Mode::empty());
        opened.and_then(rustix::fs::fstatfs).is_ok_and(|found| IN_MEMORY.contains(&found.f_type))
    }

    fn one_more(&mut self) -> Result<(), DiskTrouble> {
        self.looks += 1;
        if self.looks > MOST_LOOKS { Err(DiskTrouble::TooManyOpen) } else { Ok(()) }
    }
}

/// A line of `/proc/PID/maps` about a file that has no name any more. Its path proves nothing: who may make folders can
/// have one that looks like the kernel's own.
struct Unnamed<'a> {
    range: &'a str,
    device: &'a str,
    inode: &'a str,
}

impl<'a> Unnamed<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let mut fields = line.strip_suffix(" (deleted)")?.splitn(6, ' ');
        let range = fields.next()?;
        Some(Self { range, device: fields.nth(2)?, inode: fields.next()? })
    }
}

/// Those that this process sees mounted, and the kernel's own for memory files.
fn devices_in_memory(proc: BorrowedFd<'_>, process: u32) -> HashSet<String> {
    let mounts = read(proc, &format!("{process}/mountinfo"), LONGEST_MAPS);
    let memory_file = rustix::fs::memfd_create("device", rustix::fs::MemfdFlags::CLOEXEC);
    let own = memory_file.and_then(|file: OwnedFd| rustix::fs::fstat(file)).map(|found| {
        let (major, minor) = (rustix::fs::major(found.st_dev), rustix::fs::minor(found.st_dev));
        format!("{major:02x}:{minor:02x}")
    });
    mounts.lines().filter_map(device_of_tmpfs).chain(own.ok()).collect()
}

/// The device of a line of `mountinfo` as maps name it, which count in sixteens.
fn device_of_tmpfs(line: &str) -> Option<String> {
    let (mount, kind) = line.split_once(" - ")?;
    let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
    let number = |text: &str| text.parse::<u32>().ok();
    kind.starts_with("tmpfs ").then_some(format!("{:02x}:{:02x}", number(major)?, number(minor)?))
}

fn length(range: &str) -> u64 {
    let number = |text| u64::from_str_radix(text, 16).unwrap_or_default();
    range.split_once('-').map_or(0, |(start, end)| number(end).saturating_sub(number(start)))
}

/// Whether a local socket has descriptors in its queue, by the kernel's description of it (from 5.6 on).
fn holds_descriptors(fdinfo: &str) -> bool {
    let count = fdinfo.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.is_some_and(|count| count.trim() != "0")
}

fn read(proc: BorrowedFd<'_>, path: &str, most: usize) -> String {
    let Ok(file) = rustix::fs::openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return String::new();
    };
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 << 10];
    while bytes.len() < most
        && let Ok(length @ 1..) = rustix::io::read(&file, &mut buffer)
    {
        bytes.extend_from_slice(&buffer[..length]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Entries whose names are numbers.
fn numbers(proc: BorrowedFd<'_>, path: &str) -> Vec<u32> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(folder) = rustix::fs::openat(proc, path, flags, Mode::empty()).and_then(Dir::new) else {
        return Vec::new();
    };
    folder.flatten().filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_files_without_a_name_are_found() {
        let line = "7f0a00000000-7f0a00100000 rw-s 00000000 fe:00 1234                       /workspace/a b (deleted)";
        let found = Unnamed::read(line).map(|found| (found.range, found.device, found.inode));
        assert_eq!(found, Some(("7f0a00000000-7f0a00100000", "fe:00", "1234")));
        assert_eq!(length("7f0a00000000-7f0a00100000"), 1 << 20);
        assert!(Unnamed::read("00400000-00500000 r-xp 00000000 fe:00 12 /usr/bin/python3").is_none());
        assert!(Unnamed::read(" (deleted)").is_none());
        let mount = "41 29 0:38 / /tmp rw,nosuid - tmpfs tmpfs rw,size=1024k";
        assert_eq!(device_of_tmpfs(mount).as_deref(), Some("00:26"));
        assert_eq!(device_of_tmpfs("41 29 254:0 / / rw - ext4 /dev/vda rw"), None);
    }

    #[test]
    fn sockets_say_whether_descriptors_wait() {
        assert!(holds_descriptors("pos:\t0\nflags:\t02\nscm_fds: 3\n"));
        assert!(!holds_descriptors("pos:\t0\nflags:\t02\nscm_fds: 0\n"));
        assert!(!holds_descriptors("pos:\t0\n"));
    }
}
