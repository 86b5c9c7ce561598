//! The honest label: for every limit and wall of a sandbox, how it is held.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{Error, Policy};

/// A limit or a wall that a policy asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each name is the thing itself")]
pub enum Control {
    Memory,
    Cpu,
    Pids,
    Disk,
    Tmp,
    Time,
    Network,
    Filesystem,
    Privileges,
    SystemCalls,
    /// Which programs can be executed: held only where a policy has a list, or removes denied ones.
    Commands,
    ExecutorIdentity,
    SecurityModule,
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
            Self::Disk => "disk",
            Self::Tmp => "tmp",
            Self::Time => "time",
            Self::Network => "network",
            Self::Filesystem => "filesystem",
            Self::Privileges => "privileges",
            Self::SystemCalls => "system_calls",
            Self::Commands => "commands",
            Self::ExecutorIdentity => "executor_identity",
            Self::SecurityModule => "security_module",
        })
    }
}

/// Who holds a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// Nobody.
    None,
    /// We watch, and stop what goes over: it can overshoot for a moment.
    Supervised,
    /// The kernel: it cannot be passed.
    Kernel,
}

/// How one control is held, in words that a person can check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Who holds it.
    pub held: Held,
    /// By what: "cgroup v2 memory.max", "sum over processes every 10 to 100 ms".
    pub by: String,
}

/// Every control of a sandbox with how it is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Enforcement(pub BTreeMap<Control, Holding>);

impl Enforcement {
    /// Notes how a control is held.
    pub fn hold(&mut self, control: Control, held: Held, by: impl Into<String>) {
        self.0.insert(control, Holding { held, by: by.into() });
    }

    /// A promise that cannot be kept is an error: `none` always, unless the operator accepted it by name,
    /// and `supervised` where the policy is strict.
    pub fn satisfies(&self, policy: &Policy) -> Result<(), Error> {
        for (&control, holding) in &self.0 {
            let accepted = policy.allow_unenforced.contains(&control);
            let enough = match holding.held {
                Held::Kernel => true,
                Held::Supervised => !policy.strict || accepted,
                Held::None => accepted,
            };
            if !enough {
                return Err(Error::Unenforceable { control, holding: holding.clone() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supervised_memory() -> Enforcement {
        let mut enforcement = Enforcement::default();
        enforcement.hold(Control::Memory, Held::Supervised, "sum over processes");
        enforcement
    }

    #[test]
    fn strict_refuses_what_is_only_watched() {
        let mut policy = Policy::default();
        assert!(supervised_memory().satisfies(&policy).is_ok());
        policy.strict = true;
        assert!(supervised_memory().satisfies(&policy).is_err());
        policy.allow_unenforced.insert(Control::Memory);
        assert!(supervised_memory().satisfies(&policy).is_ok());
    }

    #[test]
    fn what_nobody_holds_is_refused_until_accepted_by_name() {
        let mut enforcement = Enforcement::default();
        enforcement.hold(Control::Disk, Held::None, "no way on this host");
        let mut policy = Policy::default();
        assert!(enforcement.satisfies(&policy).is_err());
        policy.allow_unenforced.insert(Control::Disk);
        assert!(enforcement.satisfies(&policy).is_ok());
    }
}
