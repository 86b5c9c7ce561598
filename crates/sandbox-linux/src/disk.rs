//! How much room a sandbox takes on the disk, and who has to stop.
//!
//! Files are counted by name, and without one where a process has them open or mapped. What is on its way in a socket
//! can be seen by nobody: there the disk itself is asked, see [`Ledger`].

use std::{
    fs, io,
    os::fd::BorrowedFd,
    path::Path,
    time::{Duration, Instant},
};

use sandbox_core::{Bytes, exec::DiskTrouble};
use serde::{Deserialize, Serialize};

use crate::{
    tree,
    unlinked::{self, Unlinked},
};

/// Less than this is nothing: bytes, files.
const NOISE: [u64; 2] = [64 << 10, 64];
const AT_LEAST: Duration = Duration::from_secs(2);
/// Space that stays free on the file system with the sandboxes.
const FREE_FLOOR: u64 = 256 << 20;

/// What a look at a sandbox's files found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// Bytes, or why they cannot be told.
    pub size: Result<u64, DiskTrouble>,
    /// Some files are kept where they cannot be measured.
    pub unseen: bool,
}

/// Looks at all that counts against a sandbox's disk limit.
pub fn look(folder: &Path, proc: Option<BorrowedFd<'_>>) -> Look {
    let Unlinked { bytes, unseen } = match proc.map(unlinked::look).transpose() {
        Ok(found) => found.unwrap_or_default(),
        Err(why) => return Look { size: Err(why), unseen: true },
    };
    let named = ["workspace", "home", "upper"].map(|name| tree::size(&folder.join(name)));
    let size = named.into_iter().try_fold(bytes, |sum, size| Ok(sum.saturating_add(size?)));
    Look { size, unseen }
}

/// Bytes of sandboxes that are not looked at: ended ones, other servers' ones, and what is about to be removed.
pub fn rest(state: &Path, looked_at: &[&Path]) -> u64 {
    let entries = ["sandboxes", "trash"].into_iter().filter_map(|name| fs::read_dir(state.join(name)).ok());
    let others =
        entries.flatten().flatten().map(|entry| entry.path()).filter(|path| !looked_at.contains(&path.as_path()));
    others.map(|path| tree::size(&path).unwrap_or(0)).fold(0, u64::saturating_add)
}

impl Look {
    /// As a number: what cannot be measured is endless.
    pub fn bytes(&self) -> u64 {
        self.size.unwrap_or(u64::MAX)
    }
}

/// Why a sandbox has to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// How much room its files take, if that is known.
    pub used: Option<u64>,
    /// What else is wrong.
    pub trouble: Option<DiskTrouble>,
}

/// What is free where sandboxes keep their files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// Bytes.
    pub bytes: u64,
    /// Files that could still be made; file systems that know no such number say zero.
    pub files: u64,
}

/// When to measure files again: when the disk has filled since. What others remove may hide that, so from time to time
/// anyway, as long as it costs a twentieth of a processor at most; or half of one while a sandbox keeps files that are not
/// seen, which only several looks tell from what others do.
#[derive(Debug)]
pub struct Occasion {
    free: [u64; 2],
    again: Instant,
}

impl Default for Occasion {
    /// At the first look at the disk.
    fn default() -> Self {
        Self { free: [u64::MAX; 2], again: Instant::now() + AT_LEAST }
    }
}

impl Occasion {
    /// Whether it is now. Slow writing counts too: it is compared with the last time.
    pub fn is_now(&mut self, free: Free, now: Instant) -> bool {
        let mut filled = false;
        for ((before, now), noise) in self.free.iter_mut().zip([free.bytes, free.files]).zip(NOISE) {
            let less = now.saturating_add(noise) < *before;
            *before = if less { now } else { now.max(*before) };
            filled |= less;
        }
        filled || free.is_too_little() || now >= self.again
    }

    /// Files were measured, for which a processor worked so long and all of it took so long, and were they all seen?
    pub fn passed(&mut self, now: Instant, [worked, took]: [Duration; 2], seen: bool) {
        self.again = now + if seen { AT_LEAST.max(worked * 20) } else { took.max(worked * 2) };
    }
}

