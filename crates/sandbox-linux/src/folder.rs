//! A sandbox's folder outside: what is known about it, who looks after it, and its files.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::Path,
};

use rustix::fs::FlockOperation;
use sandbox_core::{Error, Facts, Result};

use crate::spare;

/// How the name of a folder begins that is being made.
pub const DRAFT: &str = ".new-";

/// Held by the server that looks after a sandbox; the system gives it up when that server ends, however it does.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Takes the lock of a sandbox; nothing if somebody has it.
    pub fn take(folder: &Path) -> io::Result<Option<Self>> {
        let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(folder.join("lock"))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Notes the first process, with its start time: numbers are used again, pairs are not. And the launcher, who has the
    /// doors of its way out.
    pub fn note(&self, pid: i32, launcher: u32) -> Result<()> {
        let start = start_time(pid).unwrap_or_default();
        let note = format!("{pid} {start} {launcher}\n");
        overwrite(&self.file, note.as_bytes()).map_err(Error::io("noting the first process"))
    }

    /// Gives it up although this value lives on.
    pub fn release(&self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Makes the folder of a new sandbox. It gets its name only when it is locked, so nobody ever finds it without an owner.
pub fn make(state: &Path, folder: &Path) -> Result<Lock> {
    let making = || Error::io(format!("making {}", folder.display()));
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let draft = folder.with_file_name(format!("{DRAFT}{name}"));
    let lock = match spare::claim(state, &draft) {
        Some(lock) => Some(lock),
        None => {
            fs::DirBuilder::new().mode(0o700).create(&draft).map_err(making())?;
            Lock::take(&draft).map_err(making())?
        }
    };
    let lock = lock.ok_or_else(|| Error::Step {
        step: format!("locking {}", folder.display()),
        why: "somebody else has it".into(),
    })?;
    fs::rename(&draft, folder).map_err(making())?;
    Ok(lock)
}

/// Writes down what is known about a sandbox. Whoever holds its lock knows it before.
pub fn describe(folder: &Path, facts: &Facts) -> Result<()> {
    let path = folder.join("facts.json");
    let writing = || Error::io(format!("writing {}", path.display()));
    let text = serde_json::to_vec(facts).map_err(io::Error::from).map_err(writing())?;
    let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
    file.and_then(|file| overwrite(&file, &text)).map_err(writing())
}

/// What is known about a sandbox.
pub fn facts(folder: &Path) -> Result<Facts> {
    let path = folder.join("facts.json");
    let reading = || Error::io(format!("reading {}", path.display()));
    let text = fs::read(&path).map_err(reading())?;
    serde_json::from_slice(&text).map_err(io::Error::from).map_err(reading())
}

/// The first process of a sandbox, if it still runs.
pub fn first_process(folder: &Path) -> Option<std::os::fd::OwnedFd> {
    let [pid, start, _] = note(folder)?;
    let pid = i32::try_from(pid).ok()?;
    let descriptor =
        rustix::process::pidfd_open(rustix::process::Pid::from_raw(pid)?, rustix::process::PidfdFlags::empty()).ok()?;
    // Checked after the descriptor is ours, so the number cannot change hands in between.
    (start_time(pid)? == start).then_some(descriptor)
}

/// The launcher that made a sandbox.
pub fn launcher(folder: &Path) -> Option<u64> {
    note(folder).map(|[.., launcher]| launcher)
}

/// What [`Lock::note`] wrote.
fn note(folder: &Path) -> Option<[u64; 3]> {
    let text = fs::read_to_string(folder.join("lock")).ok()?;
    let mut numbers = text.split_ascii_whitespace().filter_map(|word| word.parse().ok());
    // Older ones say nothing of a launcher.
    Some([numbers.next()?, numbers.next()?, numbers.next().unwrap_or_default()])
}

fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// Replaces what a small file holds. It is never empty in between: ext4 takes that as a sign that the file is precious,
/// and waits for the disk when it is closed.
pub fn overwrite(file: &File, content: &[u8]) -> io::Result<()> {
    file.write_all_at(content, 0)?;
    file.set_len(content.len() as u64)
}
