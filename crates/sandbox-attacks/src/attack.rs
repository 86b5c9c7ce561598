//! What an attack is: a name, a sentence, the walls that it tests, and how it is run.

use std::{fmt, str::FromStr};

use futures::future::BoxFuture;
use sandbox_core::{Control, Facts};
use serde::{Deserialize, Serialize};

use crate::{canary::Canary, report::Finding, workbench::Bench};

/// One thing that must not work.
#[derive(Clone, Copy)]
pub struct Attack {
    /// Its name, the same in the program inside.
    pub name: &'static str,
    /// What kind of harm it would do.
    pub group: Group,
    /// What it tries, in one sentence.
    pub tries: &'static str,
    /// What stands in its way; each alone may be enough.
    pub walls: &'static [Wall],
    /// What should come of it with this policy, held in this way.
    pub expected: fn(&Facts) -> Expected,
    pub(crate) way: Way,
}

/// How an attack is run.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// In a sandbox with others.
    Inside,
    /// The same; what it saw is compared with what is outside.
    Judged(fn(&str, &Canary, &Facts) -> Finding),
    /// In a sandbox of its own, whose executor must be well afterwards.
    Alone,
    /// In a sandbox of its own with small limits; meanwhile everybody else must be well.
    Exhausting(Room),
    /// From outside.
    Outside(fn(Bench) -> BoxFuture<'static, Finding>),
}

/// How small the limits of a sandbox are that is to be exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// All of them small.
    Small,
    /// The same; what is taken is memory that the kernel keeps for the sandbox.
    Kernels,
    /// The same with a /tmp beyond the memory.
    LargeTmp,
    /// The same with so little disk that it is full of empty files in a moment.
    TinyDisk,
}

/// What should come of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// It must not work.
    Held,
    /// The policy grants it: no breach if it works.
    Granted,
    /// The sandbox's own label says that this is not held here: no breach if it works, and good to know.
    Unpromised,
}

/// What kind of harm an attack would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Getting out of the sandbox, or into the kernel or the executor.
    Escape,
    /// Using up what is everybody's.
    Exhaustion,
    /// Seeing what belongs to others.
    Leakage,
    /// Reaching blocked commands in disguise.
    Disguise,
    /// Reaching a network.
    Network,
    /// Leading the file interface astray.
    Files,
}

impl Group {
    /// All of them, in the order in which they are run and shown.
    pub const ALL: [Self; 6] =
        [Self::Escape, Self::Leakage, Self::Network, Self::Disguise, Self::Files, Self::Exhaustion];
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Escape => "escape",
            Self::Exhaustion => "exhaustion",
            Self::Leakage => "leakage",
            Self::Disguise => "disguise",
            Self::Network => "network",
            Self::Files => "files",
        })
    }
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(|group| group.to_string()).join(", ");
        Self::ALL
            .into_iter()
            .find(|group| group.to_string() == text)
            .ok_or_else(|| format!("the groups are {}", names()))
    }
}

/// What stands between a sandbox and the rest, more finely than [`Control`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each name is the thing itself")]
pub enum Wall {
    MountNamespace,
    PidNamespace,
    NetworkNamespace,
    IpcNamespace,
    UtsNamespace,
    CgroupNamespace,
    UserNamespace,
    ReadOnlyRoot,
    ProcMasks,
    Devices,
    Capabilities,
    NoNewPrivileges,
    Identity,
    SystemCallFilter,
    ExecutorHardening,
    Descriptors,
    Environment,
    FilePaths,
    MemoryLimit,
    PidsLimit,
    CpuLimit,
    DiskLimit,
    TmpLimit,
    TimeLimit,
    UserLimits,
    CleanUp,
    Programs,
}

impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("{self:?}");
        for (index, letter) in name.char_indices() {
            if letter.is_uppercase() && index > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{}", letter.to_ascii_lowercase())?;
        }
        Ok(())
    }
}

impl Wall {
    /// The control of a policy that it belongs to.
    pub fn control(self) -> Control {
        match self {
            Self::MountNamespace | Self::PidNamespace | Self::IpcNamespace | Self::UtsNamespace => Control::Filesystem,
            Self::CgroupNamespace | Self::ReadOnlyRoot | Self::ProcMasks | Self::Devices => Control::Filesystem,
            Self::FilePaths | Self::Environment | Self::CleanUp | Self::Descriptors => Control::Filesystem,
            Self::NetworkNamespace => Control::Network,
            Self::UserNamespace | Self::Capabilities | Self::NoNewPrivileges | Self::Identity => Control::Privileges,
            Self::SystemCallFilter => Control::SystemCalls,
            Self::ExecutorHardening => Control::ExecutorIdentity,
            Self::MemoryLimit => Control::Memory,
            Self::PidsLimit | Self::UserLimits => Control::Pids,
            Self::CpuLimit => Control::Cpu,
            Self::DiskLimit => Control::Disk,
            Self::TmpLimit => Control::Tmp,
            Self::TimeLimit => Control::Time,
            Self::Programs => Control::Commands,
        }
    }
}

impl Attack {
    pub(crate) const fn new(
        group: Group,
        way: Way,
        name: &'static str,
        walls: &'static [Wall],
        tries: &'static str,
    ) -> Self {
        Self { name, group, tries, walls, expected: crate::expectation::held, way }
    }

    pub(crate) const fn expecting(self, expected: fn(&Facts) -> Expected) -> Self {
        Self { expected, ..self }
    }

    pub(crate) const fn by(self, way: Way) -> Self {
        Self { way, ..self }
    }
}
