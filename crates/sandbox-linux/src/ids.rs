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

/// An id map: so many ids from `inside` on are those from `outside` on, as the launcher counts; but the commands' user
/// may be another one outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "see user_namespaces(7)")]
pub struct IdMap {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
    /// Where all sandboxes have the same ids: those that stand for nobody inside, from and to. Each can be the commands'
    /// user of one sandbox.
    pub pool: Option<(u32, u32)>,
    /// Who [`SANDBOX_ID`] is outside, where that is this sandbox's alone.
    pub own_user: Option<u32>,
}

impl IdMap {
    /// The map for a sandbox; `slot` is its place among ranges, `inside` the only id where there is one.
    pub fn new(source: IdSource, slot: u32, inside: u32) -> Self {
        let map = |inside, outside, count| Self { inside, outside, count, pool: None, own_user: None };
        match source {
            IdSource::Ranges => map(0, FIRST_RANGE + (slot % SLOTS) * RANGE, RANGE),
            IdSource::Subordinate { count } => Self { pool: pool(count + 1), ..map(0, 0, count + 1) },
            IdSource::Single => map(inside, 0, 1),
        }
    }

    /// Gives this sandbox's commands a user of their own, where there is a pool of them.
    pub fn with_own_user(self, slot: u32) -> Self {
        Self { own_user: self.pool.map(|(from, to)| from + slot % (to - from)), ..self }
    }

    /// Whether no other sandbox has this user, who is there inside.
    pub fn is_own(&self, id: u32) -> bool {
        self.outside != 0 || (id == SANDBOX_ID && self.own_user.is_some())
    }

    /// What an id inside is for the launcher.
    pub fn outside(&self, id: u32) -> u32 {
        match self.own_user {
            Some(own) if id == SANDBOX_ID => own,
            _ => self.outside + (id - self.inside).min(self.count - 1),
        }
    }

    /// As the kernel reads it from `uid_map`. A line must not span two lines of the map above it, and in a launcher's
    /// own user namespace id 0 is the user and the others are subordinate: so 0 always has a line of its own there.
    pub fn lines(&self) -> String {
        let Self { inside, outside, count, pool, own_user } = *self;
        let line = |from: u32, to: u32| match to.saturating_sub(from) {
            0 => String::new(),
            length => format!("{} {} {length}\n", inside + from, outside + from),
        };
        if outside != 0 || count == 1 {
            return line(0, count);
        }
        let (from, to) = pool.unwrap_or((count, count));
        let own = match own_user {
            Some(own) => [line(1, SANDBOX_ID), format!("{SANDBOX_ID} {own} 1\n"), line(SANDBOX_ID + 1, from)].concat(),
            None => line(1, from),
        };
        [line(0, 1), own, line(to, count)].concat()
    }
}

/// Above what systems give out one by one, and below the last ones, which have meanings (`nobody` is 65534). Nothing where
/// there are too few.
fn pool(count: u32) -> Option<(u32, u32)> {
    let (from, to) = (count / 2, count - count / 16);
    (from > 2 * SANDBOX_ID).then_some((from, to))
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
        assert_eq!(map.with_own_user(9), map);
        assert!(!map.is_own(SANDBOX_ID));
    }

    #[test]
    fn with_subordinate_ids_commands_are_nobody_elses_user() {
        let map = IdMap::new(IdSource::Subordinate { count: 65_536 }, 0, SANDBOX_ID);
        // Nobody, not even root inside, can become the user of another sandbox.
        assert_eq!(map.lines(), "0 0 1\n1 1 32767\n61441 61441 4096\n");
        let (one, two) = (map.with_own_user(4), map.with_own_user(5));
        assert_eq!(one.lines(), "0 0 1\n1 1 999\n1000 32772 1\n1001 1001 31767\n61441 61441 4096\n");
        assert_eq!((one.outside(SANDBOX_ID), two.outside(SANDBOX_ID), one.outside(0)), (32_772, 32_773, 0));
        assert!(one.is_own(SANDBOX_ID) && !one.is_own(0) && !map.is_own(SANDBOX_ID));
        let last = map.with_own_user(61_441 - 32_768 - 1);
        assert_eq!(last.outside(SANDBOX_ID), 61_440);
        let few = IdMap::new(IdSource::Subordinate { count: 2000 }, 0, SANDBOX_ID);
        assert_eq!((few.with_own_user(7), few.lines().as_str()), (few, "0 0 1\n1 1 2000\n"));
    }
}
