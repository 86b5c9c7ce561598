//! What works on tasks. An agent is chosen by name; all of them work through [`worker::Worker`], inside a sandbox.

mod execute;
mod mock;
mod task;
mod worker;

use std::str::FromStr;

pub use execute::{execute, policy};
pub use task::{Content, TaskError, TaskFile, TaskPlace, TaskRequest, TaskResult, TaskStatus};
pub use worker::{Note, WorkError};

use worker::Worker;

/// Something that works on tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Agent {
    /// No model: it shows that everything around an agent works.
    #[default]
    Mock,
}

impl Agent {
    /// All that this build has.
    pub const ALL: [Self; 1] = [Self::Mock];

    /// What callers call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mock => "mock",
        }
    }

    /// The names of all, for messages.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    async fn work(self, worker: &Worker<'_>, task: &str) -> Result<String, WorkError> {
        match self {
            Self::Mock => mock::work(worker, task).await,
        }
    }
}

/// Nobody here has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no agent `{name}` in this release. Available: {available}. Leave `agent` out to use the default", available = Agent::names())]
pub struct UnknownAgent {
    name: String,
}

impl FromStr for Agent {
    type Err = UnknownAgent;

    fn from_str(name: &str) -> Result<Self, UnknownAgent> {
        let found = Self::ALL.into_iter().find(|agent| agent.name() == name);
        found.ok_or_else(|| UnknownAgent { name: name.chars().take(60).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_agent_is_answered_with_those_that_exist() {
        let message = "claud".parse::<Agent>().map_err(|error| error.to_string());
        assert!(message.is_err_and(|message| message.contains("`claud`") && message.contains("Available: mock")));
    }
}
