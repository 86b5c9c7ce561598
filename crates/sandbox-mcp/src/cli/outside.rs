//! The way out of a single sandbox, served by a process that stays outside while the sandbox runs.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sandbox_core::{Denial, Door, Policy, SandboxSpec, exec::Exec};
use sandbox_egress::{Adviser, Doors, Engine, Reader, Record, Resolver, Rules, Setup};
use sandbox_linux::Leash;

use super::{descriptors, screen};
use crate::sandboxes::{Event, History, JobEvent, Session, way_out};

/// Refusals that are told.
const TOLD: usize = 5;
/// What a kernel counts about its network, at most.
const COUNTS: usize = 64 << 10;
/// Nobody waits longer for a hint.
const A_MOMENT: Duration = Duration::from_secs(1);

/// Serves doors until the sandbox is gone; then an account of what was refused. What was connected goes to the history.
pub(super) fn serve(doors: Vec<(Door, OwnedFd)>, leash: &Leash, rules: Rules, spec: &SandboxSpec, state: &Path) {
    descriptors::raise_limit();
    let history = History::new(state);
    let refused: Arc<Mutex<BTreeMap<String, Denial>>> = Arc::default();
    let served = runtime().and_then(|runtime| {
        let (kept, history, spec) = (Arc::clone(&refused), history.clone(), spec.clone());
        let (limits, reader) = (way_out::limits(&spec.policy), Reader::Person);
        let (adviser, policy, known) = (Adviser { reader, limits }, spec.policy.name.clone(), rules.clone());
        let recorder = move |record: Record| {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(denial) = way_out::denial(&record, &policy, &adviser, &known).filter(|_| kept.len() < TOLD) {
                kept.entry(denial.target.clone()).or_insert(denial);
            }
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
    let refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
    let account = serde_json::to_vec(&refused.values().collect::<Vec<_>>()).unwrap_or_default();
    let _ = leash.account(&account);
    history.flush();
}

/// Says what was refused.
pub(super) fn tell(account: &[u8]) {
    say(&serde_json::from_slice::<Vec<Denial>>(account).unwrap_or_default());
}

/// Whether something in a sandbox without a network wanted to go somewhere, as its kernel counts it.
pub(super) async fn wanted_network(session: &Session) -> bool {
    if session.facts().spec.policy.reaches_something() {
        return false;
    }
    let Ok(client) = session.client().await else { return false };
    let count = Exec::argv(["cat", "/proc/net/snmp", "/proc/net/snmp6"]);
    let Ok(mut counted) = client.spawn(&count).await else { return false };
    let mut told = Vec::new();
    let look = async {
        while let Ok(JobEvent::Output { data, .. }) = counted.next().await {
            told.extend(data);
            if told.len() > COUNTS {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(A_MOMENT, look).await;
    let told = String::from_utf8_lossy(&told);
    sandbox_linux::packets_without_route(&told, &told) > 0
}

/// Says why nothing could be connected where nothing is refused one by one, because there is nowhere to go.
pub(super) fn tell_of_no_network(policy: &Policy) {
    screen::tell(&format!(
        "something in the command wanted to connect, and the policy `{}` gives no network. A policy with one has it: --policy \
         yolo-2 (public web sites), yolo-3 (package registries too), or one of your own (docs/network.md)",
        policy.name
    ));
}

/// The same, of what is already known: what to do about it is said once.
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
