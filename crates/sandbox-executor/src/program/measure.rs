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

use super::{Executor, tree::Members};

/// Between two looks, at least and at most.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// Looking takes no more than this part of the time.
const SHARE: u32 = 20;
/// Folders within folders.
const DEEPEST: usize = 256;
/// What an entry takes though it has no content.
const ENTRY: u64 = 512;
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
    loop {
        let began = Instant::now();
        let found = look(&executor, start).await;
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

/// What has no name any more and is held open by a command. For files we are the commands' user, who may look at them.
async fn removed(found: &mut Found) {
    let Ok(processes) = openat(CWD, "/proc", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    else {
        return;
    };
    let Ok(processes) = Dir::new(processes) else { return };
    let mut known = HashSet::new();
    for process in processes.flatten() {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<u32>() else { continue };
        let path = format!("/proc/{pid}/fd");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(open) = openat(CWD, path.as_str(), flags, Mode::empty()).and_then(Dir::new) else { continue };
        for descriptor in open.flatten() {
            let name = format!("{path}/{}", descriptor.file_name().to_string_lossy());
            let Ok(stat) = statat(CWD, name.as_str(), AtFlags::empty()) else { continue };
            let counts = stat.st_nlink == 0 && found.devices.contains(&stat.st_dev);
            if counts && known.insert((stat.st_dev, stat.st_ino)) {
                found.bytes = found.bytes.saturating_add(stat.st_blocks as u64 * 512 + ENTRY);
            }
        }
        tokio::task::yield_now().await;
    }
}
