//! What can go wrong with a sandbox, by what the caller can do about it.

use crate::{Control, Holding, SessionId};

/// The result of asking for something.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Something that was asked for did not happen.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request makes no sense; another one would work.
    #[error("{what}. {fix}")]
    Invalid {
        /// What is wrong with it.
        what: String,
        /// What to ask instead.
        fix: String,
    },
    /// This host cannot do it as it is set up.
    #[error("{what}: {why}. {fix}")]
    Unavailable {
        /// What cannot be had.
        what: String,
        /// Why not.
        why: String,
        /// What to change on the host.
        fix: String,
    },
    /// A limit or wall of the policy cannot be held as promised.
    #[error(
        "the {control} limit cannot be held here as the policy promises (it would be {held:?}: {by}). \
         Run `sandbox-mcp doctor` for the fix, or accept it with allow_unenforced = [\"{control}\"]",
        held = holding.held, by = holding.by
    )]
    Unenforceable {
        /// Which one.
        control: Control,
        /// How far it could be held.
        holding: Holding,
    },
    /// A step of making the sandbox failed.
    #[error("could not make the sandbox: {step} failed: {why}")]
    Step {
        /// The step with its arguments.
        step: String,
        /// The system's answer.
        why: String,
    },
    /// There is no such sandbox (any more), or it is not the caller's.
    #[error("there is no sandbox {0}: it was cleaned up, never existed, or belongs to somebody else. Create a new one")]
    NotFound(SessionId),
    /// The sandbox is over.
    #[error("the sandbox {id} has ended: {why}")]
    Ended {
        /// Which one.
        id: SessionId,
        /// What ended it.
        why: String,
    },
    /// The operating system said no.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// Its answer.
        source: std::io::Error,
    },
}

impl Error {
    /// An I/O error with what was being done.
    pub fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
