//! What a sandbox connected to while a task went on: heard from the journal, added up by host.
//!
//! A sandbox may try to blind whoever writes the receipt, with more hosts or more connections than can be told. So what was
//! reached has its place before what came to nothing, and whatever is not told by name is counted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};

use sandbox_core::SessionId;
use sandbox_egress::{Record, Target};
use serde::Serialize;
use tokio::{
    sync::broadcast::{
        self,
        error::{RecvError, TryRecvError},
    },
    task::AbortHandle,
};

use super::Receipt;
use crate::{
    agent::MOCK,
    config::{SecretSetting, ServiceSetting, Settings},
    sandboxes::{Event, Session, What, way_out},
};

/// More hosts are not told apart.
const MOST: usize = 500;
/// The target of what is not told apart, as the way out calls it too.
const OTHERS: &str = "(others)";
/// The key of the model, as the settings call it.
const MODEL_KEY: &str = "model_key";
/// A sandbox whose connections never rest long enough to be looked at is looked at no more often.
const LOOKS: usize = 20;

/// One host and port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Name and port.
    pub target: String,
    /// Connections that were made.
    pub connections: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Connections that nobody refused and that came to nothing: no such name, nobody there.
    pub failed: u64,
    /// Bytes that went out.
    pub sent_bytes: u64,
    /// Bytes that came in.
    pub received_bytes: u64,
}

/// Listens while a task goes on.
pub(super) struct Hosts {
    heard: Arc<Mutex<Heard>>,
    listening: Option<AbortHandle>,
}

struct Heard {
    session: Arc<Session>,
    events: broadcast::Receiver<Event>,
    missed: u64,
    table: Table,
    /// Secrets whose hosts were reached, by name.
    secrets: BTreeSet<String>,
}

impl Hosts {
    pub fn listen(session: &Arc<Session>) -> Self {
        let (events, mut more) = (session.listen(), session.listen());
        let session = session.clone();
        let heard = Heard { session, events, missed: 0, table: Table::default(), secrets: BTreeSet::new() };
        let heard = Arc::new(Mutex::new(heard));
        let shared = heard.clone();
        let listen = async move {
            // The journal keeps only so much for slow listeners. Whoever is too slow has something to hear all the same.
            while !matches!(more.recv().await, Err(RecvError::Closed)) {
                more = more.resubscribe();
                shared.lock().unwrap_or_else(PoisonError::into_inner).hear();
            }
        };
        let listening = tokio::runtime::Handle::try_current().map(|runtime| runtime.spawn(listen).abort_handle());
        Self { heard, listening: listening.ok() }
    }

    /// Writes down what was heard, and what goes on still.
    pub fn write(&self, settings: &Settings, receipt: &mut Receipt) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.take_up_open();
        receipt.hosts = heard.table.rows();
        receipt.hosts_missed = heard.missed;
        receipt.secrets = heard.secrets.iter().cloned().collect();
        // It is put in outside, and no event tells of it: that a model has answered does.
        if receipt.cost.turns > 0 && receipt.agent != MOCK && settings.model.has_key() {
            receipt.secrets.push(MODEL_KEY.to_owned());
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if let Some(listening) = &self.listening {
            listening.abort();
        }
    }
}

impl Heard {
    /// True if there was something.
    fn hear(&mut self) -> bool {
        let (happened, missed) = happened(&mut self.events, self.session.id());
        self.missed += missed;
        let is_news = !happened.is_empty();
        happened.into_iter().for_each(|what| self.note(what));
        is_news
    }

    /// What ends while it is looked at was heard of already, so it is looked again until nothing does.
    fn take_up_open(&mut self) {
        let mut open = still_open(&self.session);
        for _ in 0..LOOKS {
            if !self.hear() {
                break;
            }
            open = still_open(&self.session);
        }
        open.into_iter().for_each(|record| self.note(way_out::event(record)));
    }

