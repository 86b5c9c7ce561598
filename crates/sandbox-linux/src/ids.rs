//! Who is who: how ids inside a sandbox correspond to ids outside.

use serde::{Deserialize, Serialize};

/// Commands are this user and group inside, unless the policy says root.
pub const SANDBOX_ID: u32 = 1000;
/// As root each sandbox has a range of its own of this length.
pub const RANGE: u32 = 65_536;
/// The first of those ranges; there are [`SLOTS`] of them, below the 31st bit.
const FIRST_RANGE: u32 = 0x1000_0000;
/// How many ranges there are to choose from.
pub const SLOTS: u32 = 16_384;

/// What ids the launcher can give to sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IdSource {
    /// The launcher is root: every sandbox gets a range of its own.
    Ranges,
    /// The launcher is root of a user namespace with this many subordinate ids behind 0.
    Subordinate {
        /// How many.
        count: u32,
    },
    /// Only the user's own id.
    Single,
}

/// One line of an id map: so many ids from `inside` on are those from `outside` on, as the launcher counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "see user_namespaces(7)")]
pub struct IdMap {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

impl IdMap {
    /// The map for a sandbox; `slot` is its place among ranges, `inside` the only id where there is one.
    pub fn new(source: IdSource, slot: u32, inside: u32) -> Self {
        match source {
            IdSource::Ranges => Self { inside: 0, outside: FIRST_RANGE + (slot % SLOTS) * RANGE, count: RANGE },
            IdSource::Subordinate { count } => Self { inside: 0, outside: 0, count: count + 1 },
            IdSource::Single => Self { inside, outside: 0, count: 1 },
        }
    }

    /// What an id inside is for the launcher.
    pub fn outside(&self, id: u32) -> u32 {
        self.outside + (id - self.inside).min(self.count - 1)
    }

    /// As the kernel reads it from `uid_map`. A line must not span two lines of the map above it, and in a launcher's
    /// own user namespace id 0 is the user and the others are subordinate: so 0 always has a line of its own there.
    pub fn lines(&self) -> String {
        let Self { inside, outside, count } = *self;
        if outside == 0 && count > 1 {
            format!("{inside} 0 1\n{} 1 {}\n", inside + 1, count - 1)
        } else {
            format!("{inside} {outside} {count}\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_never_meet_and_stay_positive() {
        let last = IdMap::new(IdSource::Ranges, SLOTS - 1, 0);
        assert!(last.outside.checked_add(RANGE).is_some_and(|end| end < 1 << 31));
        let (one, two) = (IdMap::new(IdSource::Ranges, 0, 0), IdMap::new(IdSource::Ranges, 1, 0));
        assert_eq!(one.outside + RANGE, two.outside);
    }

    #[test]
    fn the_only_id_is_the_launchers_own() {
        let map = IdMap::new(IdSource::Single, 9, SANDBOX_ID);
        assert_eq!((map.outside(SANDBOX_ID), map.lines().as_str()), (0, "1000 0 1\n"));
    }
}
