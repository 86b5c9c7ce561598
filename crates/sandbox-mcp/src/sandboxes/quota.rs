//! How many sandboxes there may be, counted over the state folder so that all servers of a user share one count.
//!
//! Between counting and the folder's appearance a sandbox is a slot in the file `pending.slots`. Memory is counted by use, not
//! by promise: what the machine has left decides.

use std::{
    collections::HashSet,
    fs::File,
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

use rustix::fs::FlockOperation;
use sandbox_core::{Bytes, SessionId, UserId};

use super::{
    SandboxesError,
    folders::Folders,
    pending::{Pending, Reservation},
};

/// Asking the kernel costs more than everything else here; its answer is good for so long.
const MEMORY_IS_FRESH: Duration = Duration::from_millis(100);

/// The limits, and what is needed to count.
#[derive(Debug)]
pub struct Quota {
    per_user: usize,
    total: usize,
    memory_floor: Bytes,
    folders: Folders,
    pending: Pending,
    counted: PathBuf,
    lock: Mutex<File>,
    memory: Mutex<Option<(Instant, Bytes)>>,
}

impl Quota {
    /// Limits over this state folder.
    pub fn open(state: &Path, per_user: usize, total: usize, memory_floor: Bytes) -> io::Result<Self> {
        let lock = File::options().create(true).truncate(false).write(true).open(state.join("quota.lock"))?;
        let pending = Pending::open(&state.join("pending.slots"))?;
        Ok(Self {
            per_user,
            total,
            memory_floor,
            folders: Folders::of(state),
            pending,
            counted: state.join("sandboxes"),
            lock: Mutex::new(lock),
            memory: Mutex::new(None),
        })
    }

    /// Room for one more of this owner, or why not. Without an owner all sandboxes count as one user's.
    pub fn reserve(&self, owner: Option<&UserId>, id: &SessionId) -> Result<Reservation, SandboxesError> {
        self.check_memory()?;
        let file = self.lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _locked = Locked::take(&file);
        let failed = || SandboxesError::io(format!("could not reserve room in {}", self.counted.display()));
        let (pending, slot) = self.pending.read().map_err(failed())?;
        let at_most = links(&self.counted).map(|made| made + pending.len());
        if at_most.is_none_or(|count| count >= self.per_user.min(self.total)) {
            self.count(owner, pending)?;
        }
        self.pending.take(slot, id).map_err(failed())
    }

    fn count(&self, owner: Option<&UserId>, pending: Vec<SessionId>) -> Result<(), SandboxesError> {
        let ids: HashSet<SessionId> = self.folders.ids().into_iter().chain(pending).collect();
        if ids.len() >= self.total {
            return Err(SandboxesError::TotalQuota { count: ids.len(), limit: self.total });
        }
        let full = |count| SandboxesError::UserQuota { count, limit: self.per_user };
        let Some(owner) = owner else {
            return if ids.len() < self.per_user { Ok(()) } else { Err(full(ids.len())) };
        };
        // An id begins with its owner's label, which may be another owner's too: only the facts are exact.
        let maybe: Vec<&SessionId> = ids.iter().filter(|id| may_belong(id, owner)).collect();
        if maybe.len() < self.per_user {
            return Ok(());
        }
        let others = |id: &&&SessionId| self.folders.facts(id).is_some_and(|facts| facts.spec.owner != *owner);
        let count = maybe.len() - maybe.iter().filter(others).count();
        if count < self.per_user { Ok(()) } else { Err(full(count)) }
    }

    fn check_memory(&self) -> Result<(), SandboxesError> {
        let mut known = self.memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let available = match *known {
            Some((when, available)) if when.elapsed() < MEMORY_IS_FRESH => available,
            _ => available_memory().unwrap_or(Bytes(u64::MAX)),
        };
        if known.is_none_or(|(when, _)| when.elapsed() >= MEMORY_IS_FRESH) {
            *known = Some((Instant::now(), available));
        }
        if available >= self.memory_floor {
            return Ok(());
        }
        Err(SandboxesError::MemoryFloor { available, floor: self.memory_floor })
    }
}

/// The count is locked against other servers. Where that cannot be had in time, counting without is better than none.
struct Locked<'a>(&'a File);

impl<'a> Locked<'a> {
    fn take(file: &'a File) -> Self {
        let patience = Instant::now() + Duration::from_secs(1);
        while rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_err() && Instant::now() < patience {
            std::thread::sleep(Duration::from_micros(50));
        }
        Self(file)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(self.0, FlockOperation::Unlock);
    }
}

