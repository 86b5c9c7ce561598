//! A policy as people write it: what it extends, and what is different. Examples in it say what must be allowed or
//! denied, so that whoever wrote it finds out at once if it says something else.

use std::{collections::BTreeSet, time::Duration};

use serde::Deserialize;

use super::{Capabilities, Network, NetworkRule, Policy, Root, SecurityProfile, SystemCalls, User};
use crate::{Bytes, Control};

/// The content of a policy file. Everything that is not said is as in the policy that it extends.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "see the fields of the same names in Policy")]
pub struct WrittenPolicy {
    /// The name of a preset.
    pub extends: Option<String>,
    pub limits: WrittenLimits,
    pub network: Option<Network>,
    /// Before those that the extended policy has.
    pub network_rules: Vec<NetworkRule>,
    pub host_ports: Option<BTreeSet<u16>>,
    pub filesystem: WrittenFilesystem,
    pub privileges: WrittenPrivileges,
    pub commands: WrittenCommands,
    pub strict: Option<bool>,
    pub allow_unenforced: Option<BTreeSet<Control>>,
    /// What must hold of it.
    pub examples: Examples,
}

/// Commands that a policy must allow or deny, as they would be typed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Examples {
    pub allowed: Vec<String>,
    pub denied: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "see Limits")]
pub struct WrittenLimits {
    pub memory: Option<Bytes>,
    pub cpus: Option<f64>,
    pub pids: Option<u32>,
    pub disk: Option<Bytes>,
    pub tmp: Option<Bytes>,
    pub start_seconds: Option<u64>,
    pub run_seconds: Option<u64>,
    pub connections: Option<u32>,
    /// In a second.
    pub bandwidth: Option<Bytes>,
    pub transfer: Option<Bytes>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "see Filesystem")]
pub struct WrittenFilesystem {
    pub root: Option<Root>,
    pub writable: Option<BTreeSet<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "see Privileges")]
pub struct WrittenPrivileges {
    pub user: Option<User>,
    pub capabilities: Option<Capabilities>,
    pub system_calls: Option<SystemCalls>,
    /// The name of a profile; `auto` is ours.
    pub security_profile: Option<String>,
    /// The runtime of a container engine: `runc`, `runsc` (gVisor), `kata`, or any that the engine knows.
    pub runtime: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs, reason = "see Commands")]
pub struct WrittenCommands {
    /// `@standard` stands for the usual ones.
    pub allow: Option<BTreeSet<String>>,
    /// On top of those that the extended policy denies.
    pub deny: BTreeSet<String>,
    /// Taken off those that the extended policy denies.
    pub permit: BTreeSet<String>,
    pub denied_programs: Option<super::DeniedPrograms>,
}

/// A policy that cannot be followed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrittenPolicyError {
    /// It extends what is not there.
    #[error("it extends `{0}`, which is no preset. Presets: {known}", known = super::PRESETS.join(", "))]
    UnknownPreset(String),
    /// A number that makes no sense.
    #[error("{field} is {value}, but must be {expected}")]
    BadValue {
        /// Which field.
        field: &'static str,
        /// What was written.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// It takes off what is not there.
    #[error("commands.permit has `{0}`, which the extended policy does not deny: write it as it is denied there")]
    NotDenied(String),
}

impl WrittenPolicy {
    /// What it means, under this name.
    pub fn meaning(&self, name: &str) -> Result<Policy, WrittenPolicyError> {
        let extends = self.extends.as_deref().unwrap_or(super::DEFAULT_PRESET);
        let mut policy = Policy::preset(extends)
            .ok_or_else(|| WrittenPolicyError::UnknownPreset(extends.chars().take(60).collect()))?;
        policy.name = name.to_owned();
        self.limits.apply(&mut policy)?;
        self.filesystem.apply(&mut policy)?;
        self.privileges.apply(&mut policy);
        self.commands.apply(&mut policy)?;
        set(&mut policy.network, self.network);
        policy.network_rules.splice(0..0, self.network_rules.iter().cloned());
        set(&mut policy.host_ports, self.host_ports.clone());
        set(&mut policy.strict, self.strict);
        set(&mut policy.allow_unenforced, self.allow_unenforced.clone());
        Ok(policy)
    }
}

impl WrittenLimits {
    fn apply(&self, policy: &mut Policy) -> Result<(), WrittenPolicyError> {
        let bad = |field, value: String, expected| Err(WrittenPolicyError::BadValue { field, value, expected });
        let small = |size: &Option<Bytes>| size.is_some_and(|size| size.0 < 1 << 10);
        if let Some(size) = [self.bandwidth, self.transfer].into_iter().find(small).flatten() {
            return bad("limits.bandwidth or limits.transfer", size.to_string(), "at least 1KiB");
        }
        if let Some(count) = self.connections.filter(|count| !(1..=65_536).contains(count)) {
            return bad("limits.connections", count.to_string(), "from 1 to 65536");
        }
        let sizes = [("limits.memory", self.memory), ("limits.disk", self.disk), ("limits.tmp", self.tmp)];
        if let Some((field, Some(size))) = sizes.into_iter().find(|(_, size)| size.is_some_and(|size| size.0 < 1 << 20))
        {
            return bad(field, size.to_string(), "at least 1MiB");
        }
        if let Some(cpus) = self.cpus
            && !(0.01..=1024.0).contains(&cpus)
        {
            return bad("limits.cpus", cpus.to_string(), "from 0.01 to 1024");
        }
        if self.pids == Some(0) {
            return bad("limits.pids", "0".to_owned(), "at least 1");
        }
        for (field, seconds) in [("limits.start_seconds", self.start_seconds), ("limits.run_seconds", self.run_seconds)]
        {
            if let Some(seconds) = seconds
                && !(1..=604_800).contains(&seconds)
            {
                return bad(field, seconds.to_string(), "from 1 to 604800");
            }
        }
        let limits = &mut policy.limits;
        set(&mut limits.memory, self.memory);
        set(&mut limits.disk, self.disk);
        set(&mut limits.tmp, self.tmp);
        set(&mut limits.pids, self.pids);
        set(&mut limits.cpu_millis, self.cpus.map(|cpus| (cpus * 1000.0).round() as u32));
        set(&mut limits.start, self.start_seconds.map(Duration::from_secs));
        set(&mut limits.run, self.run_seconds.map(Duration::from_secs));
        set(&mut limits.connections, self.connections);
        limits.bandwidth = self.bandwidth.or(limits.bandwidth);
        limits.transfer = self.transfer.or(limits.transfer);
        Ok(())
    }
}

