//! How much the folders hold that a sandbox keeps files in, where nobody outside can look: we do, and end all commands when it
//! is more than they may. Files that were removed but are still open count too, as far as the system shows them.

use std::{
    collections::HashSet,
    ffi::CString,
    os::fd::OwnedFd,
    rc::Rc,
    time::{Duration, Instant},
};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, openat, statat};
use sandbox_core::{Bytes, exec::DiskTrouble};

use super::{Executor, sys, tree::Members};

/// Between two looks, at least and at most.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// Between two looks for which everything stands still, at least.
const STILL: Duration = Duration::from_secs(3);
/// Looking takes no more than this part of the time.
const SHARE: u32 = 20;
/// Folders within folders.
const DEEPEST: usize = 256;
/// What an entry takes though it has no content.
const ENTRY: u64 = 2048;
/// Entries after which others are let at work.
const TURN: u32 = 512;

/// Which files count.
#[derive(Clone, Copy)]
enum Which {
    All,
    /// Those of this file system that were made or changed since this second: the rest is the image's. Nothing inside can set
    /// back the time of a change.
    Since(i64),
}

/// What was found.
#[derive(Default)]
struct Found {
    bytes: u64,
    trouble: Option<DiskTrouble>,
    devices: HashSet<u64>,
    linked: HashSet<(u64, u64)>,
}

impl Found {
    fn add(&mut self, stat: &Stat, which: Which) {
        if matches!(which, Which::Since(start) if stat.st_ctime < start) {
            return;
        }
        let several = stat.st_nlink > 1 && FileType::from_raw_mode(stat.st_mode) != FileType::Directory;
        if !several || self.linked.insert((stat.st_dev, stat.st_ino)) {
            self.bytes = self.bytes.saturating_add((stat.st_blocks as u64).saturating_mul(512) + ENTRY);
        }
    }
}

/// Looks for ever.
pub async fn watch(executor: Rc<Executor>, limit: Bytes) {
    let start = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    let (before, mut last_still) = (taken(&executor), Instant::now());
    loop {
        let began = Instant::now();
        let mut found = look(&executor, start).await;
        // More went missing from the disk than we found: it may move while we look, so we look while nothing does.
        let missing = taken(&executor).saturating_sub(before);
        if missing > limit.0 && found.bytes <= limit.0 && last_still.elapsed() > STILL {
            last_still = Instant::now();
            sys::signal_namespace(libc::SIGSTOP);
            found = look(&executor, start).await;
            sys::signal_namespace(libc::SIGCONT);
        }
        executor.kept.set(Some(found.bytes));
        if found.bytes > limit.0 || found.trouble.is_some() {
            executor.counters.note_disk(found.bytes, found.trouble);
            executor.kill(Members::All).await;
        }
        // Near the limit more often than far from it.
        let near = if found.bytes > limit.0 / 4 { SHORTEST } else { SHORTEST * 5 };
        tokio::time::sleep((began.elapsed() * SHARE).clamp(near, LONGEST)).await;
    }
}

/// Bytes that are taken on the disk of the first folder, by whomever.
fn taken(executor: &Executor) -> u64 {
    let first = executor.boot.itself.own.first().map_or("/", String::as_str);
    rustix::fs::statvfs(first).map_or(0, |found| (found.f_blocks - found.f_bfree).saturating_mul(found.f_frsize))
}

/// Bytes of what is kept now; nothing where that is not ours to measure.
pub async fn now(executor: &Executor) -> Option<u64> {
    executor.boot.itself.disk?;
    // Of a changed root the last look is all that there is time for.
    if executor.boot.itself.root {
        return executor.kept.get();
    }
    Some(look(executor, 0).await.bytes)
}

async fn look(executor: &Executor, start: i64) -> Found {
    let mut found = Found::default();
    let itself = &executor.boot.itself;
    let own = itself.own.iter().map(|folder| (folder.as_str(), Which::All));
    let root = itself.root.then_some(("/", Which::Since(start)));
    for (folder, which) in own.chain(root) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(CWD, folder, flags, Mode::empty()) {
            Ok(folder) => walk(folder, which, &mut found).await,
            Err(_) => found.trouble = Some(DiskTrouble::Unreadable),
        }
    }
    removed(&mut found).await;
    found
}

