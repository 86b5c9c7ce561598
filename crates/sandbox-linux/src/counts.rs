//! Things that the kernel counts for a user and not for a sandbox: watches of files, signals that wait, open files,
//! terminals. Without a share of its own a sandbox could use up what the person on this machine needs.

use std::{fs, io, path::Path};

use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

use crate::wall::{self, Wall};

/// Terminals in one sandbox; the machine has a few thousand.
pub const TERMINALS: u32 = 64;
/// What programs are used to. They may ask for more up to the hard limit.
const USUAL_DESCRIPTORS: u64 = 4096;
const MOST_DESCRIPTORS: u64 = 65_536;
/// What the executor has more than commands. The kernel refuses to pass descriptors when more of the user's are on their
/// way than the sender may have open, so commands of the same user cannot cut it off.
const EXECUTORS_DESCRIPTORS: u64 = 4096;
/// Enough for timers and real-time signals of real programs.
const LEAST_SIGNALS: u64 = 1024;

/// Numbers for one sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Watches of files.
    pub inotify: Inotify,
    /// Signals that wait to be delivered, of all its processes.
    pub queued_signals: u64,
    /// Open files of each command. What waits in pipes and sockets is memory that no process has, so where memory is
    /// summed over processes there are fewer.
    pub descriptors: u64,
}

/// The kernel's two numbers about watching files, and as many for its younger sibling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "see inotify(7)")]
pub struct Inotify {
    pub instances: u64,
    pub watches: u64,
}

/// Who sums memory up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// A cgroup, with all that the kernel holds for the sandbox.
    Counted,
    /// We do, over processes.
    Summed,
}

impl Counts {
    /// The numbers for a sandbox with so many processes.
    pub fn new(user: Inotify, pids: u32, memory: Memory) -> Self {
        Self {
            inotify: Inotify {
                instances: (user.instances / 4).clamp(4, 128),
                watches: (user.watches / 4).clamp(1024, 65_536),
            },
            queued_signals: u64::from(pids).max(LEAST_SIGNALS),
            descriptors: match memory {
                Memory::Counted => MOST_DESCRIPTORS,
                Memory::Summed => USUAL_DESCRIPTORS,
            },
        }
    }

    /// Names in `/proc/sys/user` of the sandbox's own user namespace, with their values. The first closes a wall.
    pub fn of_user_namespace(&self) -> Vec<(String, u64)> {
        let Inotify { instances, watches } = self.inotify;
        let mut counts = Vec::new();
        if wall::stands(Wall::UserNamespaceCount) {
            counts.push(("max_user_namespaces".into(), 0));
        }
        if wall::stands(Wall::InotifyCounts) {
            counts.extend(inotify_names(instances, watches));
        }
        counts
    }

    /// For each command: what it has, and what it may ask for.
    pub fn descriptors_of_commands(&self) -> Option<(u64, u64)> {
        wall::stands(Wall::Descriptors).then_some((USUAL_DESCRIPTORS, self.descriptors))
    }

    /// Limits that the executor and all after it have, where a limit by the kernel's count is enough.
    pub fn limit_process(&self) -> io::Result<()> {
        if wall::stands(Wall::QueuedSignals) {
            limit(Resource::Sigpending, self.queued_signals, self.queued_signals)?;
        }
        if wall::stands(Wall::Descriptors) {
            let most = self.descriptors + EXECUTORS_DESCRIPTORS;
            limit(Resource::Nofile, most, most)?;
        }
        Ok(())
    }
}

impl Inotify {
    /// What a user of this machine has.
    pub fn of_user() -> Self {
        let number = |name: &str, usual: u64| {
            let text = fs::read_to_string(Path::new("/proc/sys/fs/inotify").join(name)).unwrap_or_default();
            text.trim().parse().unwrap_or(usual)
        };
        Self { instances: number("max_user_instances", 128), watches: number("max_user_watches", 8192) }
    }
}

/// In the launcher's own user namespace: all its sandboxes together leave half of what the user has.
pub fn leave_half_to_the_user() {
    let Inotify { instances, watches } = Inotify::of_user();
    for (name, value) in inotify_names(instances / 2, watches / 2) {
        // Best effort: every sandbox has its own numbers too.
        let _ = fs::write(Path::new("/proc/sys/user").join(name), value.to_string());
    }
}

fn inotify_names(instances: u64, watches: u64) -> Vec<(String, u64)> {
    let names = ["max_inotify_instances", "max_inotify_watches", "max_fanotify_groups", "max_fanotify_marks"];
    names.into_iter().map(String::from).zip([instances, watches, instances, watches]).collect()
}

/// Sets a limit, at most as high as it is.
fn limit(resource: Resource, soft: u64, hard: u64) -> io::Result<()> {
    let hard = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX).min(hard);
    Ok(rustix::process::setrlimit(resource, Rlimit { current: Some(soft.min(hard)), maximum: Some(hard) })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_gets_a_part_of_what_the_user_has() {
        let user = Inotify { instances: 128, watches: 192_505 };
        let counts = Counts::new(user, 512, Memory::Summed);
        assert_eq!(counts.inotify, Inotify { instances: 32, watches: 48_126 });
        assert_eq!((counts.queued_signals, counts.descriptors), (1024, 4096));
        assert_eq!(Counts::new(user, 5000, Memory::Counted).queued_signals, 5000);
    }
}
