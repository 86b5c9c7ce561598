//! What is told to whoever records: every connection once, and refusals that repeat as one.
//!
//! A sandbox can ask for what it may not have as fast as it likes. So the first refusal is told at once, and those that
//! follow are counted and told together from time to time; nothing of it grows with what a sandbox does.

use std::{
    collections::{HashMap, hash_map},
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    Reason,
    engine::{OnRefusal, Recorder, Refusal},
    record::{Record, Verdict},
};

/// Between two records of the same refusal.
const PAUSE: Duration = Duration::from_secs(1);
/// A refusal that was not repeated for so long is news again.
const QUIET: Duration = Duration::from_secs(10);
/// Different refusals that are told apart. What is beyond is told together.
const MOST: usize = 256;
/// The target of what is told together.
const OTHERS: &str = "(others)";

/// Writes down what happened to the connections of one sandbox.
pub(crate) struct Ledger {
    recorder: Recorder,
    on_refusal: OnRefusal,
    refusals: Mutex<Refusals>,
    open: Mutex<Open>,
}

/// One connection, from the wish to the end. It is written down when this is dropped, so nobody can forget it.
pub(crate) struct Entry {
    ledger: Arc<Ledger>,
    record: Record,
    /// Its number among those that are open, once it is.
    number: Option<u64>,
    since: Instant,
    /// Bytes that went out, and those that came in.
    pub counts: Arc<[AtomicU64; 2]>,
}

impl Ledger {
    pub fn new(recorder: Recorder, on_refusal: OnRefusal) -> Arc<Self> {
        Arc::new(Self { recorder, on_refusal, refusals: Mutex::default(), open: Mutex::default() })
    }

    pub fn write(&self, record: Record) {
        if let Verdict::Denied(_) = record.verdict {
            (self.on_refusal)(&record);
        }
        let told = self.refusals.lock().unwrap_or_else(PoisonError::into_inner).note(record, Instant::now());
        told.into_iter().for_each(&self.recorder);
    }

    /// Tells what was only counted so far.
    pub fn write_rest(&self) {
        let rest = self.refusals.lock().unwrap_or_else(PoisonError::into_inner).rest();
        rest.into_iter().for_each(&self.recorder);
    }

    /// Connections that were made and have not ended, as far as they have come. Each is written down in the moment in which
    /// it is no longer here. Must not be called by whoever records.
    pub fn open_connections(&self) -> Vec<Record> {
        self.open().connections.values().map(Connection::so_far).collect()
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.write_rest();
    }
}

impl Entry {
    /// A wish. If nothing becomes of it, whoever had it did not wait.
    pub fn new(ledger: &Arc<Ledger>, target: String) -> Self {
        let nobody_waited = Refusal::new(Reason::BrokenOff);
        let record = Record::refused(target, &nobody_waited, Duration::ZERO);
        Self { ledger: Arc::clone(ledger), record, number: None, since: Instant::now(), counts: Arc::default() }
    }

    pub fn refused(&mut self, refusal: &Refusal) {
        self.record.rule.clone_from(&refusal.rule);
        self.record.secret.clone_from(&refusal.secret);
        self.record.verdict = Verdict::Denied(refusal.reason);
    }

    pub fn opened(&mut self, address: SocketAddr, rule: String) {
        self.record.address = Some(address);
        self.record.rule = Some(rule);
        self.record.verdict = Verdict::Allowed;
        self.number = Some(self.ledger.open().add(self.connection()));
    }

    fn connection(&self) -> Connection {
        Connection { record: self.record.clone(), since: self.since, counts: Arc::clone(&self.counts) }
    }

    pub fn denied(&mut self, reason: Reason, secret: Option<String>) {
        self.record.secret = secret;
        self.record.verdict = Verdict::Denied(reason);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let record = self.connection().so_far();
        let Some(number) = self.number else { return self.ledger.write(record) };
        // Both under one lock: whoever looks sees it as open or as written down, never as both or neither.
        let mut open = self.ledger.open();
        open.connections.remove(&number);
        self.ledger.write(record);
    }
}

/// Connections that have not ended.
#[derive(Default)]
struct Open {
    next: u64,
    connections: HashMap<u64, Connection>,
}

impl Open {
    fn add(&mut self, connection: Connection) -> u64 {
        self.next += 1;
        self.connections.insert(self.next, connection);
        self.next
    }
}

