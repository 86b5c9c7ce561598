//! Everything that a sandbox may do, as plain data, and the named presets.

use std::{collections::BTreeSet, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Bytes, Control};

/// What a sandbox may do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// The preset that this is, or that it started from.
    pub name: String,
    /// How much of the machine it may use.
    pub limits: Limits,
    /// How far its connections may reach.
    pub network: Network,
    /// What of its root file system it may change.
    pub root: Root,
    /// Who its commands are.
    pub user: User,
    /// What privileges its commands have inside.
    pub capabilities: Capabilities,
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
}

/// How far connections may reach. "Public" never includes loopback, private, link-local or metadata addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Nowhere.
    None,
    /// Package registries and code hosts.
    Registries,
    /// Public web sites, package registries left out.
    Web,
    /// Public web sites and package registries.
    WebAndRegistries,
    /// Any public address and port.
    Public,
}

/// What of the root file system may be changed. /workspace, HOME and /tmp are always writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Root {
    /// Nothing.
    ReadOnly,
    /// All of it, in a layer of the sandbox's own.
    Writable,
}

/// Who commands are inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum User {
    /// uid and gid 1000.
    Sandbox,
    /// uid and gid 0 of the sandbox, which is nobody outside.
    Root,
}

/// Privileges inside the sandbox's own namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capabilities {
    /// None at all.
    None,
    /// What container engines give.
    Container,
    /// That, and what package managers and builds want beyond it.
    Extended,
}

/// The names of all presets that a sandbox can be made with.
pub const PRESETS: [&str; 10] = [
    "full_isolation",
    "development",
    "build",
    "production",
    "yolo-1",
    "yolo-2",
    "yolo-3",
    "yolo-4",
    "user_added",
    "verified",
];

/// The preset that is used when nobody says otherwise.
pub const DEFAULT_PRESET: &str = "yolo-3";

impl Policy {
    /// The preset of this name.
    pub fn preset(name: &str) -> Option<Self> {
        use {Capabilities as C, Network as N};
        let (memory, cpu_millis, pids, tmp) = match name {
            "full_isolation" => (Bytes::gib(1), 1000, 128, Bytes::mib(100)),
            "build" => (Bytes::gib(4), 2000, 1024, Bytes::gib(2)),
            "user_added" => (Bytes::mib(512), 500, 50, Bytes::mib(100)),
            "verified" => (Bytes::gib(1), 1000, 50, Bytes::mib(100)),
            _ => (Bytes::gib(4), 2000, 512, Bytes::gib(1)),
        };
        let (network, root, user, capabilities) = match name {
            "full_isolation" | "user_added" => (N::None, Root::ReadOnly, User::Sandbox, C::None),
            "development" => (N::Public, Root::Writable, User::Sandbox, C::Container),
            "build" => (N::Registries, Root::Writable, User::Root, C::Extended),
            "production" => (N::Public, Root::ReadOnly, User::Sandbox, C::None),
            "yolo-1" => (N::None, Root::ReadOnly, User::Sandbox, C::None),
            "yolo-2" => (N::Web, Root::ReadOnly, User::Sandbox, C::None),
            "yolo-3" => (N::WebAndRegistries, Root::ReadOnly, User::Sandbox, C::None),
            "yolo-4" => (N::Public, Root::Writable, User::Root, C::Container),
            "verified" => (N::Public, Root::ReadOnly, User::Sandbox, C::None),
            _ => return None,
        };
        let run = Duration::from_secs(if matches!(name, "user_added" | "verified") { 300 } else { 600 });
        let limits =
            Limits { memory, cpu_millis, pids, disk: Bytes::gib(10), tmp, start: Duration::from_secs(30), run };
        Some(Self {
            name: name.to_owned(),
            limits,
            network,
            root,
            user,
            capabilities,
            strict: false,
            allow_unenforced: BTreeSet::new(),
        })
    }
}

impl Default for Policy {
    fn default() -> Self {
        #[allow(clippy::expect_used, reason = "a test proves that every listed preset exists")]
        Self::preset(DEFAULT_PRESET).expect("the default preset exists")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_preset_exists() {
        for name in PRESETS {
            assert_eq!(Policy::preset(name).map(|policy| policy.name).as_deref(), Some(name));
        }
        assert!(PRESETS.contains(&DEFAULT_PRESET));
        assert_eq!(Policy::preset("yolo-5"), None);
    }
}
