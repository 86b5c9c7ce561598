//! The receipt of a task: what was asked, what was done step by step, and what came of it. One folder for each task in the
//! state folder, with `receipt.json` and `receipt.html`; while the task goes on a lock is held there, and steps are written
//! as they happen, so that a task whose program was killed is reported as that.

mod hosts;
mod html;
mod store;

use std::{
    collections::BTreeSet,
    fs::File,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use sandbox_core::Denial;
use serde::Serialize;
use serde_json::Value;

use super::{Bill, Budget, Change, Note, Step, TaskId, TaskStatus, Trail, words};
use crate::{
    config::Settings,
    sandboxes::{Addresses, Changes, Session},
};

pub use hosts::Host;
use hosts::Hosts;
pub(super) use store::stop_asked;
pub use store::{Listed, ask_to_stop, find, goes_on, list, note_results, recover, recover_one};

/// A file with what is needed to recognize it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Product {
    /// Its path in /workspace.
    pub path: String,
    /// Its length, where somebody looked.
    pub size_bytes: Option<u64>,
    /// Of its content; nothing where it was too large to be read.
    pub sha256: Option<String>,
}

/// Everything about a task.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Receipt {
    pub task_id: TaskId,
    pub session_id: String,
    pub user_id: String,
    pub status: String,
    pub task: String,
    pub output: String,
    pub error: Option<String>,
    pub agent: String,
    pub agent_why: String,
    /// Milliseconds since 1970.
    pub began: u64,
    pub duration_seconds: f64,
    pub files_given: Vec<String>,
    pub files_created: Vec<Product>,
    pub files_changed: Vec<Product>,
    pub files_deleted: Vec<String>,
    pub steps: Vec<Step>,
    pub steps_left_out: usize,
    pub hosts: Vec<Host>,
    /// Events of this server that came faster than they were heard; there may have been connections among them.
    pub hosts_missed: u64,
    /// What commands asked package managers for.
    pub packages: Vec<String>,
    pub denials: Vec<Denial>,
    /// Secrets whose hosts were reached, by name, and the model's key if it was asked. Their values are nowhere.
    pub secrets: Vec<String>,
    pub cost: Bill,
    pub budget_usd: f64,
    pub budget_tokens: u64,
    pub budget_turns: u32,
    /// The policy.
    pub level: String,
    pub image: String,
    pub backend: String,
    /// How each limit and wall was held, and by what.
    pub enforced: Value,
}

/// What is known when a task begins.
pub struct Beginning<'a> {
    /// Its name.
    pub task_id: &'a TaskId,
    /// Its text.
    pub task: &'a str,
    /// Who works on it.
    pub agent: &'a str,
    /// Why.
    pub why: &'a str,
    /// Files that came with it.
    pub files: &'a [String],
    /// What it may cost.
    pub budget: Budget,
}

/// A receipt that is being written. Dropped before it is closed, the task was cancelled.
pub struct Writing {
    receipt: Receipt,
    session: Arc<Session>,
    trail: Trail,
    hosts: Hosts,
    settings: Arc<Settings>,
    began: Instant,
    /// Their key is left out: a receipt is shown to others.
    addresses: Addresses,
    folder: Option<PathBuf>,
    _lock: Option<File>,
    /// What the last moment knows, for a task that is cancelled.
    pub last: Arc<Mutex<(Bill, Vec<Denial>)>>,
}

/// What is known when a task has ended.
pub struct Ending {
    /// How.
    pub status: TaskStatus,
    /// What the agent says.
    pub output: String,
    /// What went wrong.
    pub error: Option<String>,
    /// What it cost.
    pub cost: Bill,
    /// What was refused.
    pub denials: Vec<Denial>,
}

impl Writing {
    /// Begins a receipt. One that cannot be written is missed, but stops nobody.
    pub fn begin(session: &Arc<Session>, settings: &Arc<Settings>, trail: &Trail, beginning: &Beginning<'_>) -> Self {
        let facts = session.facts();
        let Beginning { task_id, task, agent, why, files, budget } = beginning;
        let receipt = Receipt {
            task_id: (*task_id).clone(),
            session_id: session.id().to_string(),
            user_id: session.owner().to_string(),
            status: TaskStatus::Running.as_str().to_owned(),
            task: task.chars().take(20_000).collect(),
            output: String::new(),
            error: None,
            agent: (*agent).to_owned(),
            agent_why: (*why).to_owned(),
            began: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
            duration_seconds: 0.0,
            files_given: files.iter().take(1000).cloned().collect(),
            files_created: Vec::new(),
            files_changed: Vec::new(),
            files_deleted: Vec::new(),
            steps: Vec::new(),
            steps_left_out: 0,
            hosts: Vec::new(),
            hosts_missed: 0,
            packages: Vec::new(),
            denials: Vec::new(),
            secrets: Vec::new(),
            cost: Bill::default(),
            budget_usd: budget.usd,
            budget_tokens: budget.tokens,
            budget_turns: budget.turns,
            level: facts.spec.policy.name.clone(),
            image: facts.spec.image.to_string(),
            backend: facts.backend.clone(),
            enforced: serde_json::to_value(&facts.enforcement).unwrap_or_default(),
        };
        let opened = store::open(&settings.state, task_id);
        if let Err(error) = &opened {
            tracing::warn!("the task leaves no receipt: {error}");
        }
        let (folder, lock) = opened.ok().unzip();
        trail.hide(session.addresses());
        if let Some(folder) = &folder {
            trail.write_to(&folder.join(store::STEPS));
        }
        let writing = Self {
            receipt,
            session: session.clone(),
            trail: trail.clone(),
            hosts: Hosts::listen(session),
            settings: settings.clone(),
            began: Instant::now(),
            addresses: session.addresses(),
            folder,
            _lock: lock,
            last: Arc::default(),
        };
        writing.write();
        writing
    }

