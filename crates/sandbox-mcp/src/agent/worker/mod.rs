//! An agent's hands: all that it does in its sandbox goes through here, and somebody may watch.
//!
//! Dropping it kills what it started: stopping a task is dropping its future.

mod asking;
mod commands;
mod files;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use sandbox_core::{Denial, JobId, exec::Exit};
use sandbox_executor::protocol::Target;
use serde_json::Value;

use super::{Bill, Budget, Conversation, Mailbox, Note, Tokens, Trail, words};
use crate::{
    config::{Price, Settings},
    sandboxes::{
        ClientError, SandboxesError, Session, Snapshot,
        access::{Person, Refused},
        patience,
    },
};

pub use commands::{Command, Progress, Ran};
pub use files::FileError;

/// Refusals that a task's answer names.
const KEPT_DENIALS: usize = 50;

/// Why an agent could not finish.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The sandbox did not do what was asked.
    #[error(transparent)]
    Sandbox(#[from] SandboxesError),
    /// The policy did not let a command run.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// A command that had to work did not.
    #[error("{}", words::of_failure(command, *exit, output))]
    Command {
        /// What was run.
        command: String,
        /// How it ended.
        exit: Exit,
        /// What it printed.
        output: String,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A budget is used up.
    #[error("{0}")]
    Budget(String),
    /// Somebody asked it to stop.
    #[error("the task was stopped before it had ended. What it made is kept")]
    Interrupted,
    /// The agent itself cannot go on; what to do about it is said.
    #[error("{0}")]
    Agent(String),
}

impl From<ClientError> for WorkError {
    fn from(error: ClientError) -> Self {
        Self::Sandbox(error.into())
    }
}

/// Works in one sandbox.
pub struct Worker<'a> {
    session: Arc<Session>,
    trail: Trail,
    person: &'a dyn Person,
    mailbox: Mailbox,
    budget: Budget,
    /// What it cost and what was refused so far; also known to the receipt, which may outlive this worker.
    last: Arc<Mutex<(Bill, Vec<Denial>)>>,
    conversation: Conversation,
    deadline: Instant,
    /// Started and not seen to end.
    running: Mutex<Vec<JobId>>,
    /// /workspace as it was when somebody last looked, and how long that took.
    seen: tokio::sync::Mutex<(Snapshot, Duration)>,
}

/// What a worker is made of.
pub(super) struct Equipment<'a> {
    pub session: Arc<Session>,
    pub trail: Trail,
    pub person: &'a dyn Person,
    pub mailbox: Mailbox,
    pub budget: Budget,
    pub conversation: Conversation,
    pub deadline: Instant,
    pub before: Snapshot,
    pub last: Arc<Mutex<(Bill, Vec<Denial>)>>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(equipment: Equipment<'a>) -> Self {
        let Equipment { session, trail, person, mailbox, budget, conversation, deadline, before, last } = equipment;
        Self {
            session,
            trail,
            person,
            mailbox,
            budget,
            last,
            conversation,
            deadline,
            running: Mutex::default(),
            seen: tokio::sync::Mutex::new((before, Duration::ZERO)),
        }
    }

    /// The sandbox.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// What the operator wants.
    pub fn settings(&self) -> &Settings {
        self.session.settings()
    }

    /// What is said to the agent meanwhile.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// How much time is left.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// What was refused so far.
    pub fn denials(&self) -> Vec<Denial> {
        self.last().1.clone()
    }

    /// Tells whoever watches what is being done, in plain words.
    pub async fn say(&self, step: &str) {
        self.note(Note::step(step)).await;
    }

    /// Tells whoever watches, and writes it down.
    pub async fn note(&self, note: Note) {
        self.trail.note(note).await;
    }

    /// What it may cost.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// What it has cost so far.
    pub fn bill(&self) -> Bill {
        self.last().0.clone()
    }

    /// What a model costs, where that is known.
    pub fn price(&self, model: &str) -> Option<Price> {
        self.settings().model.price(model)
    }

    /// A model has answered: counts what that cost, and tells. Whether more may be spent is asked with [`Worker::may_go_on`].
    pub async fn spent(&self, model: &str, tokens: Tokens) {
        let price = self.price(model);
        let bill = {
            let mut last = self.last();
            last.0.add(model, tokens, price);
            last.0.clone()
        };
        self.note(Note::Cost(bill)).await;
    }

    /// Somebody else has counted, and this is all that it cost.
    pub fn settle(&self, bill: Bill) {
        self.last().0 = bill;
    }

    /// Fails when a budget is used up.
    pub fn may_go_on(&self) -> Result<(), WorkError> {
        self.bill().exhausted(&self.budget).map_or(Ok(()), |why| Err(WorkError::Budget(why)))
    }

    /// Keeps what the agent wants to know when it next works in this sandbox. Kept outside; returns at once. It is written soon, and at the latest when the work is over.
    pub fn remember(&self, memory: Value) {
        self.conversation.keep(memory);
    }

    /// The same, of little, and it is written when this returns.
    pub fn remember_now(&self, memory: Value) {
        self.conversation.keep(memory);
        self.conversation.flush();
    }

    /// Notes a refusal; the newest are kept.
    pub fn denied(&self, denial: Denial) {
        let denials = &mut self.last().1;
        if denials.len() == KEPT_DENIALS {
            denials.remove(0);
        }
        denials.push(denial);
    }

    fn last(&self) -> MutexGuard<'_, (Bill, Vec<Denial>)> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> MutexGuard<'_, Vec<JobId>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.conversation.flush();
        let left = std::mem::take(&mut *self.running());
        if left.is_empty() {
            return;
        }
        let session = self.session.clone();
        let kill = async move {
            let Ok(client) = session.client().await else { return };
            for job in left {
                if let Err(error) = patience::soon(client.signal(Target::Job(job), 9)).await {
                    tracing::debug!("{job} of {} could not be killed: {error}", session.id());
                }
            }
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(kill);
        }
    }
}
