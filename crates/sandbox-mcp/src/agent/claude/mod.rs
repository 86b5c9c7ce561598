//! The built-in agent: our own loop around a model, on the host's side. Only what its tools do happens in the sandbox, so
//! the key of the model is nowhere inside.

mod compaction;
mod prompt;
mod size;
mod tools;
mod turns;
mod watchdog;

use std::sync::Arc;

use async_trait::async_trait;

use super::{Agent, Assignment, Finished, Ready, WorkError, Worker, model::Model};
use crate::config::{SecretSource, Settings};
use turns::Turns;

/// The built-in agent.
pub(super) struct Claude;

impl Claude {
    /// Whether a model is configured; if not, how to do that.
    pub fn offer(settings: &Settings) -> Result<Ready, String> {
        let model = &settings.model;
        let target = &model.upstream.target;
        if model.needs_key() && !model.has_key() {
            let key = match &model.key {
                SecretSource::Variable(name) => format!("set {name}"),
                _ => format!("see to it that {} is there", model.key_in_words()),
            };
            return Err(format!("{key}, or set `model_url` to a model of your own, such as http://127.0.0.1:11434/v1"));
        }
        let why = match model.is_named {
            true => format!("`model_url` names a model at {target}"),
            false => format!("the key of {target} comes from {}", model.key_in_words()),
        };
        Ok(Ready { agent: Arc::new(Self), why })
    }
}

#[async_trait]
impl Agent for Claude {
    fn name(&self) -> &'static str {
        "claude"
    }

    async fn work(&self, task: Assignment, worker: &Worker<'_>) -> Result<Finished, WorkError> {
        let settings = worker.settings();
        let model = Model::of(&settings.model, settings).await;
        let model = model.map_err(|error| WorkError::Agent(error.to_string()))?;
        let mut turns = Turns::begin(&model, task, worker);
        tokio::select! {
            finished = turns.work() => finished,
            () = worker.mailbox().interrupted() => Err(WorkError::Interrupted),
        }
    }
}
