//! The way out of a sandbox that this server looks after: its doors are served here, by the policy's rules.
//!
//! What happens on it is written down, and kept for a while so that whoever ran a command can be told what it was refused.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use sandbox_core::{Bytes, Denial, Policy, Reason, Sandbox, policy::Network};
use sandbox_egress::{
    Adviser, Doors, Engine, Limits, Loan, OWN_PATH, OwnTools, Reader, Record, Refused as Wish, Resolver, Rule, Rules,
    Secrets, SecretsError, Setup, Vault, Verdict,
};
use tokio::task::JoinHandle;

use super::{Journal, SandboxesError, What, carriers::Carriers};
use crate::config::Settings;

/// Refusals that are kept.
const KEPT: usize = 16;

/// Tells programs inside where the tools of their sandbox are.
const TOOLS_VARIABLE: &str = "SANDBOX_MCP_URL";

/// What all ways out of a server share.
pub(super) struct Outside {
    /// Who reads what is said about refusals.
    reader: Reader,
    resolver: Resolver,
    /// Those who carry bytes, from the first sandbox on that has a way out.
    carriers: OnceLock<Carriers>,
}

impl Outside {
    pub(super) fn new(reader: Reader) -> Self {
        Self { reader, resolver: Resolver::of_this_machine(), carriers: OnceLock::new() }
    }

    pub(super) fn reader(&self) -> Reader {
        self.reader
    }
}

/// The way out of one sandbox.
pub struct WayOut {
    engine: Arc<Engine>,
    /// The policy's own.
    rules: Rules,
    serving: Mutex<Option<JoinHandle<()>>>,
    refused: Arc<Untold>,
    unreached: Arc<Untold>,
}

/// The last connections that came to nothing, until somebody is told.
#[derive(Default)]
struct Untold(Mutex<VecDeque<Denial>>);

impl Outside {
    /// Serves the doors of a sandbox from now on; nothing if it has none.
    pub(super) async fn open(
        &self,
        sandbox: &dyn Sandbox,
        rules: Rules,
        journal: &Journal,
        secrets: Secrets,
        own: Option<OwnTools>,
    ) -> Result<Option<WayOut>, SandboxesError> {
        let doors = sandbox.doors().await?;
        if doors.is_empty() {
            return Ok(None);
        }
        let spec = &sandbox.facts().spec;
        let opening = SandboxesError::io("opening the way out");
        let (carrier, doors) = self
            .carriers()
            .and_then(|carriers| {
                let carrier = carriers.next();
                let _within = carrier.enter();
                Ok((carrier, Doors::new(doors)?))
            })
            .map_err(opening)?;
        let (refused, unreached): (Arc<Untold>, Arc<Untold>) = Default::default();
        let recorder = {
            let (journal, id, owner) = (journal.clone(), spec.id.clone(), spec.owner.clone());
            move |record: Record| journal.record(&id, &owner, event(record))
        };
        let (limits, reader) = (limits(&spec.policy), self.reader);
        let on_refusal = {
            let (policy, rules, adviser) = (spec.policy.name.clone(), rules.clone(), Adviser { reader, limits });
            let (refused, unreached) = (Arc::clone(&refused), Arc::clone(&unreached));
            Box::new(move |record: &Record| {
                denial(record, &policy, &adviser, &rules).into_iter().for_each(|denial| refused.keep(denial));
                unreached_by(record, &policy, &adviser, &rules).into_iter().for_each(|denial| unreached.keep(denial));
            })
        };
        let setup = Setup::new(rules.clone(), self.resolver.clone(), recorder);
        let engine = Engine::new(Setup { limits, on_refusal, secrets, reader, own, ..setup });
        let serving = carrier.spawn(Arc::clone(&engine).serve(doors));
        Ok(Some(WayOut { engine, rules, serving: Mutex::new(Some(serving)), refused, unreached }))
    }

    fn carriers(&self) -> io::Result<&Carriers> {
        if let Some(carriers) = self.carriers.get() {
            return Ok(carriers);
        }
        let carriers = Carriers::start()?;
        // Whoever comes second has started some for nothing, and they end.
        Ok(self.carriers.get_or_init(|| carriers))
    }
}

impl WayOut {
    /// What was granted holds from now on, and nothing that was granted before.
    pub fn add_rules(&self, granted: Vec<Rule>) {
        self.engine.set_rules(self.rules.with_granted(granted));
    }

    /// Connections that go on, as far as they have come.
    pub fn open_connections(&self) -> Vec<Record> {
        self.engine.open_connections()
    }

    /// What the policy refused and nobody was told yet. Which command a connection belongs to is not known.
    pub fn take_refused(&self) -> Vec<Denial> {
        self.refused.take()
    }

