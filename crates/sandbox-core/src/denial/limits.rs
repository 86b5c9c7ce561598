//! Limits that ended a command or stood in its way, in words with numbers.

use std::time::Duration;

use super::{Denial, Reason};
use crate::{
    Bytes, Control, Policy,
    exec::{DiskTrouble, Ending, Exit},
};

impl Denial {
    /// All that a policy refused to a command that ended like this: the limit that ended it, and processes that it could
    /// not start.
    pub fn of_end(exit: Exit, ending: &Ending, policy: &Policy) -> Vec<Self> {
        let ended = match exit {
            Exit::Limit(control) => Self::of_limit(control, ending, policy),
            Exit::Code(_) | Exit::Signal(_) => None,
        };
        let refused = (ending.refused_processes > 0 && exit != Exit::Limit(Control::Pids))
            .then(|| Self::of_limit(Control::Pids, ending, policy));
        ended.into_iter().chain(refused.flatten()).collect()
    }

    /// The limit, what was used of it as far as that is known, and what to do.
    pub fn of_limit(control: Control, ending: &Ending, policy: &Policy) -> Option<Self> {
        let limits = &policy.limits;
        let reason = Reason::of_limit(control)?;
        let (name, limit, message, instead) = match control {
            Control::Memory => {
                let limit = limits.memory;
                let used = ending.used.unwrap_or(limit).max(limit);
                ("memory", limit.to_string(), format!("killed: used {used} of {limit} memory"), "Use less memory")
            }
            Control::Disk => {
                let message = disk(ending, limits.disk);
                ("disk", limits.disk.to_string(), message, "Remove files from the workspace and from HOME")
            }
            Control::Tmp => {
                let message = format!("/tmp is full: {} at most", limits.tmp);
                ("tmp", limits.tmp.to_string(), message, "Remove files from /tmp")
            }
            Control::Pids => {
                let (most, refused) = (limits.pids, ending.refused_processes);
                let message = match refused {
                    0 => format!("the sandbox has all of its {most} processes and threads"),
                    1 => {
                        format!("one process was not started: the sandbox had all of its {most} processes and threads")
                    }
                    _ => format!(
                        "{refused} processes were not started: the sandbox had all of its {most} processes and threads"
                    ),
                };
                ("pids", most.to_string(), message, "Start fewer processes at once, or end some")
            }
            Control::Time => {
                let time = seconds(ending.time.unwrap_or(limits.run));
                let message = format!("killed: ran for {time} of {time}");
                ("run", time, message, "Give the command a longer time, or let it run in the background")
            }
            _ => return None,
        };
        Some(Self {
            reason,
            target: format!("{name}: {limit}"),
            rule: format!("limits.{name}"),
            level: policy.name.to_string(),
            message,
            how_to_ask: format!("{instead}, or make a sandbox whose policy has a larger limits.{name}"),
        })
    }
}

fn disk(ending: &Ending, limit: Bytes) -> String {
    match ending.disk {
        None => {
            let used = ending.used.unwrap_or(limit).max(limit);
            format!("killed: its files take {used} of {limit}")
        }
        Some(DiskTrouble::TooDeep) => {
            "killed: folders are nested too deep for their files to be measured against the disk limit".into()
        }
        Some(DiskTrouble::TooManyOpen) => {
            "killed: so many files are open or mapped that they cannot be measured against the disk limit".into()
        }
        Some(DiskTrouble::Unreadable) => "killed: some of its files cannot be measured against the disk limit".into(),
        Some(DiskTrouble::DiskFull) => {
            let used = ending.used.unwrap_or_default();
            format!("killed: this machine's disk is nearly full, and this sandbox has the most files on it ({used})")
        }
    }
}

fn seconds(time: Duration) -> String {
    if time.subsec_millis() == 0 { format!("{} s", time.as_secs()) } else { format!("{:.1} s", time.as_secs_f64()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(control: Control, ending: Ending) -> String {
        let mut policy = Policy::default();
        (policy.limits.memory, policy.limits.disk, policy.limits.pids) = (Bytes::mib(512), Bytes::mib(100), 64);
        Denial::of_limit(control, &ending, &policy).map(|denial| denial.message).unwrap_or_default()
    }

    #[test]
    fn limits_are_named_with_numbers() {
        let none = Ending::default();
        assert_eq!(message(Control::Memory, none), "killed: used 512 MiB of 512 MiB memory");
        let used = Ending { used: Some(Bytes::mib(600)), ..none };
        assert_eq!(message(Control::Memory, used), "killed: used 600 MiB of 512 MiB memory");
        assert_eq!(message(Control::Disk, used), "killed: its files take 600 MiB of 100 MiB");
        let deep = Ending { disk: Some(DiskTrouble::TooDeep), ..none };
        assert!(message(Control::Disk, deep).contains("too deep") && !message(Control::Disk, deep).contains("MiB"));
        let time = Ending { time: Some(Duration::from_millis(1500)), ..none };
        assert_eq!(message(Control::Time, time), "killed: ran for 1.5 s of 1.5 s");
        assert_eq!(message(Control::Network, none), "");
    }

    #[test]
    fn processes_that_were_refused_are_told_beside_how_it_ended() {
        let policy = Policy::default();
        let refused = Ending { refused_processes: 3, ..Ending::default() };
        let told = Denial::of_end(Exit::Code(2), &refused, &policy);
        assert!(told.len() == 1 && told[0].reason == Reason::PidsLimit, "{told:?}");
        assert!(told[0].message.starts_with("3 processes were not started"), "{told:?}");
        assert_eq!(Denial::of_end(Exit::Limit(Control::Memory), &refused, &policy).len(), 2);
        assert_eq!(Denial::of_end(Exit::Code(0), &Ending::default(), &policy), []);
    }
}
