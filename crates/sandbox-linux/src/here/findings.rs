//! What holds the container that this program runs in, as far as it can be seen from inside.

use std::fs;

use sandbox_core::{Bytes, Control, Enforcement, Held, policy::Limits};

/// Said of what nobody is seen to hold.
const UNSEEN: &str = "left to the container's engine: no limit is seen from inside";
/// cgroup v1 says this where there is no limit.
const ENDLESS: u64 = 1 << 60;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    memory: Option<u64>,
    cpu_millis: Option<u32>,
    pids: Option<u64>,
    root_is_read_only: bool,
    has_network: bool,
    capabilities: u64,
    no_new_privileges: bool,
    filtered: bool,
}

impl Findings {
    /// Looks.
    pub fn look() -> Self {
        let number = |names: [&str; 2]| {
            let text = names.into_iter().find_map(|name| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok())?;
            text.trim().parse().ok().filter(|limit| *limit < ENDLESS)
        };
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
        let root =
            rustix::fs::statvfs("/").is_ok_and(|root| root.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
        Self {
            memory: number(["memory.max", "memory/memory.limit_in_bytes"]),
            cpu_millis: cpu_of(
                fs::read_to_string("/sys/fs/cgroup/cpu.max").ok(),
                [number(["cpu/cpu.cfs_quota_us", ""]), number(["cpu/cpu.cfs_period_us", ""])],
            ),
            pids: number(["pids.max", "pids/pids.max"]),
            root_is_read_only: root,
            has_network: has_network(&fs::read_to_string("/proc/net/dev").unwrap_or_default()),
            capabilities: field("CapBnd:").and_then(|set| u64::from_str_radix(&set, 16).ok()).unwrap_or(u64::MAX),
            no_new_privileges: field("NoNewPrivs:").as_deref() == Some("1"),
            filtered: field("Seccomp:").as_deref() == Some("2"),
        }
    }

    /// The numbers, where there are any.
    pub fn tell_limits(&self, limits: &mut Limits) {
        limits.memory = self.memory.map_or(limits.memory, Bytes);
        limits.cpu_millis = self.cpu_millis.unwrap_or(limits.cpu_millis);
        limits.pids = self.pids.and_then(|pids| pids.try_into().ok()).unwrap_or(limits.pids);
    }

    /// How each limit and wall is held.
    pub fn enforcement(&self) -> Enforcement {
        let mut all = Enforcement::default();
        let mut seen = |control, found: Option<String>| match found {
            Some(by) => all.hold(control, Held::Kernel, format!("by the container's engine: {by}")),
            None => all.hold(control, Held::None, UNSEEN),
        };
        seen(Control::Memory, self.memory.map(|limit| format!("memory limit of {}", Bytes(limit))));
        seen(Control::Cpu, self.cpu_millis.map(|millis| format!("{} processors", f64::from(millis) / 1000.0)));
        seen(Control::Pids, self.pids.map(|limit| format!("at most {limit} processes")));
        seen(Control::Disk, None);
        seen(Control::Tmp, None);
        seen(Control::Network, (!self.has_network).then(|| "it has no network but loopback".to_owned()));
        seen(Control::Filesystem, self.root_is_read_only.then(|| "the root is read-only".to_owned()));
        let bare = self.capabilities == 0 || self.no_new_privileges;
        let how = if self.capabilities == 0 { "there are no capabilities" } else { "no_new_privs" };
        seen(Control::Privileges, bare.then(|| how.to_owned()));
        seen(Control::SystemCalls, self.filtered.then(|| "a seccomp filter".to_owned()));
        all.hold(Control::Time, Held::Supervised, "the executor ends a command when its time is over");
        all.hold(Control::ExecutorIdentity, Held::None, "commands are the same user as the server in the container");
        all
    }
}

fn cpu_of(unified: Option<String>, split: [Option<u64>; 2]) -> Option<u32> {
    let (quota, period): (u64, u64) = match &unified {
        Some(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        }
        None => (split[0]?, split[1]?),
    };
    u32::try_from(quota.checked_mul(1000)?.checked_div(period)?).ok()
}

/// The table has two lines of titles, then one line for each interface.
fn has_network(table: &str) -> bool {
    table.lines().skip(2).any(|line| !line.trim_start().starts_with("lo:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_read_in_both_forms() {
        assert_eq!(cpu_of(Some("150000 100000\n".into()), [None, None]), Some(1500));
        assert_eq!(cpu_of(Some("max 100000\n".into()), [None, None]), None);
        assert_eq!(cpu_of(None, [Some(50_000), Some(100_000)]), Some(500));
        assert_eq!(cpu_of(None, [Some(50_000), Some(0)]), None);
    }

    #[test]
    fn a_network_is_more_than_loopback() {
        let titles = "Inter-|   Receive\n face |bytes\n";
        assert!(!has_network(&format!("{titles}    lo:       0 0\n")));
        assert!(has_network(&format!("{titles}    lo:       0 0\n  eth0: 1 1\n")));
    }

    #[test]
    fn what_is_not_seen_is_told_as_not_held() {
        let nothing = Findings { has_network: true, capabilities: 1, ..Findings::default() }.enforcement();
        let held = |all: &Enforcement, control| all.0[&control].held;
        for control in [Control::Memory, Control::Pids, Control::Network, Control::Privileges, Control::SystemCalls] {
            assert_eq!(held(&nothing, control), Held::None, "{control}");
        }
        let all = Findings { memory: Some(1 << 30), filtered: true, ..Findings::default() }.enforcement();
        assert_eq!((held(&all, Control::Memory), held(&all, Control::SystemCalls)), (Held::Kernel, Held::Kernel));
        assert!(all.0[&Control::Memory].by.contains("1 GiB"));
    }
}
