//! What an agent is, and what it is given. Every agent is reached through this and nothing else.
//!
//! [`Agent::work`] starts it on a task in a sandbox. While it works it tells what happens ([`super::Note`], by way of its
//! [`Worker`]), takes messages out of its [`Mailbox`], and may be interrupted; what it remembers of a sandbox is kept
//! outside ([`Worker::remember`]), so that the next task there goes on with the same conversation. What came of it is its
//! [`Finished`]. Whoever drops the future stops the work at once: what was started inside is killed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use sandbox_core::Tool;
use serde_json::Value;
use tokio::sync::{Notify, watch};

use super::{Budget, WorkError, Worker};

/// Something that works on tasks.
#[async_trait]
pub trait Agent: Send + Sync {
    /// What callers call it.
    fn name(&self) -> &'static str;

    /// Programs of this machine that it needs inside.
    fn tools(&self) -> Vec<Tool> {
        Vec::new()
    }

    /// Works on a task to its end.
    async fn work(&self, task: Assignment, worker: &Worker<'_>) -> Result<Finished, WorkError>;
}

/// A task as an agent gets it.
#[derive(Debug)]
pub struct Assignment {
    /// What is to be done, in plain words.
    pub task: String,
    /// The model to use, if somebody said.
    pub model: Option<String>,
    /// What it may cost.
    pub budget: Budget,
    /// What this agent remembered when it last worked in this sandbox.
    pub memory: Option<Value>,
    /// Files that the task came with, by their paths.
    pub files: Vec<String>,
}

/// What came of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finished {
    /// What the agent says about it, to the person who asked.
    pub output: String,
}

/// What is said to an agent while it works. Clones are the same mailbox.
#[derive(Clone, Default)]
pub struct Mailbox(Arc<Shared>);

#[derive(Default)]
struct Shared {
    messages: Mutex<Messages>,
    came: Notify,
    interrupted: watch::Sender<bool>,
}

#[derive(Default)]
struct Messages {
    unread: Vec<String>,
    /// The agent has ended.
    is_closed: bool,
}

impl Mailbox {
    /// Says something to the agent. It reads it before its next step. False where nobody will read it: the agent has ended,
    /// or was asked to stop.
    pub fn say(&self, message: impl Into<String>) -> bool {
        let mut messages = self.messages();
        if messages.is_closed || *self.0.interrupted.borrow() {
            return false;
        }
        messages.unread.push(message.into());
        self.0.came.notify_one();
        true
    }

    /// The agent has ended: whatever is said from now on is for another task.
    pub fn close(&self) {
        self.messages().is_closed = true;
    }

    /// Asks the agent to stop where it is and keep what it remembers.
    pub fn interrupt(&self) {
        self.0.interrupted.send_replace(true);
    }

    /// What was said since somebody last looked.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.messages().unread)
    }

    /// Whether nothing was said since somebody last looked.
    pub fn is_empty(&self) -> bool {
        self.messages().unread.is_empty()
    }

    /// Returns when something was said. Cancel-safe.
    pub async fn message(&self) {
        loop {
            if !self.is_empty() {
                return;
            }
            self.0.came.notified().await;
        }
    }

    /// Returns when the agent was asked to stop. Cancel-safe.
    pub async fn interrupted(&self) {
        let mut interrupted = self.0.interrupted.subscribe();
        if interrupted.wait_for(|interrupted| *interrupted).await.is_err() {
            std::future::pending().await
        }
    }

    fn messages(&self) -> MutexGuard<'_, Messages> {
        self.0.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_to_an_agent_that_has_ended_or_stops_is_not_taken() {
        let [ended, stopped] = [Mailbox::default(), Mailbox::default()];
        ended.close();
        stopped.interrupt();
        assert!(!ended.say("also make it blue") && !stopped.say("also make it blue"));
        assert!(ended.is_empty() && stopped.is_empty());
    }

    #[tokio::test]
    async fn what_is_said_is_read_once_and_an_interruption_is_not_missed() {
        let mailbox = Mailbox::default();
        assert!(mailbox.say("also make it blue"));
        mailbox.message().await;
        assert_eq!(mailbox.take(), ["also make it blue"]);
        assert!(mailbox.take().is_empty());
        let other = mailbox.clone();
        other.interrupt();
        mailbox.interrupted().await;
    }
}