struct Connection {
    record: Record,
    since: Instant,
    counts: Arc<[AtomicU64; 2]>,
}

impl Connection {
    fn so_far(&self) -> Record {
        let [sent, received] = &*self.counts;
        Record {
            sent: sent.load(Ordering::Relaxed),
            received: received.load(Ordering::Relaxed),
            duration: self.since.elapsed(),
            ..self.record.clone()
        }
    }
}

/// Refusals of late.
#[derive(Default)]
struct Refusals {
    known: HashMap<(String, Reason), Known>,
    looked_through: Option<Instant>,
}

struct Known {
    told: Instant,
    /// Those since then, as one.
    since: Option<Record>,
}

impl Refusals {
    /// What is to be told now.
    fn note(&mut self, mut record: Record, now: Instant) -> Vec<Record> {
        let mut told = self.due(now);
        let Verdict::Denied(reason) = record.verdict else {
            told.push(record);
            return told;
        };
        let mut key = (record.target.clone(), reason);
        if self.known.len() >= MOST && !self.known.contains_key(&key) {
            key.0 = OTHERS.to_owned();
            record = Record { target: OTHERS.to_owned(), address: None, rule: None, ..record };
        }
        match self.known.entry(key) {
            hash_map::Entry::Vacant(new) => {
                new.insert(Known { told: now, since: None });
                told.push(record);
            }
            hash_map::Entry::Occupied(mut known) => {
                let since = &mut known.get_mut().since;
                *since = Some(match since.take() {
                    Some(before) => before.and(record),
                    None => record,
                });
            }
        }
        told
    }

    /// What was counted for long enough. What was quiet for long enough is forgotten.
    fn due(&mut self, now: Instant) -> Vec<Record> {
        if self.looked_through.is_some_and(|last| now < last + PAUSE) {
            return Vec::new();
        }
        self.looked_through = Some(now);
        let mut due = Vec::new();
        self.known.retain(|_, known| {
            if now >= known.told + PAUSE
                && let Some(record) = known.since.take()
            {
                known.told = now;
                due.push(record);
            }
            known.since.is_some() || now < known.told + QUIET
        });
        due
    }

    fn rest(&mut self) -> Vec<Record> {
        self.known.values_mut().filter_map(|known| known.since.take()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(target: &str, reason: Reason) -> Record {
        Record::refused(target.to_owned(), &Refusal::new(reason), Duration::ZERO)
    }

    fn times(records: Vec<Record>) -> Vec<(String, u64)> {
        records.into_iter().map(|record| (record.target, record.times)).collect()
    }

    #[test]
    fn the_first_is_told_at_once_and_the_others_together() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let mut note = |target: &str, reason, milliseconds| {
            times(refusals.note(refusal(target, reason), start + Duration::from_millis(milliseconds)))
        };
        assert_eq!(note("a:1", Reason::NoRule, 0), [("a:1".to_owned(), 1)]);
        for moment in 1..900 {
            assert_eq!(note("a:1", Reason::NoRule, moment), []);
        }
        assert_eq!(note("a:1", Reason::Refused, 900), [("a:1".to_owned(), 1)], "for another reason it is news");
        assert_eq!(note("b:1", Reason::NoRule, 1000), [("a:1".to_owned(), 899), ("b:1".to_owned(), 1)]);
        assert_eq!(note("a:1", Reason::NoRule, 1100), []);
        assert_eq!(times(refusals.rest()), [("a:1".to_owned(), 1)]);
        assert_eq!(times(refusals.rest()), []);
    }

    #[test]
    fn many_different_ones_are_told_together_until_they_are_forgotten() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        let told: usize =
            (0..10_000).map(|number| refusals.note(refusal(&format!("a:{number}"), Reason::NoRule), start).len()).sum();
        assert_eq!(told, MOST + 1);
        assert_eq!(times(refusals.rest()), [(OTHERS.to_owned(), (10_000 - MOST - 1) as u64)]);
        let later = start + QUIET;
        assert_eq!(times(refusals.note(refusal("a:9999", Reason::NoRule), later)), [("a:9999".to_owned(), 1)]);
        assert_eq!(refusals.known.len(), 1);
    }

    #[test]
    fn connections_that_were_made_are_never_counted_together() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let made = Record { verdict: Verdict::Allowed, ..refusal("a:1", Reason::NoRule) };
        assert!((0..9).all(|_| refusals.note(made.clone(), now).len() == 1));
    }
}