    /// The same of what nobody refused, but could not be reached. Most programs say less about it.
    pub fn take_unreached(&self) -> Vec<Denial> {
        self.unreached.take()
    }

    /// Lends a service, until the loan is dropped.
    pub fn lend(&self, vault: Vault) -> Result<Loan, SecretsError> {
        self.engine.lend(vault)
    }

    /// Ends every connection, and gives up the doors soon.
    pub fn shut(&self) {
        self.engine.close();
    }

    /// The same, and waits for it.
    pub async fn close(&self) {
        self.shut();
        let serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(serving) = serving {
            let _ = serving.await;
        }
    }
}

impl Drop for WayOut {
    fn drop(&mut self) {
        self.engine.close();
    }
}

impl Untold {
    fn take(&self) -> Vec<Denial> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).into()
    }

    fn keep(&self, denial: Denial) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.contains(&denial) {
            return;
        }
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(denial);
    }
}

/// How much a policy lets a sandbox use of its way out.
pub fn limits(policy: &Policy) -> Limits {
    let limits = &policy.limits;
    let bytes = |limit: Option<Bytes>| limit.map(|Bytes(count)| count);
    Limits {
        connections: limits.connections as usize,
        bandwidth: bytes(limits.bandwidth),
        bytes: bytes(limits.transfer),
    }
}

/// What a policy comes to here.
pub fn rules(policy: &Policy, settings: &Settings) -> Result<Rules, SandboxesError> {
    if !policy.reaches_something() {
        return Ok(Rules::default());
    }
    Rules::of_policy(policy, &settings.mirrors().places).map_err(|error| {
        let step = format!("reading the network rules of the policy `{}`", policy.name);
        sandbox_core::Error::Step { step, why: error.to_string() }.into()
    })
}

/// Package managers inside are told where this machine's own get their packages, where that can be reached.
pub fn tell_of_mirrors(env: &mut BTreeMap<String, String>, policy: &Policy, settings: &Settings) {
    if matches!(policy.network, Network::None | Network::Web) {
        return;
    }
    for (name, value) in &settings.mirrors().variables {
        env.entry(name.clone()).or_insert_with(|| value.clone());
    }
}

/// Programs inside are told where the tools of their sandbox are.
pub fn tell_of_tools(env: &mut BTreeMap<String, String>, policy: &Policy) {
    if policy.reaches_something() {
        env.entry(TOOLS_VARIABLE.to_owned()).or_insert_with(|| format!("http://127.0.0.1:3128{OWN_PATH}"));
    }
}

/// The refusal that a record tells of, if the policy refused it.
pub fn denial(record: &Record, policy: &str, adviser: &Adviser, rules: &Rules) -> Option<Denial> {
    let Verdict::Denied(reason) = record.verdict else { return None };
    reason.is_policy().then(|| not_reached(record, reason, policy, adviser, rules))
}

/// The same of what the network could not do.
pub fn unreached_by(record: &Record, policy: &str, adviser: &Adviser, rules: &Rules) -> Option<Denial> {
    let Verdict::Denied(reason) = record.verdict else { return None };
    let told = !reason.is_policy() && reason != sandbox_egress::Reason::BrokenOff;
    told.then(|| not_reached(record, reason, policy, adviser, rules))
}

fn not_reached(
    record: &Record,
    reason: sandbox_egress::Reason,
    policy: &str,
    adviser: &Adviser,
    rules: &Rules,
) -> Denial {
    let (target, rule, secret) = (record.target.as_str(), record.rule.as_deref(), record.secret.as_deref());
    // A connection beyond the limit is ended before it has named anything.
    let wanted = if target.starts_with('(') { "a connection" } else { target };
    let of = secret.map(|secret| format!(" (secret `{secret}`)")).unwrap_or_default();
    Denial {
        reason: Reason::Network,
        target: target.to_owned(),
        rule: adviser.limit(reason).or(record.rule.clone()).unwrap_or_else(|| reason.code().to_owned()),
        level: policy.to_owned(),
        message: format!("{wanted} was not reached ({}): {}{of}", reason.code(), reason.in_words()),
        how_to_ask: adviser.advise(&Wish { reason, target, rule, secret }, rules),
        verdict: Some(reason.code().to_owned()),
    }
}

/// A record as the history has it.
pub fn event(record: Record) -> What {
    let (verdict, refused) = match record.verdict {
        Verdict::Allowed => ("allowed", false),
        Verdict::Denied(reason) => (reason.code(), reason.is_policy()),
    };
    What::Connection {
        target: record.target,
        address: record.address.map(|address| address.to_string()),
        rule: record.rule,
        verdict: verdict.to_owned(),
        refused,
        secret: record.secret,
        times: record.times,
        sent: record.sent,
        received: record.received,
        elapsed: record.duration,
    }
}
