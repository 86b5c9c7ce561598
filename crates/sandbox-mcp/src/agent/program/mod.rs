//! Programs that work as agents inside the sandbox: Claude Code and OpenCode, as their makers publish them, headless and
//! without asking for each step. The sandbox is their wall: their own is off, and what lies in the workspace configures
//! nothing unless the operator says so.
//!
//! [`install`] fetches a program for this user; [`Program`] is the agent. Its model is lent to the sandbox ([`lending`]) and
//! counted outside ([`purse`]); what it prints is understood by a [`dialect`].

mod chance;
mod claude_code;
mod content;
mod dialect;
mod home;
mod install;
mod kind;
mod leftover;
mod lending;
mod opencode;
mod placing;
mod prompt;
mod purse;
mod question;
mod registry;
mod store;
#[cfg(test)]
mod tests;
mod unpack;
mod work;

use std::sync::Arc;

use async_trait::async_trait;
use sandbox_core::Tool;

use super::{Agent, Assignment, Finished, Offer, Ready, WorkError, Worker};
use crate::config::{ModelApi, SecretSource, Settings};

pub use install::{InstallError, LATEST, install};
pub use kind::{CLAUDE_CODE, KINDS, Kind, OPENCODE};
pub use leftover::end_after;
pub use store::{Installed, Store};

use dialect::Dialect;

/// A program that is there, as an agent.
pub(super) struct Program {
    kind: &'static Kind,
    installed: Installed,
}

impl Program {
    /// Whether it can work here; if not, how to get it.
    pub fn offer(settings: &Settings, kind: &'static Kind) -> Offer {
        Offer { name: kind.name, about: kind.about, agent: Self::ready(settings, kind) }
    }

    fn ready(settings: &Settings, kind: &'static Kind) -> Result<Ready, String> {
        let Some(installed) = Store::of(&settings.state).find(kind) else {
            return Err(format!("`sandbox-mcp agents install {}`", kind.name));
        };
        let model = &settings.model;
        if *kind == CLAUDE_CODE && model.api != ModelApi::Messages {
            return Err("it only speaks `model_api = \"messages\"`".to_owned());
        }
        if model.needs_key() && !model.has_key() {
            return Err(match &model.key {
                SecretSource::Variable(name) => format!("set {name}, or `model_url` to a model of your own"),
                _ => format!("see to it that {} is there", model.key_in_words()),
            });
        }
        let why = format!("version {} is installed", installed.version);
        Ok(Ready { agent: Arc::new(Self { kind, installed }), why })
    }

    fn dialect(&self) -> Box<dyn Dialect> {
        match *self.kind == CLAUDE_CODE {
            true => Box::new(claude_code::ClaudeCode::default()),
            false => Box::new(opencode::OpenCode::default()),
        }
    }
}

#[async_trait]
impl Agent for Program {
    fn name(&self) -> &'static str {
        self.kind.name
    }

    fn tools(&self) -> Vec<Tool> {
        vec![self.installed.tool(self.kind)]
    }

    async fn work(&self, task: Assignment, worker: &Worker<'_>) -> Result<Finished, WorkError> {
        work::work(self, task, worker).await
    }
}
