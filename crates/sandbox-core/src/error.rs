//! What can go wrong with a sandbox, by what the caller can do about it.

use std::collections::BTreeSet;

use crate::{Control, Enforcement, SessionId};

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
    /// Limits or walls of the policy cannot be held as promised.
    #[error("{}", unenforceable(refused, accept))]
    Unenforceable {
        /// All of them, with how far each could be held.
        refused: Enforcement,
        /// What would have to be accepted: these, and what already is.
        accept: BTreeSet<Control>,
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

fn unenforceable(refused: &Enforcement, accept: &BTreeSet<Control>) -> String {
    let each = refused.0.iter().map(|(control, holding)| format!("{control} ({}: {})", holding.held, holding.by));
    let quoted: Vec<String> = accept.iter().map(|control| format!("\"{control}\"")).collect();
    let mut text = format!(
        "not everything can be held here as the policy promises: {}. To accept that, write allow_unenforced = [{}] in \
         the settings or in the policy",
        each.collect::<Vec<_>>().join(", "),
        quoted.join(", ")
    );
    let mut remedies: Vec<(&str, Vec<String>)> = Vec::new();
    for control in refused.0.keys() {
        let Some(remedy) = control.remedy() else { continue };
        match remedies.iter_mut().find(|(known, _)| *known == remedy) {
            Some((_, controls)) => controls.push(control.to_string()),
            None => remedies.push((remedy, vec![control.to_string()])),
        }
    }
    for (remedy, controls) in remedies {
        text.push_str(&format!(". The kernel would hold {} with {remedy}", controls.join(" and ")));
    }
    text
}
