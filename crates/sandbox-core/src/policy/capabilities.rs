//! Privileges inside a sandbox's own namespaces, as a set.

use std::{fmt, ops::BitAnd};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// In the order of their numbers; see capabilities(7).
const NAMES: [&str; 41] = [
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux_immutable",
    "net_bind_service",
    "net_broadcast",
    "net_admin",
    "net_raw",
    "ipc_lock",
    "ipc_owner",
    "sys_module",
    "sys_rawio",
    "sys_chroot",
    "sys_ptrace",
    "sys_pacct",
    "sys_admin",
    "sys_boot",
    "sys_nice",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "mknod",
    "lease",
    "audit_write",
    "audit_control",
    "setfcap",
    "mac_override",
    "mac_admin",
    "syslog",
    "wake_alarm",
    "block_suspend",
    "audit_read",
    "perfmon",
    "bpf",
    "checkpoint_restore",
];

/// A set of capabilities. Written as the name of a set (`none`, `container`, `extended`, `all`) or as a list of names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// None at all.
    pub const NONE: Self = Self(0);
    /// What container engines give, less raw sockets and the audit log.
    pub const CONTAINER: Self = Self::of(&[0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 27, 31]);
    /// That, and what package managers and builds want beyond it: reading everything.
    pub const EXTENDED: Self = Self::of(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 18, 27, 31]);
    /// All that there are. The filter for system calls and the namespaces still hold.
    pub const ALL: Self = Self((1 << NAMES.len()) - 1);

    const SETS: [(&str, Self); 4] =
        [("none", Self::NONE), ("container", Self::CONTAINER), ("extended", Self::EXTENDED), ("all", Self::ALL)];

    const fn of(numbers: &[u32]) -> Self {
        let (mut bits, mut index) = (0, 0);
        while index < numbers.len() {
            bits |= 1 << numbers[index];
            index += 1;
        }
        Self(bits)
    }

    /// As the kernel counts them.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The set of these numbers; those that nobody knows are left out.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// Whether all of these are in the other set too.
    pub fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// The set that these names are, each with or without `CAP_`.
    pub fn from_names<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Result<Self, UnknownCapability> {
        names.into_iter().try_fold(Self::NONE, |set, name| {
            let plain = name.as_ref().to_ascii_lowercase();
            let plain = plain.strip_prefix("cap_").unwrap_or(&plain);
            let number = NAMES.iter().position(|known| *known == plain);
            number.map(|number| Self(set.0 | 1 << number)).ok_or_else(|| UnknownCapability(name.as_ref().to_owned()))
        })
    }

    /// Their names, without `CAP_`, in the order of their numbers.
    pub fn names(self) -> Vec<&'static str> {
        NAMES.iter().enumerate().filter(|(number, _)| self.0 & (1 << number) != 0).map(|(_, name)| *name).collect()
    }
}

impl BitAnd for Capabilities {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::SETS.iter().find(|(_, set)| set == self) {
            Some((name, _)) => f.write_str(name),
            None => f.write_str(&self.names().join(", ")),
        }
    }
}

/// Nobody knows this capability.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a capability: use none, container, extended, all, or a list of names such as [\"chown\", \"net_bind_service\"]"
)]
pub struct UnknownCapability(String);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Set(String),
    Names(Vec<String>),
}

impl Serialize for Capabilities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match Self::SETS.iter().find(|(_, set)| set == self) {
            Some((name, _)) => serializer.serialize_str(name),
            None => self.names().serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Capabilities {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let set = match Written::deserialize(deserializer)? {
            Written::Set(name) => match Self::SETS.iter().find(|(known, _)| *known == name) {
                Some((_, set)) => Ok(*set),
                None => Err(UnknownCapability(name)),
            },
            Written::Names(names) => Self::from_names(names),
        };
        set.map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sets_grow_and_keep_what_reaches_out_of_a_namespace_apart() {
        assert!(Capabilities::NONE.is_within(Capabilities::CONTAINER));
        assert!(Capabilities::CONTAINER.is_within(Capabilities::EXTENDED));
        assert!(Capabilities::EXTENDED.is_within(Capabilities::ALL));
        for name in ["sys_admin", "sys_ptrace", "net_admin", "net_raw", "sys_resource", "bpf", "sys_module"] {
            let one = Capabilities::from_names([name]).unwrap_or_else(|error| panic!("{error}"));
            assert!(!one.is_within(Capabilities::EXTENDED), "{name}");
        }
        assert_eq!(Capabilities::from_names(["CAP_CHOWN"]), Capabilities::from_names(["chown"]));
        assert!(Capabilities::from_names(["fly"]).is_err());
    }

    proptest! {
        #[test]
        fn every_set_survives_a_round_trip(bits in any::<u64>()) {
            let set = Capabilities(bits) & Capabilities::ALL;
            let text = serde_json::to_string(&set).unwrap_or_default();
            prop_assert_eq!(serde_json::from_str::<Capabilities>(&text).ok(), Some(set));
        }
    }
}
