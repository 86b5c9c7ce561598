//! The way out of a single sandbox, served by a process that stays outside while the sandbox runs.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
};

use sandbox_core::{Denial, Door, SandboxSpec};
use sandbox_egress::{Doors, Engine, Record, Resolver, Rules, Setup};
use sandbox_linux::Leash;

use super::{descriptors, screen};
use crate::sandboxes::way_out;

/// Refusals that are told.
const TOLD: usize = 5;

/// Serves doors until the sandbox is gone; then an account of what was refused.
pub(super) fn serve(doors: Vec<(Door, OwnedFd)>, leash: &Leash, rules: Rules, spec: &SandboxSpec) -> Vec<u8> {
    descriptors::raise_limit();
    let refused: Arc<Mutex<BTreeMap<String, Denial>>> = Arc::default();
    let served = runtime().and_then(|runtime| {
        let kept = Arc::clone(&refused);
        let policy = spec.policy.name.clone();
        let recorder = move |record: Record| {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(denial) = way_out::denial(&record, &policy).filter(|_| kept.len() < TOLD) {
                kept.entry(denial.target.clone()).or_insert(denial);
            }
        };
        runtime.block_on(async {
            let resolver = Resolver::of_this_machine();
            let limits = way_out::limits(&spec.policy);
            let engine = Engine::new(Setup { limits, ..Setup::new(rules, resolver, recorder) });
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
    serde_json::to_vec(&refused.values().collect::<Vec<_>>()).unwrap_or_default()
}

/// Says what was refused.
pub(super) fn tell(account: &[u8], policy: &str) {
    say(&serde_json::from_slice::<Vec<Denial>>(account).unwrap_or_default(), policy);
}

/// The same, of what is already known.
pub(super) fn say(denials: &[Denial], policy: &str) {
    for denial in denials {
        screen::tell(&denial.message);
    }
    if !denials.is_empty() {
        screen::tell(&format!(
            "the policy `{policy}` decides what is reached; choose another with --policy (`sandbox-mcp doctor` lists them)"
        ));
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