    fn note(&mut self, what: What) {
        if let What::Spent { service, .. } = &what {
            self.note_secrets(|_| false, |used| used.name == *service);
        }
        let Some(host) = seen(what) else { return };
        if host.connections > 0
            && let Ok(target) = Target::from_authority(&host.target, Some(443))
        {
            self.note_secrets(|secret| is_for(secret, &target), |used| used.upstream.target == target);
        }
        self.table.add(&host);
    }

    fn note_secrets(&mut self, reached: impl Fn(&SecretSetting) -> bool, asked: impl Fn(&ServiceSetting) -> bool) {
        let (settings, policy) = (self.session.settings(), &self.session.facts().spec.policy);
        let by_service = |secret: &SecretSetting| {
            let mut services = settings.services.iter().filter(|service| service.is_for(policy));
            services.any(|service| service.secret == secret.name && asked(service))
        };
        let used =
            settings.secrets.iter().filter(|secret| secret.is_for(policy) && (reached(secret) || by_service(secret)));
        self.secrets.extend(used.map(|secret| secret.name.clone()));
    }
}

/// Connections of a sandbox that go on, as far as they have come.
fn still_open(session: &Session) -> Vec<Record> {
    session.way_out().map(way_out::WayOut::open_connections).unwrap_or_default()
}

/// What happened to a sandbox since somebody last asked, and how many events came too fast: nobody knows whose they were.
fn happened(events: &mut broadcast::Receiver<Event>, session: &SessionId) -> (Vec<What>, u64) {
    let (mut happened, mut missed) = (Vec::new(), 0);
    loop {
        match events.try_recv() {
            Ok(event) if event.session_id == *session => happened.push(event.what),
            Ok(_) => {}
            Err(TryRecvError::Lagged(count)) => missed += count,
            Err(TryRecvError::Empty | TryRecvError::Closed) => return (happened, missed),
        }
    }
}

/// A connection as the host that it was for; nothing if it is none.
fn seen(what: What) -> Option<Host> {
    let What::Connection { target, address, verdict, refused, times, sent, received, .. } = what else { return None };
    // What was ended later was made all the same, if anything has left.
    let made = verdict == "allowed" || (address.is_some() && sent > 0);
    let count = |holds: bool| if holds { times } else { 0 };
    Some(Host {
        target,
        connections: count(made),
        refused: count(refused),
        failed: count(!made && !refused),
        sent_bytes: sent,
        received_bytes: received,
    })
}

fn is_for(secret: &SecretSetting, target: &Target) -> bool {
    let on_port = secret.ports.is_empty() || secret.ports.contains(&target.port);
    on_port && secret.hosts.iter().any(|pattern| pattern.matches(&target.host))
}

impl Host {
    fn add(&mut self, more: &Self) {
        self.connections += more.connections;
        self.refused += more.refused;
        self.failed += more.failed;
        self.sent_bytes += more.sent_bytes;
        self.received_bytes += more.received_bytes;
    }
}

/// Hosts, as many as are told apart, and all others as one.
#[derive(Default)]
struct Table {
    hosts: BTreeMap<String, Host>,
    others: Host,
}

impl Table {
    fn add(&mut self, seen: &Host) {
        let row = if self.hosts.contains_key(&seen.target) || self.has_room_for(seen) {
            let new = || Host { target: seen.target.clone(), ..Host::default() };
            self.hosts.entry(seen.target.clone()).or_insert_with(new)
        } else {
            &mut self.others
        };
        row.add(seen);
    }

    /// A host that was reached takes the place of one that was not.
    fn has_room_for(&mut self, seen: &Host) -> bool {
        if seen.target == OTHERS || self.hosts.len() < MOST {
            return seen.target != OTHERS;
        }
        let unreached = self.hosts.values().find(|host| seen.connections > 0 && host.connections == 0);
        let unreached = unreached.map(|host| host.target.clone());
        let Some(gone) = unreached.and_then(|target| self.hosts.remove(&target)) else { return false };
        self.others.add(&gone);
        true
    }

