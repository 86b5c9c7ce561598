//! The filter for system calls: which profile a policy names, and what becomes of it.
//!
//! [`builtin`] has the named profiles and [`oci`] reads those of one's own; both become [`rules`], get a [`floor`] that
//! none can do without, and are [`compile`]d to the kernel's filter language. A filter answers EPERM for what is known
//! and not allowed, and ENOSYS for `clone3` and for numbers that it does not know, so that libraries fall back. It
//! never kills. Foreign ABIs (32-bit, x32) get ENOSYS for everything.

mod builtin;
mod compile;
mod export;
mod floor;
#[cfg(test)]
mod machine;
mod names;
mod oci;
mod rules;

use std::{collections::HashMap, fmt, path::PathBuf, sync::OnceLock};

use sandbox_core::{
    Error,
    policy::{Privileges, SystemCalls},
};
use serde::{Deserialize, Serialize};

pub use builtin::BuiltIn;
pub use compile::{lacking, to_bytes};
use rules::{Answer, Profile};

use crate::sys::Instruction;

/// What a filter leaves out, by how the sandbox's limits are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Narrowing {
    /// Refuse memory that a sum over processes cannot see: shared memory without a file, System V, memfd.
    pub visible_memory_only: bool,
    /// Refuse changing which processors may be used.
    pub fixed_processors: bool,
    /// The sandbox has a kernel of its own, which grants some of what this machine's asks a capability for. Refuse that to
    /// whoever has only these capabilities, as a bit set.
    pub lenient_kernel: Option<u64>,
}

/// The profile that a policy names, read and checked.
pub enum Chosen {
    /// One that is always there.
    BuiltIn(BuiltIn),
    /// One of the operator's own.
    Own {
        /// Where it was read.
        path: PathBuf,
        /// What it says.
        profile: Profile,
    },
}

/// A filter on its way to the launcher: by name where it has one, so that it is compiled there once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Filter {
    BuiltIn(BuiltIn, Narrowing),
    /// At most [`compile::LONGEST`] instructions, as the kernel reads them.
    Own(#[serde(with = "serde_bytes")] Vec<u8>),
}

impl Chosen {
    /// Finds the profile; reads the file if it is one of the operator's own.
    pub fn find(privileges: &Privileges) -> Result<Self, Error> {
        let path = match &privileges.system_calls {
            SystemCalls::Minimal => return Ok(Self::BuiltIn(BuiltIn::Minimal)),
            SystemCalls::Standard => return Ok(Self::BuiltIn(BuiltIn::Standard)),
            SystemCalls::Build => return Ok(Self::BuiltIn(BuiltIn::Build)),
            SystemCalls::File(path) => path,
        };
        let invalid = |error: oci::ProfileError| Error::Invalid {
            what: format!("the system call profile {}: {error}", path.display()),
            fix: error.fix().into(),
        };
        let profile = oci::read(path, privileges.capabilities).map_err(invalid)?;
        Ok(Self::Own { path: path.clone(), profile })
    }

    /// The filter that the launcher is told about.
    pub fn filter(&self, narrowing: Narrowing) -> Filter {
        match self {
            Self::BuiltIn(profile) => Filter::BuiltIn(*profile, narrowing),
            Self::Own { profile, .. } => {
                Filter::Own(to_bytes(&compile::compile(&floor::beneath(profile.clone(), narrowing))))
            }
        }
    }

    /// The filter itself, as the kernel reads it, for whoever installs it without the launcher.
    pub fn instructions(&self, narrowing: Narrowing) -> Vec<u8> {
        to_bytes(&compile::compile(&floor::beneath(self.profile(), narrowing)))
    }

    /// The same in the form that engines and OCI runtimes read: it allows exactly what the filter allows.
    pub fn document(&self, narrowing: Narrowing) -> Result<serde_json::Value, Error> {
        export::document(&floor::beneath(self.profile(), narrowing)).ok_or_else(|| Error::Invalid {
            what: format!("{self} has too many conditions on arguments to be told to an engine"),
            fix: "Use minimal, standard or build, or name calls instead of testing their arguments".into(),
        })
    }

    fn profile(&self) -> Profile {
        match self {
            Self::BuiltIn(name) => name.profile(),
            Self::Own { profile, .. } => profile.clone(),
        }
    }
}

/// For people: which profile, and how many calls can be made with it.
impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every sandbox is labelled, and counting takes longer than naming.
        static COUNTS: [OnceLock<usize>; 3] = [const { OnceLock::new() }; 3];
        match self {
            Self::BuiltIn(profile) => {
                let count = COUNTS[*profile as usize].get_or_init(|| count(profile.profile()));
                write!(f, "seccomp allow-list `{}`, {count} calls", profile.name())
            }
            Self::Own { path, profile } => {
                write!(f, "seccomp profile {}, {} calls", path.display(), count(profile.clone()))
            }
        }
    }
}

/// How many calls can be made with some arguments at least.
fn count(profile: Profile) -> usize {
    let profile = floor::beneath(profile, Narrowing::default());
    let possible = |number: u32| {
        let rules = profile.rules(number);
        // What follows a rule without tests is never reached.
        let last = rules.iter().position(|rule| rule.tests.is_empty());
        let reached = rules.iter().take(last.map_or(rules.len(), |last| last + 1)).map(|rule| rule.answer);
        reached.chain(last.is_none().then_some(profile.otherwise)).any(|answer| answer == Answer::Allow)
    };
    names::all().filter(|(_, number)| possible(*number)).count()
}

/// Compiled filters of the built-in profiles, which most sandboxes share.
#[derive(Default)]
pub struct Filters {
    compiled: HashMap<(BuiltIn, Narrowing), Vec<Instruction>>,
}

impl Filters {
    /// The instructions of a filter.
    pub fn instructions(&mut self, filter: &Filter) -> Vec<Instruction> {
        match filter {
            Filter::Own(bytes) => compile::from_bytes(bytes),
            &Filter::BuiltIn(name, narrowing) => {
                let compile = || compile::compile(&floor::beneath(name.profile(), narrowing));
                self.compiled.entry((name, narrowing)).or_insert_with(compile).clone()
            }
        }
    }
}
