//! What is left of two policies when both must hold: never more than either gives. This is how an operator's ceiling
//! bounds what others ask for.

use std::collections::BTreeSet;

use super::{Commands, Limits, Policy, Privileges, Root, SystemCalls, network::rules_within};
use crate::Bytes;

impl Policy {
    /// This policy as far as the ceiling gives it, under its own name.
    pub fn within(&self, ceiling: &Self) -> Self {
        let mut writable = self.filesystem.writable.clone();
        if ceiling.filesystem.root == Root::ReadOnly {
            writable.retain(|place| ceiling.filesystem.writable.contains(place));
        }
        let mut filesystem = self.filesystem.clone();
        filesystem.root = filesystem.root.min(ceiling.filesystem.root);
        filesystem.writable = writable;
        Self {
            name: self.name.clone(),
            limits: self.limits.within(&ceiling.limits),
            network: self.network.within(ceiling.network),
            network_rules: rules_within(self, ceiling),
            host_ports: self.host_ports.intersection(&ceiling.host_ports).copied().collect(),
            filesystem,
            privileges: self.privileges.within(&ceiling.privileges),
            commands: self.commands.within(&ceiling.commands),
            strict: self.strict || ceiling.strict,
            allow_unenforced: self.allow_unenforced.intersection(&ceiling.allow_unenforced).copied().collect(),
        }
    }

    /// The fields in which this policy has less than the other, in words.
    pub fn less_than(&self, other: &Self) -> Vec<String> {
        let mut less = Vec::new();
        let mut compare = |name: &str, ours: String, theirs: String| {
            if ours != theirs {
                less.push(format!("{name} is {ours} instead of {theirs}"));
            }
        };
        let (a, b) = (&self.limits, &other.limits);
        compare("memory", a.memory.to_string(), b.memory.to_string());
        compare("cpus", cpus(a), cpus(b));
        compare("pids", a.pids.to_string(), b.pids.to_string());
        compare("disk", a.disk.to_string(), b.disk.to_string());
        compare("tmp", a.tmp.to_string(), b.tmp.to_string());
        compare("start time", format!("{} s", a.start.as_secs()), format!("{} s", b.start.as_secs()));
        compare("run time", format!("{} s", a.run.as_secs()), format!("{} s", b.run.as_secs()));
        let bytes = |limit: Option<Bytes>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
        compare("connections", a.connections.to_string(), b.connections.to_string());
        compare("bandwidth", bytes(a.bandwidth), bytes(b.bandwidth));
        compare("transfer", bytes(a.transfer), bytes(b.transfer));
        compare("network", self.network.to_string(), other.network.to_string());
        compare("ports of this machine", ports(&self.host_ports), ports(&other.host_ports));
        compare("root", self.filesystem.root.to_string(), other.filesystem.root.to_string());
        compare("writable places", list(&self.filesystem.writable), list(&other.filesystem.writable));
        let (a, b) = (&self.privileges, &other.privileges);
        compare("user", a.user.to_string(), b.user.to_string());
        compare("capabilities", a.capabilities.to_string(), b.capabilities.to_string());
        compare("system calls", a.system_calls.to_string(), b.system_calls.to_string());
        compare("security profile", a.security_profile.to_string(), b.security_profile.to_string());
        let runtime = |privileges: &Privileges| privileges.runtime.clone().unwrap_or_else(|| "any".to_owned());
        compare("runtime", runtime(a), runtime(b));
        let allowed = |commands: &Commands| commands.allow.as_ref().map_or_else(|| "any".to_owned(), list);
        compare("allowed commands", allowed(&self.commands), allowed(&other.commands));
        if self.network_rules != other.network_rules {
            less.push("fewer network rules allow something, or more deny it".to_owned());
        }
        if !self.commands.deny.is_subset(&other.commands.deny) {
            less.push("more commands are denied".to_owned());
        }
        let (a, b) = (self.commands.denied_programs, other.commands.denied_programs);
        if a != b {
            less.push(format!("denied programs are {a} instead of {b}"));
        }
        less
    }
}

fn cpus(limits: &Limits) -> String {
    (f64::from(limits.cpu_millis) / 1000.0).to_string()
}

fn ports(ports: &BTreeSet<u16>) -> String {
    list(&ports.iter().map(u16::to_string).collect())
}

fn list(names: &BTreeSet<String>) -> String {
    match names.len() {
        0 => "none".to_owned(),
        1..=8 => names.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
        many => format!("{many} of them"),
    }
}

impl Limits {
    fn within(&self, ceiling: &Self) -> Self {
        Self {
            memory: self.memory.min(ceiling.memory),
            cpu_millis: self.cpu_millis.min(ceiling.cpu_millis),
            pids: self.pids.min(ceiling.pids),
            disk: self.disk.min(ceiling.disk),
            tmp: self.tmp.min(ceiling.tmp),
            start: self.start.min(ceiling.start),
            run: self.run.min(ceiling.run),
            connections: self.connections.min(ceiling.connections),
            bandwidth: least(self.bandwidth, ceiling.bandwidth),
            transfer: least(self.transfer, ceiling.transfer),
        }
    }
}

