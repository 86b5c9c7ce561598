//! Advice on commands before they run: a plain answer to what the policy denies, instead of a puzzling failure.
//!
//! It is advice and no wall. A script is read as a shell would ([`syntax`]) and followed ([`look`], [`run`]) through
//! variables, wrappers, shells and other interpreters to the programs that it names. What is computed cannot be seen
//! from here and is called unknown; it runs, and the kernel has the last word on what it can do. Nothing here opens a
//! file or starts a program, and all of it ends within bounds whatever the text is.

mod braces;
mod builtins;
mod code;
// Shared with the tests that run them for real.
#[cfg(test)]
#[path = "../../tests/support/disguise.rs"]
mod disguise;
mod expand;
mod explain;
mod look;
mod output;
mod paths;
mod rules;
mod run;
mod state;
mod syntax;
#[cfg(test)]
mod tests;
mod wrappers;

use std::fmt;

use sandbox_core::{
    Denial, Policy, Reason,
    exec::{Exec, Program},
    policy::User,
};

pub use rules::{RuleError, Rules};

use look::{Input, Look};
use state::{State, without_marks};

/// What can be said about a command in advance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing speaks against it.
    Allowed,
    /// The policy denies it.
    Denied(Refused),
    /// Something in it cannot be seen from here. It may run.
    Unknown(Hidden),
}

/// A command that is denied: the first such thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// For programs: denied by name, or not on the list of what is allowed.
    pub reason: Reason,
    /// The rule as the policy says it; `commands.allow`, if it is not on that list.
    pub rule: String,
    /// The command as it was found, shortened.
    pub target: String,
    /// Where it was found, unless it stands there openly: "inside `sh -c`", "in a command substitution".
    pub place: Option<String>,
    /// Why, as the rest of a sentence.
    pub why: String,
    /// What to do instead, as a sentence.
    pub instead: String,
}

/// What cannot be seen from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// What hides it, as a part of a sentence.
    pub what: String,
    /// Where, shortened.
    pub target: String,
}

/// What the policy says about this command.
pub fn advise(exec: &Exec, policy: &Policy) -> Verdict {
    match Rules::parse(&policy.commands) {
        Ok(rules) => rules.judge(exec),
        // A policy with such a rule is refused when it is loaded.
        Err(error) => Verdict::Unknown(Hidden { what: error.to_string(), target: String::new() }),
    }
}

impl Rules {
    /// What they say about this command.
    pub fn judge(&self, exec: &Exec) -> Verdict {
        let mut look = Look::new(self, State::new(&exec.env, exec.cwd.as_deref()));
        let length = match &exec.program {
            Program::Shell(text) => text.len(),
            Program::Argv(argv) => argv.iter().map(|word| word.len() + 1).sum(),
        };
        if length > syntax::LONGEST {
            let what = syntax::Unreadable::TooLong.to_string();
            return Verdict::Unknown(Hidden { what, target: String::new() });
        }
        match &exec.program {
            Program::Shell(text) => drop(look.script(&without_marks(text), "", &Input::Outside)),
            Program::Argv(argv) => {
                let argv: Vec<String> = argv.iter().map(|word| without_marks(word)).collect();
                look.run(&argv, &Input::Outside);
                // No shell stands between: what would be its own word, such as `true`, is a program here.
                if let Some(name) = argv.first().filter(|name| !self.allows(name, exec.cwd.as_deref())) {
                    look.deny_unlisted(paths::base(name), &argv.join(" "));
                }
            }
        }
        look.uncalled();
        match (look.denied, look.hidden) {
            (Some(refused), _) => Verdict::Denied(refused),
            (None, Some(hidden)) => Verdict::Unknown(hidden),
            (None, None) => Verdict::Allowed,
        }
    }
}

impl Verdict {
    /// The refusal in the form that all refusals have, if it is one.
    pub fn denial(&self, policy: &Policy) -> Option<Denial> {
        let Self::Denied(refused) = self else { return None };
        let instead = match policy.privileges.user {
            User::Root => explain::to_root(&refused.rule),
            User::Sandbox => None,
        };
        Some(Denial {
            reason: refused.reason,
            target: refused.target.clone(),
            rule: refused.rule.clone(),
            level: policy.name.clone(),
            message: refused.to_string(),
            how_to_ask: instead.unwrap_or_else(|| refused.instead.clone()),
            verdict: None,
        })
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.target)?;
        if let Some(place) = &self.place {
            write!(f, " ({place})")?;
        }
        write!(f, " was not run: {}.", self.why)
    }
}

impl fmt::Display for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if self.target.is_empty() { Ok(()) } else { write!(f, ": `{}`", self.target) }
    }
}
