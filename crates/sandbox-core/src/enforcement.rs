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

impl Control {
    /// Each of them.
    pub const ALL: [Self; 13] = [
        Self::Memory,
        Self::Cpu,
        Self::Pids,
        Self::Disk,
        Self::Tmp,
        Self::Time,
        Self::Network,
        Self::Filesystem,
        Self::Privileges,
        Self::SystemCalls,
        Self::Commands,
        Self::ExecutorIdentity,
        Self::SecurityModule,
    ];

    /// What on this machine would make the kernel hold it, where there is such a thing.
    pub(crate) fn remedy(self) -> Option<&'static str> {
        match self {
            Self::Memory | Self::Cpu | Self::Pids => Some(
                "a cgroup of your own; under systemd `systemd-run --user --scope -p Delegate=yes sandbox-mcp …` gives one",
            ),
            Self::Commands => Some("Landlock: Linux 5.13 or newer, with user namespaces for your programs"),
            Self::SecurityModule => Some("the named profile, loaded and enforced by AppArmor or SELinux"),
            Self::ExecutorIdentity => Some("a policy that does not grant sys_ptrace"),
            _ => None,
        }
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

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "not held here",
            Self::Supervised => "watched by this program, not held by the kernel",
            Self::Kernel => "held by the kernel",
        })
    }
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
        let enough = |control: &Control, held: Held| match held {
            Held::Kernel => true,
            Held::Supervised => !policy.strict || policy.allow_unenforced.contains(control),
            Held::None => policy.allow_unenforced.contains(control),
        };
        let mut refused = self.clone();
        refused.0.retain(|control, holding| !enough(control, holding.held));
        if refused.0.is_empty() {
            return Ok(());
        }
        let accept = refused.0.keys().chain(&policy.allow_unenforced).copied().collect();
        Err(Error::Unenforceable { refused, accept })
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
    fn everything_that_cannot_be_held_is_refused_at_once_and_in_plain_words() {
        let mut enforcement = supervised_memory();
        enforcement.hold(Control::Time, Held::Supervised, "the executor's clock");
        enforcement.hold(Control::Commands, Held::None, "no Landlock");
        let mut policy = Policy { strict: true, ..Policy::default() };
        policy.allow_unenforced.insert(Control::Disk);
        let Err(refused) = enforcement.satisfies(&policy) else { panic!("strict holds") };
        let text = refused.to_string();
        for part in [
            "memory (watched by this program, not held by the kernel: sum over processes), ",
            "commands (not held here: no Landlock)",
            "allow_unenforced = [\"memory\", \"disk\", \"time\", \"commands\"]",
            "The kernel would hold memory with a cgroup of your own",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("Supervised") && !text.contains("None"), "{text}");
        let Error::Unenforceable { accept, .. } = refused else { panic!("{text}") };
        policy.allow_unenforced = accept;
        assert!(enforcement.satisfies(&policy).is_ok());
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
