//! Counters outside the sandbox that tell why a command was killed.

use std::os::fd::OwnedFd;

use sandbox_core::{Control, exec::Exit};
use sandbox_executor::boot::{Boot, OomCounter, Verdicts};

/// Where the counters are.
pub struct Counters {
    oom: Option<OwnedFd>,
    verdicts: Option<OwnedFd>,
}

/// What they said at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    oom: u64,
    verdicts: Verdicts,
}

impl Counters {
    /// Those of the passed descriptors that the boot speaks of; the others are closed.
    pub fn new(boot: &Boot, oom: Option<OwnedFd>, verdicts: Option<OwnedFd>) -> Self {
        Self { oom: oom.filter(|_| boot.oom == OomCounter::Cgroup), verdicts: verdicts.filter(|_| boot.supervised) }
    }

    /// Reads them.
    pub fn read(&self) -> Counts {
        Counts {
            oom: self.oom.as_ref().and_then(read_oom).unwrap_or_default(),
            verdicts: self.verdicts.as_ref().and_then(read_verdicts).unwrap_or_default(),
        }
    }

    /// How a command ended whose process ended like this, given the counts when it started.
    pub fn judge(&self, before: Counts, ended: Exit) -> Exit {
        let now = self.read();
        if ended == Exit::Code(0) {
            return ended;
        }
        if now.oom > before.oom || now.verdicts.memory > before.verdicts.memory {
            Exit::Limit(Control::Memory)
        } else if now.verdicts.disk > before.verdicts.disk || ended == Exit::Signal(libc::SIGXFSZ) {
            Exit::Limit(Control::Disk)
        } else {
            ended
        }
    }
}

fn read_oom(file: &OwnedFd) -> Option<u64> {
    let mut text = [0; 1024];
    let length = rustix::io::pread(file, &mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

fn read_verdicts(page: &OwnedFd) -> Option<Verdicts> {
    let mut bytes = [0; Verdicts::SIZE];
    let length = rustix::io::pread(page, &mut bytes, 0).ok()?;
    (length == bytes.len()).then(|| Verdicts::from_bytes(bytes))
}