impl Free {
    /// Asks the file system.
    pub fn at(state: &Path) -> io::Result<Self> {
        let found = rustix::fs::statvfs(state)?;
        Ok(Self { bytes: found.f_bavail * found.f_frsize, files: found.f_favail })
    }

    /// Whether it is too little to go on.
    pub fn is_too_little(self) -> bool {
        self.bytes < FREE_FLOOR
    }
}

/// What free space and the files of all sandboxes, also of those that have ended, come to together. That becomes less
/// only when somebody else writes, or when a sandbox keeps files that are not seen: so while one does, all that goes
/// missing is counted as its own. What others remove meanwhile does not make up for it.
#[derive(Debug, Default)]
pub struct Ledger {
    together: Option<u64>,
    missing: u64,
    unseen: bool,
    puzzled: bool,
}

impl Ledger {
    /// Whether all files were seen at the last look.
    pub fn saw_all(&self) -> bool {
        !self.unseen && !self.puzzled
    }

    /// Whether much of the disk went missing that no sandbox seems to have. Others may have written it; or a sandbox moved
    /// its files out of sight while they were measured, so the next look is at sandboxes that stand still.
    pub fn is_puzzled(&self) -> bool {
        self.puzzled
    }

    /// Who has to stop, and why, given a look at each sandbox with its limit, the size of the rest, and what was free before
    /// and after looking. What others do meanwhile makes that uncertain; it is taken as if it were hidden.
    pub fn judge(&mut self, free: [Free; 2], rest: u64, looks: &[(u64, Look, Option<Bytes>)]) -> Vec<(u64, Stop)> {
        let sizes = looks.iter().map(|(_, look, _)| look.size.unwrap_or(0)).fold(rest, u64::saturating_add);
        let bytes = free.map(|free| free.bytes);
        let [least, most] = [bytes[0].min(bytes[1]), bytes[0].max(bytes[1])].map(|free| free.saturating_add(sizes));
        let hidden = self.together.map_or(0, |before| before.saturating_sub(least));
        let smallest = looks.iter().filter_map(|(_, _, limit)| *limit).min();
        self.puzzled = smallest.is_some_and(|limit| hidden > limit.0 / 8);
        self.together = Some(most);
        self.unseen = looks.iter().any(|(_, look, _)| look.unseen);
        self.missing = if self.unseen { self.missing.saturating_add(hidden) } else { 0 };
        let missing = self.missing;
        let full = free[1].is_too_little();
        let largest = looks.iter().map(|(token, look, _)| (look.bytes(), *token)).max();
        let verdict = |(token, look, limit): &(u64, Look, Option<Bytes>)| {
            let limit = (*limit)?.0;
            let over = |used| Stop { used: Some(used), trouble: None };
            let stop = match look.size {
                Err(why) => Some(Stop { used: None, trouble: Some(why) }),
                Ok(size) if size > limit => Some(over(size)),
                Ok(size) if look.unseen && size.saturating_add(missing) > limit => {
                    Some(over(size.saturating_add(missing)))
                }
                // With no space left for anybody, who holds the most has to stop.
                Ok(size) if full && largest == Some((size, *token)) => {
                    Some(Stop { used: Some(size), trouble: Some(DiskTrouble::DiskFull) })
                }
                Ok(_) => None,
            };
            Some((*token, stop?))
        };
        looks.iter().filter_map(verdict).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Free = Free { bytes: 1 << 40, files: 1 << 20 };

    fn free(bytes: u64) -> Free {
        Free { bytes, ..FREE }
    }
    const LIMIT: Option<Bytes> = Some(Bytes(100));

    fn over(used: u64) -> Stop {
        Stop { used: Some(used), trouble: None }
    }

    fn look(size: u64, unseen: bool) -> Look {
        Look { size: Ok(size), unseen }
    }

    #[test]
    fn who_is_over_stops() {
        let mut ledger = Ledger::default();
        let looks = [(1, look(101, false), LIMIT), (2, look(100, false), LIMIT), (3, look(999, false), None)];
        assert_eq!(ledger.judge([FREE; 2], 0, &looks), [(1, over(101))]);
    }

    #[test]
    fn what_is_missing_counts_against_who_keeps_what_is_not_seen() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.judge([FREE; 2], 0, &[(1, look(90, false), LIMIT), (2, look(5, false), LIMIT)]), []);
        // The 90 went out of sight, and then 20 more.
        let looks = |size| [(1, look(size, true), LIMIT), (2, look(5, false), LIMIT)];
        assert_eq!(ledger.judge([FREE; 2], 0, &looks(0)), []);
        // What somebody else removes does not help.
        assert_eq!(ledger.judge([free(FREE.bytes + 500); 2], 0, &looks(0)), []);
        assert_eq!(ledger.judge([free(FREE.bytes + 480); 2], 0, &looks(0)), [(1, over(110))]);
        assert_eq!(
            ledger.judge(
                [FREE; 2],
                0,
                &looks(5).map(|(token, found, limit)| (token, look(found.bytes(), false), limit))
            ),
            []
        );
    }

    #[test]
    fn what_others_write_counts_against_nobody() {
        let mut ledger = Ledger::default();
        ledger.judge([FREE; 2], 0, &[(1, look(90, false), LIMIT)]);
        assert_eq!(ledger.judge([free(FREE.bytes - 10_000); 2], 0, &[(1, look(90, false), LIMIT)]), []);
        // Nor what a sandbox that has ended leaves until it is removed.
        ledger.judge([FREE; 2], 0, &[(1, look(90, false), LIMIT), (2, look(90, false), LIMIT)]);
        assert_eq!(ledger.judge([FREE; 2], 90, &[(1, look(90, true), LIMIT)]), []);
        // What others write while files are measured may as well have been hidden before.
        let looks = [(1, look(0, true), LIMIT)];
        ledger = Ledger::default();
        ledger.judge([FREE, free(FREE.bytes - 200)], 0, &[(1, look(0, false), LIMIT)]);
        assert_eq!(ledger.judge([free(FREE.bytes - 200); 2], 0, &looks), [(1, over(200))]);
        ledger = Ledger::default();
        ledger.judge([FREE; 2], 90, &[(1, look(90, true), LIMIT)]);
        // When it is removed, that does not hide what goes missing at the same time.
        assert_eq!(ledger.judge([free(FREE.bytes + 90 - 20); 2], 0, &[(1, look(90, true), LIMIT)]), [(1, over(110))]);
    }

    #[test]
    fn files_are_measured_when_the_disk_fills_and_from_time_to_time() {
        let (mut occasion, now) = (Occasion::default(), Instant::now());
        assert!(occasion.is_now(FREE, now), "the first time");
        assert!(!occasion.is_now(free(FREE.bytes - NOISE[0]), now));
        assert!(occasion.is_now(free(FREE.bytes - NOISE[0] - 1), now));
        assert!(!occasion.is_now(FREE, now));
        assert!(occasion.is_now(FREE, now + AT_LEAST * 2));
        assert!(occasion.is_now(Free { files: FREE.files - NOISE[1] - 1, ..FREE }, now), "many empty files");
        assert!(!occasion.is_now(FREE, now));
        occasion.passed(now, [Duration::from_millis(500); 2], false);
        assert!(occasion.is_now(FREE, now + Duration::from_secs(1)));
        occasion.passed(now, [Duration::from_millis(500); 2], true);
        assert!(!occasion.is_now(FREE, now + AT_LEAST * 2) && occasion.is_now(FREE, now + AT_LEAST * 8));
    }

    #[test]
    fn with_no_space_left_the_largest_stops() {
        let looks = [(1, look(10, false), LIMIT), (2, look(20, false), LIMIT)];
        assert_eq!(
            Ledger::default().judge([free(0); 2], 0, &looks),
            [(2, Stop { used: Some(20), trouble: Some(DiskTrouble::DiskFull) })]
        );
    }
}
