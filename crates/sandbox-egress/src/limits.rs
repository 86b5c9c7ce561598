//! How much one sandbox may use of the way out, and how much it has used.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

/// What may be used at once after a time of silence: pages load as they do without a limit.
const BURST: Duration = Duration::from_millis(250);
/// Parts of a second's worth that are carried in one go, so that many connections get their turns.
const TURNS: u64 = 16;

/// How much one sandbox may use of the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// Bytes per second, in both directions together; none means as fast as it goes.
    pub bandwidth: Option<u64>,
    /// Bytes over its whole life, in both directions together; none means any number.
    pub bytes: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 1024, bandwidth: None, bytes: None }
    }
}

/// Counts what all connections of one sandbox carry together.
pub(crate) struct Meter {
    bandwidth: Option<u64>,
    /// When everything that was carried so far would have been carried at the speed that is allowed.
    carried_until: Mutex<Instant>,
    left: Option<AtomicU64>,
    used_up: watch::Sender<bool>,
}

impl Meter {
    pub fn new(limits: &Limits) -> Self {
        Self {
            bandwidth: limits.bandwidth.map(|bandwidth| bandwidth.max(1)),
            carried_until: Mutex::new(Instant::now()),
            left: limits.bytes.map(AtomicU64::new),
            used_up: watch::Sender::new(limits.bytes == Some(0)),
        }
    }

    /// Whether there is anything to count.
    pub fn is_limited(&self) -> bool {
        self.bandwidth.is_some() || self.left.is_some()
    }

    /// How many of these bytes may be carried in one go. They are taken; what is not carried is to be given back. None
    /// once all are used up, and from then on for ever.
    pub fn take(&self, wanted: usize) -> usize {
        if *self.used_up.borrow() {
            return 0;
        }
        let turn = self.bandwidth.map_or(u64::MAX, |bandwidth| (bandwidth / TURNS).max(1));
        let wanted = turn.min(wanted as u64);
        let Some(left) = &self.left else { return wanted as usize };
        let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(wanted)));
        let granted = wanted.min(before.unwrap_or(0));
        if granted == 0 && wanted > 0 {
            self.used_up.send_replace(true);
        }
        granted as usize
    }

    pub fn give_back(&self, bytes: usize) {
        if let Some(left) = &self.left {
            left.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Bytes were carried: until when whoever carried them has to wait before it carries more. Each waits for its own
    /// bytes behind those of others, so connections take turns.
    pub fn carried(&self, bytes: usize) -> Option<Instant> {
        let bandwidth = self.bandwidth?;
        let time = Duration::from_nanos((bytes as u64).saturating_mul(1_000_000_000) / bandwidth);
        let now = Instant::now();
        let mut until = self.carried_until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = now.checked_sub(BURST).map_or(*until, |earliest| earliest.max(*until)) + time;
        Some(*until).filter(|until| *until > now)
    }

    /// Bytes that were carried before anybody was asked.
    pub fn charge(&self, bytes: usize) {
        let charged = |left: u64| Some(left.saturating_sub(bytes as u64));
        if let Some(left) = &self.left {
            let _ = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, charged);
        }
        self.carried(bytes);
    }

    pub fn is_used_up(&self) -> bool {
        *self.used_up.borrow()
    }

    /// Returns when all bytes are used up.
    pub async fn until_used_up(&self) {
        // It cannot be gone before us.
        let _ = self.used_up.subscribe().wait_for(|used_up| *used_up).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(bandwidth: Option<u64>, bytes: Option<u64>) -> Meter {
        Meter::new(&Limits { bandwidth, bytes, ..Limits::default() })
    }

    #[test]
    fn bytes_are_taken_once_and_when_they_are_gone_they_are_gone() {
        let meter = meter(None, Some(100));
        assert_eq!((meter.take(60), meter.take(60)), (60, 40));
        assert!(!meter.is_used_up(), "what was taken may still be given back");
        meter.give_back(10);
        assert_eq!((meter.take(60), meter.take(60)), (10, 0));
        meter.give_back(10);
        assert_eq!(meter.take(1), 0, "it was told to all that there is nothing left");
        assert!(meter.is_used_up());
        assert!(super::tests::meter(None, Some(0)).is_used_up());
    }

    #[test]
    fn without_limits_nothing_is_counted() {
        let meter = meter(None, None);
        assert!(!meter.is_limited());
        assert_eq!((meter.take(usize::MAX), meter.carried(usize::MAX)), (usize::MAX, None));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_carries_waits_for_its_own_bytes_behind_those_of_others() {
        let meter = meter(Some(16_000), None);
        let start = Instant::now();
        let waits = |bytes| meter.carried(bytes).map(|until| (until - start).as_millis());
        assert_eq!(meter.take(100_000), 1000);
        assert_eq!(waits(1600), Some(100));
        assert_eq!(waits(1600), Some(200));
        // Silence is not saved up for ever.
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(waits(4000), None);
        assert_eq!(waits(1600), Some(60_100));
    }

    #[test]
    fn the_slowest_way_out_still_moves() {
        let meter = meter(Some(0), None);
        assert_eq!(meter.take(100), 1);
        assert!(meter.carried(1).is_some());
    }
}
