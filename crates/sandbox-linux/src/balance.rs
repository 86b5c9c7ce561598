//! Sandboxes that use much of the processor weigh little against those that use little, so that a short command in one
//! sandbox does not wait for what burns in others. They still get all that nobody else wants.
//!
//! Where there is no cgroup, each executor has its own processes step back instead.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::cgroup::{CgroupHost, Weight};

/// Between two looks: when somebody is busy, and when nobody is; and longer for each sandbox, so that many cost no more.
const BUSY: Duration = Duration::from_millis(50);
const CALM: Duration = Duration::from_millis(150);
const EACH: Duration = Duration::from_millis(5);
/// Who uses more than this part of a processor is busy.
const MUCH: f64 = 0.3;

/// What is known about the use of each sandbox.
pub struct Balance {
    due: Instant,
    last: Instant,
    known: HashMap<String, (Duration, Weight)>,
}

impl Balance {
    /// Nothing yet.
    pub fn new() -> Self {
        let now = Instant::now();
        Self { due: now, last: now, known: HashMap::new() }
    }

    /// When to look again, where there is something to look at.
    pub fn due(&self, cgroup: &CgroupHost) -> Option<Instant> {
        cgroup.covers().cpu.then_some(self.due)
    }

    /// Looks at all sandboxes and weighs them anew.
    pub fn look<'a>(&mut self, cgroup: &CgroupHost, names: impl Iterator<Item = &'a str>, now: Instant) {
        let time = now.saturating_duration_since(self.last);
        let known = std::mem::take(&mut self.known);
        for name in names {
            let Some(used) = cgroup.processor_time(name) else { continue };
            let (before, weight) = known.get(name).copied().unwrap_or((used, Weight::Full));
            let wanted = weight_of(used.saturating_sub(before), time);
            if wanted != weight {
                cgroup.weigh(name, wanted);
            }
            self.known.insert(name.to_owned(), (used, wanted));
        }
        let busy = self.known.values().any(|(_, weight)| *weight == Weight::Little);
        let pause = if busy { BUSY } else { CALM } + EACH * self.known.len() as u32;
        (self.last, self.due) = (now, now + pause);
    }
}

fn weight_of(used: Duration, time: Duration) -> Weight {
    if used.as_secs_f64() > time.as_secs_f64() * MUCH { Weight::Little } else { Weight::Full }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_uses_much_weighs_little() {
        let second = Duration::from_secs(1);
        assert_eq!(weight_of(Duration::from_millis(900), second), Weight::Little);
        assert_eq!(weight_of(Duration::from_millis(100), second), Weight::Full);
        assert_eq!(weight_of(Duration::ZERO, Duration::ZERO), Weight::Full);
    }
}