async fn walk(folder: OwnedFd, which: Which, found: &mut Found) {
    let Ok(device) = rustix::fs::fstat(&folder).map(|stat| stat.st_dev) else { return };
    found.devices.insert(device);
    let Ok(folder) = Dir::new(folder) else { return };
    let (mut above, mut seen) = (vec![folder], 0u32);
    while let Some(folder) = above.last_mut() {
        let Some(Ok(entry)) = folder.read() else {
            above.pop();
            continue;
        };
        let name: CString = entry.file_name().into();
        if matches!(name.as_bytes(), b"." | b"..") {
            continue;
        }
        seen += 1;
        let Ok(here) = folder.fd() else { continue };
        let Ok(stat) = statat(here, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        found.add(&stat, which);
        // What is mounted within has its own limit, or is looked at by itself. Files of layers may show other devices than
        // their folders.
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_dev == device {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match openat(here, &name, flags, Mode::empty()).and_then(Dir::new) {
                _ if above.len() == DEEPEST => found.trouble = Some(DiskTrouble::TooDeep),
                Ok(inner) => above.push(inner),
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {}
                Err(rustix::io::Errno::MFILE) => found.trouble = Some(DiskTrouble::TooManyOpen),
                // A folder of the image that the commands' user may not look into.
                Err(_) if matches!(which, Which::Since(start) if stat.st_ctime < start) => {}
                Err(_) => found.trouble = Some(DiskTrouble::Unreadable),
            }
        }
        if seen.is_multiple_of(TURN) {
            tokio::task::yield_now().await;
        }
    }
}

/// What has no name any more, and is held by a command: open, or mapped. For files we are the commands' user, who may look.
async fn removed(found: &mut Found) {
    let mut known = HashSet::new();
    for process in numbers("/proc") {
        // A process whose first thread has ended shows what is open only at its others.
        for thread in numbers(&format!("/proc/{process}/task")) {
            let path = format!("/proc/{process}/task/{thread}/fd");
            for descriptor in numbers(&path) {
                let Ok(stat) = statat(CWD, format!("{path}/{descriptor}"), AtFlags::empty()) else { continue };
                let counts = stat.st_nlink == 0 && found.devices.contains(&stat.st_dev);
                if counts && known.insert((stat.st_dev, stat.st_ino)) {
                    found.bytes = found.bytes.saturating_add(stat.st_blocks as u64 * 512 + ENTRY);
                }
            }
        }
        // Of a program that runs only a part may be mapped.
        if let Ok(stat) = statat(CWD, format!("/proc/{process}/exe"), AtFlags::empty())
            && stat.st_nlink == 0
            && found.devices.contains(&stat.st_dev)
            && known.insert((stat.st_dev, stat.st_ino))
        {
            found.bytes = found.bytes.saturating_add(stat.st_blocks as u64 * 512 + ENTRY);
        }
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        for (device, number, bytes) in maps.lines().filter_map(mapped) {
            if found.devices.contains(&device) && known.insert((device, number)) {
                found.bytes = found.bytes.saturating_add(bytes + ENTRY);
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Entries of a folder that are numbers.
fn numbers(folder: &str) -> Vec<u32> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(entries) = openat(CWD, folder, flags, Mode::empty()).and_then(Dir::new) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str().ok()?.parse().ok()).collect()
}

/// Device, number and size of a removed file in a line of `/proc/PID/maps`. How much of it there is cannot be seen, so it is
/// taken to be there up to where the map ends.
fn mapped(line: &str) -> Option<(u64, u64, u64)> {
    let mut fields = line.strip_suffix(" (deleted)")?.split_ascii_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let offset = hex(fields.nth(1)?)?;
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = fields.next()?.parse().ok()?;
    let device = rustix::fs::makedev(hex(major)? as u32, hex(minor)? as u32);
    Some((device, number, offset + hex(to)?.checked_sub(hex(from)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_files_are_seen_in_maps() {
        let line = "7f00000000-7f00a00000 rw-s 00100000 fe:01 1234                       /workspace/a b (deleted)";
        assert_eq!(mapped(line), Some((rustix::fs::makedev(0xfe, 1), 1234, 0xb0_0000)));
        assert_eq!(mapped("7f00000000-7f00a00000 rw-s 00100000 fe:01 1234 /workspace/a"), None);
        assert_eq!(mapped("nonsense (deleted)"), None);
    }
}