/// How many folders are in a folder, where the file system counts them as links; that costs one call.
fn links(folder: &Path) -> Option<usize> {
    folder.metadata().ok()?.nlink().checked_sub(2).map(|count| count as usize)
}

fn may_belong(id: &SessionId, owner: &UserId) -> bool {
    let label = id.as_str().strip_prefix("sandbox_").and_then(|rest| rest.split_once('_')).map(|(label, _)| label);
    let owners = owner.as_str().chars().take(24).map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
    label.is_some_and(|label| label.chars().eq(owners))
}

/// What the kernel thinks can be used without swapping (proc_meminfo(5)).
pub fn available_memory() -> Option<Bytes> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok().map(Bytes::kib)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn state() -> tempfile::TempDir {
        let state = tempfile::tempdir().unwrap();
        std::fs::create_dir(state.path().join("sandboxes")).unwrap();
        state
    }

    fn make(state: &Path, owner: &UserId) -> SessionId {
        let id = SessionId::random(owner).unwrap();
        std::fs::create_dir(state.join("sandboxes").join(id.as_str())).unwrap();
        id
    }

    #[test]
    fn a_user_may_have_so_many_and_reservations_count() {
        let (state, ann) = (state(), "ann".parse().unwrap());
        let quota = Quota::open(state.path(), 3, 10, Bytes(0)).unwrap();
        make(state.path(), &ann);
        let id = || SessionId::random(&ann).unwrap();
        let first = quota.reserve(Some(&ann), &id()).unwrap();
        let _second = quota.reserve(Some(&ann), &id()).unwrap();
        assert!(matches!(quota.reserve(Some(&ann), &id()), Err(SandboxesError::UserQuota { count: 3, limit: 3 })));
        drop(first);
        quota.reserve(Some(&ann), &id()).unwrap();
    }

    #[test]
    fn others_do_not_count_for_a_user_but_for_the_machine() {
        let (state, ann, bob): (_, UserId, UserId) = (state(), "ann".parse().unwrap(), "bob".parse().unwrap());
        let quota = Quota::open(state.path(), 2, 4, Bytes(0)).unwrap();
        for _ in 0..3 {
            make(state.path(), &bob);
        }
        let _one = quota.reserve(Some(&ann), &SessionId::random(&ann).unwrap()).unwrap();
        let refused = quota.reserve(Some(&ann), &SessionId::random(&ann).unwrap());
        assert!(matches!(refused, Err(SandboxesError::TotalQuota { count: 4, limit: 4 })));
    }

    #[test]
    fn labels_of_one_user_count_together() {
        let (state, ann, bob): (_, UserId, UserId) = (state(), "ann".parse().unwrap(), "bob".parse().unwrap());
        let quota = Quota::open(state.path(), 3, 100, Bytes(0)).unwrap();
        make(state.path(), &ann);
        make(state.path(), &bob);
        let _third = quota.reserve(None, &SessionId::random(&ann).unwrap()).unwrap();
        let refused = quota.reserve(None, &SessionId::random(&bob).unwrap());
        assert!(matches!(refused, Err(SandboxesError::UserQuota { count: 3, limit: 3 })));
    }

    #[test]
    fn too_little_memory_is_refused_with_what_to_do() {
        let (state, ann) = (state(), "ann".parse().unwrap());
        let quota = Quota::open(state.path(), 2, 4, Bytes(u64::MAX)).unwrap();
        let refused = quota.reserve(Some(&ann), &SessionId::random(&ann).unwrap()).unwrap_err().to_string();
        assert!(refused.contains("memory left") && refused.contains("memory_floor"), "{refused}");
    }

    #[test]
    fn servers_that_race_never_pass_the_limit() {
        let (state, ann) = (state(), UserId::local());
        let won: usize = std::thread::scope(|scope| {
            let server = || {
                // Each server has its own lock file handle, as separate processes have.
                let quota = Quota::open(state.path(), 7, 100, Bytes(0)).unwrap();
                let mine: Vec<_> =
                    (0..5).filter_map(|_| quota.reserve(Some(&ann), &SessionId::random(&ann).unwrap()).ok()).collect();
                mine.into_iter().map(std::mem::forget).count()
            };
            let servers: Vec<_> = (0..6).map(|_| scope.spawn(server)).collect();
            servers.into_iter().map(|server| server.join().unwrap()).sum()
        });
        assert_eq!(won, 7);
    }
}
