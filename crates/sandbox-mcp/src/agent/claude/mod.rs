//! The built-in agent.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Agent, Assignment, Finished, Ready, WorkError, Worker};
use crate::config::Settings;

pub(super) struct Claude;

impl Claude {
    pub fn offer(settings: &Settings) -> Result<Ready, String> {
        let model = &settings.model;
        let target = &model.upstream.target;
        if model.needs_key() && !model.has_key() {
            let key = match &model.key {
                crate::config::SecretSource::Variable(name) => format!("set {name}"),
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

    async fn work(&self, _: Assignment, _: &Worker<'_>) -> Result<Finished, WorkError> {
        Err(WorkError::Agent("not yet".to_owned()))
    }
}
