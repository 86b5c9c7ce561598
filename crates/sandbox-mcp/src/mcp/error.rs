//! Why a tool could not do what it was asked. The text goes to the model, so it says what to do next.

use sandbox_core::{Denial, InvalidId};

use crate::{
    agent::TaskError,
    config::NotAllowed,
    sandboxes::{
        ClientError, SandboxesError,
        access::{self, Refused},
    },
};

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// No tool has this name. The only one that is an error of the protocol.
    #[error("there is no tool `{0}`; tools/list names them")]
    UnknownTool(String),
    /// The arguments are not what the tool takes.
    #[error("{tool}: {what}")]
    Arguments {
        /// Which tool.
        tool: String,
        /// What is wrong, in words.
        what: String,
    },
    /// An argument makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// A name that is none.
    #[error("{0}")]
    InvalidId(#[from] InvalidId),
    /// The operator does not let models have this.
    #[error("{0}")]
    NotAllowed(#[from] NotAllowed),
    /// The centre said no.
    #[error("{0}")]
    Sandboxes(#[from] SandboxesError),
    /// The task could not begin.
    #[error("{0}")]
    NoTask(#[from] TaskError),
    /// No failure: the answer comes with a task of the protocol.
    #[error("the task goes on")]
    Task(Box<rmcp::model::Task>),
    /// The executor said no.
    #[error("{0}")]
    Executor(#[from] ClientError),
    /// The sandbox ended under way.
    #[error("the sandbox {id} has ended: {why}. Create a new one with create_sandbox")]
    Ended {
        /// Which one.
        id: String,
        /// What ended it.
        why: String,
    },
    /// The policy refused it.
    #[error("{}", access::in_words(.0))]
    Denied(Vec<Denial>),
    /// A person must answer first.
    #[error("a person must answer before this call can go on")]
    Later,
    /// The caller does not want the answer any more.
    #[error("the call was cancelled; its processes were ended")]
    Cancelled,
}

impl From<Refused> for ToolError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Denied(denials) => Self::Denied(denials),
            Refused::Unclear(what) => Self::Invalid(what),
            Refused::Later => Self::Later,
        }
    }
}