    /// Those that were reached come first, and what is not told apart comes last.
    fn rows(&self) -> Vec<Host> {
        let mut rows: Vec<Host> = self.hosts.values().cloned().collect();
        rows.sort_by_key(|host| host.connections == 0);
        if self.others != Host::default() {
            rows.push(Host { target: OTHERS.to_owned(), ..self.others.clone() });
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use sandbox_core::UserId;

    use super::*;

    fn connection(verdict: &str, refused: bool, address: Option<&str>, sent: u64) -> What {
        What::Connection {
            target: "a.example:443".to_owned(),
            address: address.map(str::to_owned),
            rule: None,
            verdict: verdict.to_owned(),
            refused,
            secret: None,
            times: 2,
            sent,
            received: 0,
            elapsed: Duration::ZERO,
        }
    }

    #[test]
    fn what_the_network_could_not_do_is_no_connection() {
        let counts = |what| seen(what).map(|host| (host.connections, host.refused, host.failed)).unwrap();
        assert_eq!(counts(connection("allowed", false, Some("1.2.3.4:443"), 9)), (2, 0, 0));
        assert_eq!(counts(connection("no_rule", true, None, 0)), (0, 2, 0));
        for verdict in ["no_such_name", "names_unanswered", "unreachable", "refused", "broken_off"] {
            assert_eq!(counts(connection(verdict, false, None, 0)), (0, 0, 2), "{verdict}");
        }
        let before_anything_left = connection("tls_name_hidden", true, Some("1.2.3.4:443"), 0);
        assert_eq!(counts(before_anything_left), (0, 2, 0));
        let ended_later = connection("transfer_used_up", true, Some("1.2.3.4:443"), 9);
        assert_eq!(counts(ended_later), (2, 2, 0));
    }

    fn host(number: usize, connections: u64) -> Host {
        let refused = u64::from(connections == 0);
        Host { target: format!("{number}.example:443"), connections, refused, sent_bytes: 7, ..Host::default() }
    }

    #[test]
    fn a_host_that_was_reached_is_told_whatever_was_refused_before() {
        let mut table = Table::default();
        (0..MOST + 100).for_each(|number| table.add(&host(number, 0)));
        table.add(&host(9_999, 1));
        let rows = table.rows();
        assert_eq!((rows.len(), rows[0].target.as_str()), (MOST + 1, "9999.example:443"));
        let others = &rows[MOST];
        assert_eq!((others.target.as_str(), others.refused, others.sent_bytes), (OTHERS, 101, 707));
        assert_eq!(rows.iter().map(|row| row.refused).sum::<u64>(), (MOST + 100) as u64, "none is forgotten");
    }

    #[test]
    fn hosts_beyond_the_limit_are_counted_with_their_bytes() {
        let mut table = Table::default();
        (0..MOST + 3).for_each(|number| table.add(&host(number, 1)));
        table.add(&Host { target: OTHERS.to_owned(), refused: 40, ..Host::default() });
        let rows = table.rows();
        let expected = Host {
            target: OTHERS.to_owned(),
            connections: 3,
            refused: 40,
            failed: 0,
            sent_bytes: 21,
            received_bytes: 0,
        };
        assert_eq!((rows.len(), rows.last()), (MOST + 1, Some(&expected)));
    }

    #[test]
    fn events_that_came_too_fast_are_counted() {
        let owner = UserId::local();
        let (ours, anothers) = (SessionId::random(&owner).unwrap(), SessionId::random(&owner).unwrap());
        let (journal, mut events) = broadcast::channel(4);
        let tell = |session: &SessionId| {
            journal.send(Event::now(session, &owner, connection("allowed", false, None, 1))).unwrap();
        };
        (0..10).for_each(|_| tell(&ours));
        tell(&anothers);
        let (heard, missed) = happened(&mut events, &ours);
        assert_eq!((heard.len(), missed), (3, 7));
        assert_eq!(happened(&mut events, &ours).1, 0);
    }
}
