//! Memory that the kernel holds for a sandbox's pipes and sockets, where no cgroup counts it: it is in no process's sum.
//!
//! So when this machine runs short of memory, a sandbox that has very many of them open loses the process with the most.
//! A sandbox with few is not to blame: what its processes have is held by its own limit, and others may use memory too.

use std::{fs, os::fd::BorrowedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};

/// Memory that stays available: this much, or a sixteenth of a small machine's.
const FLOOR: u64 = 512 << 20;
/// Descriptors of a sandbox that may be to blame. Each can hold some hundred kilobytes.
const MANY: u64 = 1000;

/// What the machine has, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What programs could still get.
    pub available: u64,
}

/// How short it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Shortage {
    None,
    Near,
    Now,
}

impl Memory {
    /// Asks the kernel, see proc_meminfo(5).
    pub fn of_machine() -> Option<Self> {
        let text = fs::read_to_string("/proc/meminfo").ok()?;
        let number = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
        };
        Some(Self { total: number("MemTotal:")?, available: number("MemAvailable:")? })
    }

    /// How short it is.
    pub fn shortage(self) -> Shortage {
        let floor = FLOOR.min(self.total / 16);
        match self.available {
            available if available < floor => Shortage::Now,
            available if available < floor * 3 => Shortage::Near,
            _ => Shortage::None,
        }
    }
}

/// The process to end, if this sandbox may be to blame: the one with the most descriptors.
pub fn culprit<'a>(proc: BorrowedFd<'_>, processes: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    most(processes.map(|number| (descriptors(proc, number), number)).collect())
}

fn most(counts: Vec<(u64, &str)>) -> Option<&str> {
    let all: u64 = counts.iter().map(|(count, _)| count).sum();
    counts.into_iter().max().filter(|_| all >= MANY).map(|(_, number)| number)
}

/// From 6.2 on the folder's size says how many there are.
fn descriptors(proc: BorrowedFd<'_>, number: &str) -> u64 {
    let path = format!("{number}/fd");
    match rustix::fs::statat(proc, &*path, AtFlags::empty()) {
        Ok(found) if found.st_size > 0 => found.st_size as u64,
        Ok(_) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rustix::fs::openat(proc, &*path, flags, Mode::empty()).and_then(Dir::new);
            folder.map_or(0, |folder| folder.flatten().count() as u64)
        }
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_machine_is_short_below_a_floor() {
        let shortage = |total, available| Memory { total, available }.shortage();
        assert_eq!(shortage(64 << 30, 511 << 20), Shortage::Now);
        assert_eq!(shortage(64 << 30, 1 << 30), Shortage::Near);
        assert_eq!(shortage(64 << 30, 2 << 30), Shortage::None);
        assert_eq!(shortage(1 << 30, 65 << 20), Shortage::Near, "a small machine");
        assert!(Memory::of_machine().is_some_and(|memory| memory.available <= memory.total));
    }

    #[test]
    fn who_has_few_descriptors_is_not_to_blame() {
        assert_eq!(most(vec![(400, "7"), (500, "8")]), None);
        assert_eq!(most(vec![(400, "7"), (700, "8"), (3, "9")]), Some("8"));
        assert_eq!(most(vec![]), None);
    }

    #[test]
    fn descriptors_of_a_process_are_counted() {
        let proc = fs::File::open("/proc").expect("/proc");
        let kept: Vec<_> = (0..50).map(|_| fs::File::open("/dev/null").expect("a file")).collect();
        assert!(descriptors(proc.as_fd(), "self") > kept.len() as u64);
        assert_eq!(culprit(proc.as_fd(), ["self"].into_iter()), None);
    }
}