impl WrittenFilesystem {
    fn apply(&self, policy: &mut Policy) -> Result<(), WrittenPolicyError> {
        for place in self.writable.iter().flatten() {
            if !is_place(place) {
                return Err(WrittenPolicyError::BadValue {
                    field: "filesystem.writable",
                    value: format!("`{}`", place.chars().take(100).collect::<String>()),
                    expected: "absolute paths of folders other than / and those in /proc, /sys and /dev, with no `.` or `..` in them",
                });
            }
        }
        set(&mut policy.filesystem.root, self.root);
        set(&mut policy.filesystem.writable, self.writable.clone());
        Ok(())
    }
}

/// Whether a folder of this name can be given to a sandbox.
fn is_place(path: &str) -> bool {
    let Some(beneath) = path.strip_prefix('/') else { return false };
    let mut names = beneath.split('/');
    let own = ["proc", "sys", "dev"];
    !path.contains('\0')
        && path.len() < 1024
        && names.clone().next().is_some_and(|first| !own.contains(&first))
        && names.all(|name| !["", ".", ".."].contains(&name))
}

impl WrittenPrivileges {
    fn apply(&self, policy: &mut Policy) {
        let privileges = &mut policy.privileges;
        set(&mut privileges.user, self.user);
        set(&mut privileges.capabilities, self.capabilities);
        set(&mut privileges.system_calls, self.system_calls.clone());
        let profile = self.security_profile.as_deref().map(|name| match name {
            "auto" => SecurityProfile::Auto,
            name => SecurityProfile::Named(name.to_owned()),
        });
        set(&mut privileges.security_profile, profile);
        if self.runtime.is_some() {
            privileges.runtime.clone_from(&self.runtime);
        }
    }
}

impl WrittenCommands {
    fn apply(&self, policy: &mut Policy) -> Result<(), WrittenPolicyError> {
        let commands = &mut policy.commands;
        for rule in &self.permit {
            if !commands.deny.remove(rule) {
                return Err(WrittenPolicyError::NotDenied(rule.chars().take(60).collect()));
            }
        }
        commands.deny.extend(self.deny.iter().cloned());
        set(&mut commands.denied_programs, self.denied_programs);
        if let Some(allow) = &self.allow {
            let standard = if allow.contains("@standard") { super::STANDARD_COMMANDS } else { &[] };
            let named = allow.iter().filter(|name| *name != "@standard").cloned();
            commands.allow = Some(named.chain(standard.iter().map(|name| (*name).to_owned())).collect());
        }
        Ok(())
    }
}

fn set<T>(field: &mut T, said: Option<T>) {
    if let Some(said) = said {
        *field = said;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(json: &str) -> Result<Policy, String> {
        let written: WrittenPolicy = serde_json::from_str(json).map_err(|error| error.to_string())?;
        written.meaning("mine").map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_said_is_as_in_the_policy_that_it_extends() {
        let json = r#"{"extends": "user_added", "limits": {"memory": "64MiB", "cpus": 0.25},
            "filesystem": {"writable": ["/var/lib/mine"]}, "commands": {"deny": ["make"], "permit": ["ssh"]}}"#;
        let policy = meaning(json).unwrap_or_else(|error| panic!("{error}"));
        let base = Policy::preset("user_added").unwrap_or_default();
        assert_eq!((policy.limits.memory, policy.limits.cpu_millis), (Bytes::mib(64), 250));
        assert_eq!((policy.limits.pids, policy.privileges), (base.limits.pids, base.privileges));
        assert!(policy.commands.deny.contains("make") && !policy.commands.deny.contains("ssh"));
        assert_eq!(policy.name, "mine");
    }

    #[test]
    fn nonsense_is_refused_with_the_field() {
        for (json, says) in [
            (r#"{"extends": "yolo-9"}"#, "yolo-9"),
            (r#"{"limits": {"memory": "1KiB"}}"#, "limits.memory"),
            (r#"{"limits": {"cpus": 0}}"#, "limits.cpus"),
            (r#"{"limits": {"memori": "1GiB"}}"#, "memori"),
            (r#"{"filesystem": {"writable": ["/proc/sys"]}}"#, "filesystem.writable"),
            (r#"{"filesystem": {"writable": ["/a/../etc"]}}"#, "filesystem.writable"),
            (r#"{"filesystem": {"writable": ["/"]}}"#, "filesystem.writable"),
            (r#"{"commands": {"permit": ["python3"]}}"#, "python3"),
            (r#"{"privileges": {"capabilities": ["fly"]}}"#, "fly"),
            (r#"{"privileges": {"system_calls": "most"}}"#, "most"),
        ] {
            let refused = meaning(json).expect_err(json);
            assert!(refused.contains(says), "{json}: {refused}");
        }
    }
}