/// None is no limit.
fn least(ours: Option<Bytes>, theirs: Option<Bytes>) -> Option<Bytes> {
    ours.into_iter().chain(theirs).min()
}

impl Privileges {
    fn within(&self, ceiling: &Self) -> Self {
        Self {
            user: self.user.min(ceiling.user),
            capabilities: self.capabilities & ceiling.capabilities,
            system_calls: self.system_calls.within(&ceiling.system_calls),
            // What a profile of another name gives nobody here can tell.
            security_profile: ceiling.security_profile.clone(),
            runtime: ceiling.runtime.clone().or_else(|| self.runtime.clone()),
        }
    }
}

impl SystemCalls {
    /// A file may allow anything, so it is kept only where the ceiling names the same one; where the ceiling names one,
    /// it is the operator's word on what may be called.
    fn within(&self, ceiling: &Self) -> Self {
        let rank = |calls: &Self| match calls {
            Self::Minimal => 0,
            Self::Standard => 1,
            Self::Build => 2,
            Self::File(_) => 3,
        };
        match (self, ceiling) {
            (_, Self::File(_)) => ceiling.clone(),
            (own, ceiling) if rank(own) <= rank(ceiling) => own.clone(),
            _ => ceiling.clone(),
        }
    }
}

impl Commands {
    fn within(&self, ceiling: &Self) -> Self {
        let allow = match (&self.allow, &ceiling.allow) {
            (Some(own), Some(allowed)) => Some(own.intersection(allowed).cloned().collect()),
            (own, None) => own.clone(),
            (None, allowed) => allowed.clone(),
        };
        let denied_programs = self.denied_programs.max(ceiling.denied_programs);
        Self { allow, deny: self.deny.union(&ceiling.deny).cloned().collect(), denied_programs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PRESETS, SecurityProfile};
    use proptest::prelude::*;

    fn presets() -> impl Strategy<Value = Policy> {
        (0..PRESETS.len()).prop_map(|index| Policy::preset(PRESETS[index]).unwrap_or_default())
    }

    proptest! {
        #[test]
        fn nothing_passes_the_ceiling(asked in presets(), ceiling in presets()) {
            let given = asked.within(&ceiling);
            for wider in [&asked, &ceiling] {
                prop_assert!(given.limits.memory <= wider.limits.memory && given.limits.pids <= wider.limits.pids);
                prop_assert!(given.limits.run <= wider.limits.run && given.limits.cpu_millis <= wider.limits.cpu_millis);
                prop_assert!(given.filesystem.root <= wider.filesystem.root);
                prop_assert!(given.privileges.user <= wider.privileges.user);
                prop_assert!(given.privileges.capabilities.is_within(wider.privileges.capabilities));
                prop_assert!(wider.commands.deny.is_subset(&given.commands.deny));
                prop_assert_eq!(given.network.within(wider.network), given.network);
                prop_assert_eq!(given.privileges.system_calls.within(&wider.privileges.system_calls), given.privileges.system_calls.clone());
            }
            prop_assert_eq!(given.within(&ceiling), given);
        }

        #[test]
        fn a_policy_is_within_itself(policy in presets()) {
            prop_assert_eq!(policy.within(&policy), policy.clone());
            prop_assert_eq!(policy.less_than(&policy), Vec::<String>::new());
        }
    }

    #[test]
    fn programs_that_a_ceiling_takes_away_and_its_profile_are_told() {
        let (asked, mut ceiling) = (Policy::preset("yolo-4"), Policy::preset("yolo-1").unwrap_or_default());
        let asked = asked.unwrap_or_default();
        ceiling.privileges.security_profile = SecurityProfile::Named("mine".into());
        let less = asked.within(&ceiling).less_than(&asked);
        for told in ["denied programs are removed instead of explained", "security profile is mine instead of auto"] {
            assert!(less.iter().any(|line| line == told), "{less:?}");
        }
    }

    #[test]
    fn a_file_of_system_calls_is_kept_only_where_it_is_named() {
        let file: SystemCalls = "/etc/a.json".parse().unwrap_or(SystemCalls::Minimal);
        assert_eq!(file.within(&SystemCalls::Standard), SystemCalls::Standard);
        assert_eq!(file.within(&file), file);
        let other: SystemCalls = "/etc/b.json".parse().unwrap_or(SystemCalls::Minimal);
        assert_eq!(file.within(&other), other);
        assert_eq!(SystemCalls::Minimal.within(&other), other, "the operator's word");
    }
}
