//! The way out of a single sandbox, served by a process that stays outside while the sandbox runs.

use std::{
    os::fd::OwnedFd,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use sandbox_core::{Denial, Door, SandboxSpec, exec::Exit};
use sandbox_egress::{Adviser, Doors, Engine, Reader, Record, Resolver, Rules, Setup};
use sandbox_linux::Leash;
use serde::{Deserialize, Serialize};

use super::{descriptors, screen};
use crate::sandboxes::{Event, History, no_network, way_out};

/// Refusals that are told.
const TOLD: usize = 5;

/// What is told when a sandbox has ended: the first connections of each kind, one for each target.
#[derive(Default, Serialize, Deserialize)]
struct Account {
    refused: Vec<Denial>,
    unreached: Vec<Denial>,
}

impl Account {
    fn keep(kept: &mut Vec<Denial>, denial: Option<Denial>) {
        kept.extend(denial.filter(|new| kept.len() < TOLD && kept.iter().all(|old| old.target != new.target)));
    }
}

/// Serves doors until the sandbox is gone; then an account of what was refused. What was connected goes to the history.
pub(super) fn serve(doors: Vec<(Door, OwnedFd)>, leash: &Leash, rules: Rules, spec: &SandboxSpec, state: &Path) {
    descriptors::raise_limit();
    let history = History::new(state);
    let account: Arc<Mutex<Account>> = Arc::default();
    let served = runtime().and_then(|runtime| {
        let (kept, history, spec) = (Arc::clone(&account), history.clone(), spec.clone());
        let (limits, reader) = (way_out::limits(&spec.policy), Reader::Person);
        let (adviser, policy, known) = (Adviser { reader, limits }, spec.policy.name.clone(), rules.clone());
        let recorder = move |record: Record| {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            Account::keep(&mut kept.refused, way_out::denial(&record, &policy, &adviser, &known));
            Account::keep(&mut kept.unreached, way_out::unreached_by(&record, &policy, &adviser, &known));
            history.record(Event::now(&spec.id, &spec.owner, way_out::event(record)));
        };
        runtime.block_on(async {
            let resolver = Resolver::of_this_machine();
            let engine = Engine::new(Setup { limits, reader, ..Setup::new(rules, resolver, recorder) });
            let serving = tokio::spawn(Arc::clone(&engine).serve(Doors::new(doors)?));
            let _ = leash.released().await;
            engine.close();
            let _ = serving.await;
            Ok(())
        })
    });
    if let Err(error) = served {
        tracing::warn!("the way out could not be served: {error}");
    }
    let account = account.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = leash.account(&serde_json::to_vec(&*account).unwrap_or_default());
    history.flush();
}

/// Says what was refused and, of a command that failed, what else was not reached.
pub(super) fn tell(account: &[u8], exit: Exit) {
    let account: Account = serde_json::from_slice(account).unwrap_or_default();
    say(&account.refused);
    if exit != Exit::Code(0) {
        say_unreached(&account.unreached);
    }
}

/// Says why nothing could be connected where nothing is refused one by one, because there is nowhere to go; and writes it down.
pub(super) fn tell_of_no_network(spec: &SandboxSpec, state: &Path) {
    say(&[no_network::denial(&spec.policy)]);
    let history = History::new(state);
    history.record(Event::now(&spec.id, &spec.owner, no_network::event(1)));
    history.flush();
}

/// Says what could not be reached although it was allowed.
pub(super) fn say_unreached(unreached: &[Denial]) {
    unreached.iter().take(TOLD).for_each(|denial| screen::tell(&denial.message));
}

/// Says what was refused: what to do about it is said once.
pub(super) fn say(denials: &[Denial]) {
    let mut advised: Vec<&str> = Vec::new();
    for denial in denials {
        screen::tell(&format!("{} [policy `{}`]", denial.message, denial.level));
        if !advised.contains(&denial.how_to_ask.as_str()) {
            advised.push(&denial.how_to_ask);
        }
    }
    advised.into_iter().for_each(screen::tell);
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
