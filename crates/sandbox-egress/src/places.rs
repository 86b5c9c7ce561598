//! Places for connections: how many one sandbox may have, and how many all sandboxes of this process together.
//!
//! A process has only so many descriptors. When half of the places are taken, a sandbox gets another only if it has less
//! than its share of the other half, so whoever opens as many connections as it can leaves enough for all others. Until
//! somebody has answered, a connection takes more of them: so only some are dialled at once, and the others wait.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;

/// A tunnel has two ends.
const DESCRIPTORS: usize = 2;
/// For one who is dialled there are so many that stand: with questions to name servers and several addresses that are
/// tried it takes five descriptors, and half as many are set aside for it as for those that stand.
const STANDING: usize = 5;
/// Of one sandbox so many are dialled at once; no program notices.
const DIALLED: usize = 64;
/// A sandbox with more connections than this has small buffers for the others. The kernel keeps what a program does not
/// take, in memory of the whole machine, and may keep many megabytes for each.
const FEW: usize = 8;
/// If the system names no limit.
const UNLIMITED: usize = 1 << 20;

/// The places of all sandboxes that share them.
#[derive(Clone, Debug)]
pub struct Places {
    standing: Pool,
    dialled: Pool,
}

#[derive(Clone, Debug)]
struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    places: usize,
    sandboxes: usize,
}

/// The places of one sandbox.
pub(crate) struct Share {
    all: Pool,
    most: usize,
    own: Mutex<Own>,
}

#[derive(Default)]
struct Own {
    places: usize,
    closed: bool,
}

/// One place, for as long as this is held.
pub(crate) struct Place(Arc<Share>);

impl Places {
    /// So many.
    pub fn new(most: usize) -> Self {
        Self { standing: Pool::new(most), dialled: Pool::new((most / STANDING).max(4)) }
    }

    /// As many as this process has descriptors for when it first asks: half of them for what stands, a quarter for what is
    /// being dialled, and a quarter is left for everything else.
    pub fn of_this_process() -> Self {
        static ALL: OnceLock<Places> = OnceLock::new();
        let all = ALL.get_or_init(|| {
            let descriptors = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
            let descriptors = descriptors.unwrap_or(UNLIMITED).min(UNLIMITED);
            Self::new(descriptors / 2 / DESCRIPTORS)
        });
        all.clone()
    }

    /// Another sandbox, which may have so many of them.
    pub(crate) fn share(&self, most: usize) -> Arc<Share> {
        self.standing.share(most)
    }

    /// What the same sandbox may dial at once.
    pub(crate) fn dialled(&self) -> Arc<Share> {
        self.dialled.share(DIALLED)
    }
}

impl Pool {
    fn new(most: usize) -> Self {
        Self(Arc::new(Shared { most, taken: Mutex::default(), freed: Notify::new() }))
    }

    fn share(&self, most: usize) -> Arc<Share> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner).sandboxes += 1;
        Arc::new(Share { all: self.clone(), most, own: Mutex::default() })
    }
}

impl Default for Places {
    fn default() -> Self {
        Self::of_this_process()
    }
}

impl Share {
    /// A place; nothing if there is none for this sandbox now.
    pub fn take(self: &Arc<Self>) -> Option<Place> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = self.all.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let most = self.all.0.most;
        let fair = (most / 2 / taken.sandboxes.max(1)).max(1);
        let free = taken.places < most / 2 || (taken.places < most && own.places < fair);
        if own.closed || own.places >= self.most || !free {
            return None;
        }
        own.places += 1;
        taken.places += 1;
        Some(Place(Arc::clone(self)))
    }

    /// A place, as soon as there is one.
    pub async fn wait(self: &Arc<Self>) -> Place {
        loop {
            let mut freed = std::pin::pin!(self.all.0.freed.notified());
            // From here on nothing that becomes free is missed.
            freed.as_mut().enable();
            if let Some(place) = self.take() {
                return place;
            }
            freed.await;
        }
    }

    /// Whether this sandbox has many of them.
    pub fn is_crowded(&self) -> bool {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).places > FEW
    }

    /// No more places from now on.
    pub fn close(&self) {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.own.lock().unwrap_or_else(PoisonError::into_inner).places -= 1;
        self.0.all.0.taken.lock().unwrap_or_else(PoisonError::into_inner).places -= 1;
        self.0.all.0.freed.notify_waiters();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.all.0.taken.lock().unwrap_or_else(PoisonError::into_inner).sandboxes -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(share: &Arc<Share>) -> Vec<Place> {
        std::iter::from_fn(|| share.take()).collect()
    }

    #[test]
    fn whoever_takes_all_it_can_leaves_a_share_for_everybody() {
        let places = Places::new(100);
        let shares: Vec<_> = (0..5).map(|_| places.share(1024)).collect();
        let greedy = take_all(&shares[0]);
        assert_eq!(greedy.len(), 50);
        let others: Vec<_> = shares[1..].iter().map(take_all).collect();
        assert!(others.iter().all(|held| held.len() == 10));
        assert!(shares[0].take().is_none());
        // What is given back can be taken again, by whoever has least first.
        drop(greedy);
        assert_eq!(take_all(&shares[1]).len(), 10);
        drop((others, shares));
        assert_eq!(take_all(&places.share(3)).len(), 3);
        let taken = places.standing.0.taken.lock().expect("nobody panicked");
        assert_eq!((taken.places, taken.sandboxes), (0, 0));
    }

    #[test]
    fn a_sandbox_that_has_ended_gets_none() {
        let share = Places::new(100).share(10);
        let held = share.take();
        share.close();
        assert!(held.is_some() && share.take().is_none());
    }

    #[test]
    fn all_places_of_this_process_leave_descriptors_for_others() {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let places = Places::of_this_process();
        let [standing, dialled] = [&places.standing, &places.dialled].map(|pool| pool.0.most as u64);
        assert!(standing > 0 && dialled > 0);
        assert!(standing * 2 + dialled * 5 <= descriptors - descriptors / 4, "{standing}, {dialled} of {descriptors}");
    }

    #[tokio::test]
    async fn who_waits_gets_the_next_that_is_free() {
        let share = Places::new(100).share(1);
        let first = share.take().expect("a place");
        let waiting = tokio::spawn({
            let share = Arc::clone(&share);
            async move { drop(share.wait().await) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        waiting.await.expect("it got one");
        assert!(share.take().is_some());
    }
}