    /// Where it will be.
    pub fn folder(&self) -> Option<&PathBuf> {
        self.folder.as_ref()
    }

    /// The task has ended. Where nobody could look what changed, its steps tell what is known.
    pub async fn close(mut self, changes: Option<&Changes>, ending: Ending) {
        let Ending { status, output, error, cost, denials } = ending;
        match changes {
            None => self.take_up_files(),
            Some(changes) => {
                self.receipt.files_created = store::products(&self.session, &changes.created).await;
                self.receipt.files_changed = store::products(&self.session, &changes.changed).await;
                self.receipt.files_deleted =
                    changes.deleted.iter().map(|path| String::from_utf8_lossy(&path.0).into_owned()).collect();
            }
        }
        self.receipt.output = output;
        self.receipt.error = error;
        self.end(status, cost, denials);
    }

    /// Files of which a step says that they are new, different or gone.
    fn take_up_files(&mut self) {
        let (steps, _) = self.trail.steps();
        let files = |asked: Change| {
            let path = |step: &Step| match &step.note {
                Note::File { path, change } if *change == asked => Some(path.clone()),
                _ => None,
            };
            steps.iter().filter_map(path).collect::<BTreeSet<String>>().into_iter()
        };
        let product = |path| Product { path, size_bytes: None, sha256: None };
        self.receipt.files_created = files(Change::Created).map(product).collect();
        self.receipt.files_changed = files(Change::Changed).map(product).collect();
        self.receipt.files_deleted = files(Change::Deleted).collect();
    }

    fn end(&mut self, status: TaskStatus, cost: Bill, denials: Vec<Denial>) {
        (self.receipt.cost, self.receipt.denials) = (cost, denials);
        self.receipt.status = status.as_str().to_owned();
        self.receipt.duration_seconds = (self.began.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
        (self.receipt.steps, self.receipt.steps_left_out) = self.trail.steps();
        self.hosts.write(&self.settings, &mut self.receipt);
        self.receipt.packages = packages(&self.receipt.steps);
        self.write();
        self.folder = None;
    }

    fn write(&self) {
        let Some(folder) = &self.folder else { return };
        let mut json = serde_json::to_value(&self.receipt).unwrap_or_default();
        hide(&mut json, &self.addresses);
        if let Err(error) = store::write(folder, &json) {
            tracing::warn!("the receipt of {} cannot be written: {error}", self.receipt.task_id);
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if self.folder.is_some() {
            let (cost, denials) = std::mem::take(&mut *self.last.lock().unwrap_or_else(PoisonError::into_inner));
            let (status, why) = stopped(&self.session);
            self.receipt.error = Some(why.to_owned());
            self.take_up_files();
            self.end(status, cost, denials);
        }
    }
}

/// How a task ended that was stopped, and in words: by somebody, or because its program ends and leaves the sandbox to the
/// next one.
pub(super) fn stopped(session: &Session) -> (TaskStatus, &'static str) {
    match session.is_left() {
        true => (TaskStatus::Interrupted, store::INTERRUPTED),
        false => (TaskStatus::Cancelled, "the task was stopped before it had ended. What it made is kept"),
    }
}

/// Takes the key of a sandbox's addresses out of all texts.
fn hide(value: &mut Value, addresses: &Addresses) {
    match value {
        Value::String(text) => *text = addresses.hide(text).into_owned(),
        Value::Array(items) => items.iter_mut().for_each(|item| hide(item, addresses)),
        Value::Object(fields) => fields.values_mut().for_each(|field| hide(field, addresses)),
        _ => {}
    }
}

/// The shell command of a call, if it is one. Some tools take nothing else, and some are called with an object.
fn command_of(tool: &str, input: &str) -> Option<String> {
    // Claude Code writes it with a capital.
    let is_shell = tool.eq_ignore_ascii_case("bash");
    match serde_json::from_str::<Value>(input) {
        Ok(Value::Object(fields)) if is_shell => fields.get("command")?.as_str().map(str::to_owned),
        // A tool of another kind: `command` with nothing else beside it is one.
        Ok(Value::Object(fields)) if fields.len() == 1 => fields.get("command")?.as_str().map(str::to_owned),
        _ => is_shell.then(|| input.to_owned()),
    }
}

fn packages(steps: &[Step]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for step in steps {
        let Note::Call { tool, input, .. } = &step.note else { continue };
        if let Some(command) = command_of(tool, input) {
            found.extend(words::packages(&command));
        }
    }
    found.sort();
    found.dedup();
    found.truncate(200);
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use sandbox_core::{SessionId, UserId};
    use serde_json::json;

    use super::*;
    use crate::inward::Name;

    #[test]
    fn an_address_is_in_a_receipt_without_its_key_wherever_it_was_said() {
        let session = SessionId::random(&UserId::local()).unwrap();
        let addresses = Addresses::default();
        let name = addresses.name_or(|| Name::random(&session)).unwrap();
        let said = format!("Look at {}", name.url(40_000));
        let mut receipt = json!({
            "output": said, "error": null, "duration_seconds": 0.5,
            "steps": [{"at": 1.0, "note": "result", "call": "1", "well": true, "summary": said, "seconds": 0.1}],
        });
        hide(&mut receipt, &addresses);
        let text = receipt.to_string();
        assert!(!text.contains(name.key()) && text.matches("Look at http://KEY.").count() == 2, "{text}");
        assert_eq!((&receipt["duration_seconds"], &receipt["error"]), (&json!(0.5), &Value::Null));
    }
}
