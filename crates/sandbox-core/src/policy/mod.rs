//! Everything that a sandbox may do, as plain data.
//!
//! [`presets`] has the named ones, [`written`] what people write themselves, [`meet`] what is left of two when both must
//! hold, [`table`] how it is shown. Nothing here knows how a wall is built.

mod capabilities;
mod meet;
mod network;
mod presets;
mod table;
mod written;

use std::{collections::BTreeSet, fmt, path::PathBuf, str::FromStr, time::Duration};

pub use capabilities::{Capabilities, UnknownCapability};
pub use network::{Network, NetworkRule, Ports};
pub use presets::{DEFAULT_PRESET, PRESETS, STANDARD_COMMANDS, YOLO_LEVELS};
pub use table::markdown;
pub use written::{Examples, WrittenPolicy, WrittenPolicyError};

use serde::{Deserialize, Serialize};

use crate::{Bytes, Control};

/// What a sandbox may do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// The preset that this is, or the name that its author gave it.
    pub name: String,
    /// How much of the machine it may use.
    pub limits: Limits,
    /// How far its connections may reach.
    pub network: Network,
    /// What is decided before that, rule by rule; the first that speaks of a target decides.
    #[serde(default)]
    pub network_rules: Vec<NetworkRule>,
    /// Ports of this machine's loopback that it may reach, as `host.internal`.
    #[serde(default)]
    pub host_ports: BTreeSet<u16>,
    /// What of its files it may change.
    pub filesystem: Filesystem,
    /// Who its commands are, and what they may ask of the kernel.
    pub privileges: Privileges,
    /// Which commands are answered before they run.
    pub commands: Commands,
    /// Refuse to start where a limit would only be watched instead of held by the kernel.
    #[serde(default)]
    pub strict: bool,
    /// Controls that the operator accepts to go without.
    #[serde(default)]
    pub allow_unenforced: BTreeSet<Control>,
}

/// How much of the machine a sandbox may use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// All memory of all its processes together.
    pub memory: Bytes,
    /// Processors, in thousandths: 1500 is one and a half.
    pub cpu_millis: u32,
    /// Processes and threads.
    pub pids: u32,
    /// Files that it keeps: /workspace, HOME and a writable root together.
    pub disk: Bytes,
    /// Size of /tmp.
    pub tmp: Bytes,
    /// Time to become ready.
    pub start: Duration,
    /// Longest time that one command may run.
    pub run: Duration,
    /// Connections at once.
    #[serde(default = "Limits::usual_connections")]
    pub connections: u32,
    /// Bytes in a second that go out and come in together, if there is a limit.
    #[serde(default)]
    pub bandwidth: Option<Bytes>,
    /// Bytes that go out and come in over its whole life, if there is a limit.
    #[serde(default)]
    pub transfer: Option<Bytes>,
}

impl Limits {
    /// Connections at once where nothing else is said.
    pub fn usual_connections() -> u32 {
        512
    }
}

/// What of the file system may be changed. /workspace, HOME and /tmp are always writable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filesystem {
    /// The root.
    pub root: Root,
    /// Further folders that may be written though the root is read-only: absolute paths, without `.` and `..`.
    #[serde(default)]
    pub writable: BTreeSet<String>,
}

/// What of the root file system may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Root {
    /// Nothing.
    ReadOnly,
    /// All of it, in a layer of the sandbox's own.
    Writable,
}

/// Who commands are, and what they may ask of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Privileges {
    /// Who commands are.
    pub user: User,
    /// What they may do beyond that, inside the sandbox's own namespaces.
    pub capabilities: Capabilities,
    /// Which system calls they may make.
    pub system_calls: SystemCalls,
    /// The profile of the host's security module (AppArmor, SELinux) that they run under.
    #[serde(default)]
    pub security_profile: SecurityProfile,
    /// The runtime of a container engine that it runs with, by the engine's name for it: `runc`, `runsc` (gVisor), `kata`.
    /// What the engine takes by itself where none is named.
    #[serde(default)]
    pub runtime: Option<String>,
}

/// Who commands are inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum User {
    /// uid and gid 1000.
    Sandbox,
    /// uid and gid 0 of the sandbox, which is nobody outside.
    Root,
}

/// Which system calls may be made. Written as its name, or as the absolute path of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SystemCalls {
    /// What programs and interpreters need to compute and to talk over sockets.
    Minimal,
    /// What container engines allow, less what reaches into other processes and the kernel's youngest parts.
    Standard,
    /// That, and what package managers, debuggers and builds want beyond it.
    Build,
    /// The profile in this file, in the form that OCI runtimes read.
    File(PathBuf),
}

/// The text names no set of system calls.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{0}` is not a set of system calls: use minimal, standard, build, or the absolute path of an OCI seccomp profile"
)]
pub struct InvalidSystemCalls(String);

impl FromStr for SystemCalls {
    type Err = InvalidSystemCalls;

    fn from_str(text: &str) -> Result<Self, InvalidSystemCalls> {
        match text {
            "minimal" => Ok(Self::Minimal),
            "standard" => Ok(Self::Standard),
            "build" => Ok(Self::Build),
            path if path.starts_with('/') && !path.contains('\0') => Ok(Self::File(path.into())),
            other => Err(InvalidSystemCalls(other.to_owned())),
        }
    }
}

impl fmt::Display for SystemCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Minimal => f.write_str("minimal"),
            Self::Standard => f.write_str("standard"),
            Self::Build => f.write_str("build"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl From<SystemCalls> for String {
    fn from(calls: SystemCalls) -> Self {
        calls.to_string()
    }
}

impl TryFrom<String> for SystemCalls {
    type Error = InvalidSystemCalls;

    fn try_from(text: String) -> Result<Self, InvalidSystemCalls> {
        text.parse()
    }
}

/// A profile of AppArmor or SELinux.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecurityProfile {
    /// Ours, where it is loaded on this host; what the host gives anyway where not.
    #[default]
    Auto,
    /// This one; without it there is no sandbox.
    Named(String),
}

/// Commands that are answered before they run. The kernel has the last word on what they could do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commands {
    /// Only these programs may be run, by name, absolute path, or folder ending in `/`; any, if not said. The kernel
    /// holds it.
    #[serde(default)]
    pub allow: Option<BTreeSet<String>>,
    /// Never these: a program's name, or a name with the words that make it harmful (`chmod 777`, `rm -rf /`).
    #[serde(default)]
    pub deny: BTreeSet<String>,
    /// How denied programs are kept from running.
    #[serde(default)]
    pub denied_programs: DeniedPrograms,
}

/// How denied programs are kept from running. Whatever they try has no effect in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeniedPrograms {
    /// Their names are answered with an explanation; a disguise runs them, in vain.
    #[default]
    Explained,
    /// Their files cannot be executed or read either.
    Removed,
}

impl Policy {
    /// Whether anything can be reached with it.
    pub fn reaches_something(&self) -> bool {
        let allowed = self.network_rules.iter().any(|rule| !rule.allow.is_empty());
        self.network != Network::None || allowed || !self.host_ports.is_empty()
    }

    /// The preset of this name.
    pub fn preset(name: &str) -> Option<Self> {
        presets::find(name)
    }
}

impl Default for Policy {
    fn default() -> Self {
        #[allow(clippy::expect_used, reason = "a test proves that every listed preset exists")]
        Self::preset(DEFAULT_PRESET).expect("the default preset exists")
    }
}
