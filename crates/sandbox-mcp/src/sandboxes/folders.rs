//! The state folder as all servers of one user see it: which sandboxes there are, and who uses them when.
//!
//! A sandbox is a folder. `facts.json` is written when it is made; the time of its `lock` is the time of the last use
//! by any server; the lock itself is held by the one that looks after it.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rustix::fs::{AtFlags, CWD, FlockOperation, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use sandbox_core::{Facts, SessionId};

/// In the folder of one that was stopped for good.
const FROZEN: &str = "frozen";
/// No facts are longer than this.
const MAX_FACTS: u64 = 1 << 20;

/// All folders of sandboxes.
#[derive(Clone, Debug)]
pub struct Folders {
    root: PathBuf,
}

impl Folders {
    /// Those of this state folder.
    pub fn of(state: &Path) -> Self {
        Self { root: state.join("sandboxes") }
    }

    /// The one of this sandbox, whether it exists or not.
    pub fn folder(&self, id: &SessionId) -> PathBuf {
        self.root.join(id.as_str())
    }

    /// The ids of all sandboxes that there are.
    pub fn ids(&self) -> Vec<SessionId> {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return Vec::new() };
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
    }

    /// What is known about a sandbox, if it is there and whole.
    pub fn facts(&self, id: &SessionId) -> Option<Facts> {
        use io::Read;
        let mut text = Vec::new();
        File::open(self.folder(id).join("facts.json")).ok()?.take(MAX_FACTS).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok().filter(|facts: &Facts| facts.spec.id == *id)
    }

    /// Whether the sandbox's folder is there and whole.
    pub fn exists(&self, id: &SessionId) -> bool {
        self.folder(id).join("facts.json").exists()
    }
}

/// When a sandbox was made, from its folder.
pub fn made(folder: &Path) -> SystemTime {
    modified(&folder.join("facts.json")).unwrap_or_else(SystemTime::now)
}

/// How long nobody has used a sandbox, from its folder.
pub fn idle(folder: &Path) -> Duration {
    let last = modified(&folder.join("lock")).unwrap_or_else(|| made(folder)).max(made(folder));
    last.elapsed().unwrap_or_default()
}

/// Notes for all servers that the sandbox is used now.
pub fn mark_used(folder: &Path) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let same = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let times = Timestamps { last_access: same, last_modification: now };
    // If the folder is gone, the next request finds out and says so.
    let _ = rustix::fs::utimensat(CWD, folder.join("lock"), &times, AtFlags::SYMLINK_NOFOLLOW);
}

/// Notes for all servers that the sandbox was stopped for good, and why.
pub fn freeze(folder: &Path, why: &str) -> io::Result<()> {
    let file = folder.join(FROZEN);
    // A folder takes no descriptor, so it can be made where somebody has used them all up.
    fs::write(&file, why).or_else(|_| fs::create_dir(&file))
}

/// Why the sandbox was stopped for good, if it was.
pub fn frozen(folder: &Path) -> Option<String> {
    let file = folder.join(FROZEN);
    let why =
        || fs::read_to_string(&file).unwrap_or_else(|_| "it sent the placeholder of a secret elsewhere".to_owned());
    file.exists().then(why)
}

/// Whether some server looks after the sandbox.
pub fn is_attended(folder: &Path) -> bool {
    let Ok(lock) = File::open(folder.join("lock")) else { return false };
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).is_err()
}

/// The sandbox's lock, if nobody has it: whoever does looks after the sandbox.
pub fn attend(folder: &Path) -> Option<File> {
    let lock = File::options().write(true).open(folder.join("lock")).ok()?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(lock)
}

fn modified(file: &Path) -> Option<SystemTime> {
    file.metadata().ok()?.modified().ok()
}
