//! Counters outside the sandbox that tell why a command was killed.

use std::{cell::Cell, os::fd::OwnedFd};

use sandbox_core::{
    Bytes, Control,
    exec::{DiskTrouble, Ending, Exit},
};
use sandbox_executor::boot::{Boot, OomCounter, Verdicts};

/// Where the counters are.
pub struct Counters {
    oom: Option<OwnedFd>,
    pids: Option<OwnedFd>,
    verdicts: Option<OwnedFd>,
    /// Our own, where nobody outside watches.
    own: Cell<Verdicts>,
}

/// What they said at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    oom: u64,
    refused: u64,
    verdicts: Verdicts,
}

impl Counters {
    /// Those of the passed descriptors that the boot speaks of; the others are closed.
    pub fn new(boot: &Boot, oom: Option<OwnedFd>, pids: Option<OwnedFd>, verdicts: Option<OwnedFd>) -> Self {
        Self {
            oom: oom.filter(|_| boot.oom == OomCounter::Cgroup),
            pids: pids.filter(|_| boot.refused_processes),
            verdicts: verdicts.filter(|_| boot.supervised),
            own: Cell::default(),
        }
    }

    /// Notes that commands are ended for what their files take.
    pub fn note_disk(&self, used: u64, trouble: Option<DiskTrouble>) {
        let own = self.own.get();
        self.own.set(Verdicts { disk: own.disk + 1, disk_used: used, trouble, ..own });
    }

    /// Reads them.
    pub fn read(&self) -> Counts {
        Counts {
            oom: self.oom.as_ref().and_then(|file| read_line(file, "oom_kill ")).unwrap_or_default(),
            refused: self.pids.as_ref().and_then(|file| read_line(file, "max ")).unwrap_or_default(),
            verdicts: self.verdicts.as_ref().and_then(read_verdicts).unwrap_or_else(|| self.own.get()),
        }
    }

    /// How a command ended whose process ended like this, given the counts when it started, and what else is known.
    pub fn judge(&self, before: Counts, ended: Exit) -> (Exit, Ending) {
        let now = self.read();
        let refused_processes = now.refused.saturating_sub(before.refused);
        let known = Ending { refused_processes, ..Ending::default() };
        let Verdicts { memory, memory_used, disk, disk_used, trouble } = now.verdicts;
        if ended == Exit::Code(0) {
            (ended, known)
        } else if memory > before.verdicts.memory {
            (Exit::Limit(Control::Memory), Ending { used: Some(Bytes(memory_used)), ..known })
        } else if now.oom > before.oom {
            (Exit::Limit(Control::Memory), known)
        } else if disk > before.verdicts.disk {
            let used = (disk_used < u64::MAX).then_some(Bytes(disk_used));
            (Exit::Limit(Control::Disk), Ending { used, disk: trouble, ..known })
        } else if ended == Exit::Signal(libc::SIGXFSZ) {
            (Exit::Limit(Control::Disk), known)
        } else {
            (ended, known)
        }
    }
}

fn read_line(file: &OwnedFd, key: &str) -> Option<u64> {
    let mut text = [0; 1024];
    let length = rustix::io::pread(file, &mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
}

fn read_verdicts(page: &OwnedFd) -> Option<Verdicts> {
    let mut bytes = [0; Verdicts::SIZE];
    let length = rustix::io::pread(page, &mut bytes, 0).ok()?;
    (length == bytes.len()).then(|| Verdicts::from_bytes(bytes))
}
