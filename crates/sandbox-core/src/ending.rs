//! What is known about a command's end beside how it ended, and what to tell people about it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Control, policy::Limits};

/// More about a command's end than [`crate::exec::Exit`] says, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// What the sandbox used of the thing whose limit ended the command, when it was seen to be over.
    #[serde(default)]
    pub used: Option<Bytes>,
    /// Why the sandbox's files ended it, where it was not their size.
    #[serde(default)]
    pub disk: Option<DiskTrouble>,
    /// Processes that could not be started while it ran, because there were as many as may be.
    #[serde(default)]
    pub refused_processes: u64,
    /// The time that it had, where that ended it.
    #[serde(default)]
    pub time: Option<Duration>,
}

/// Why a sandbox has to stop because of its files although they are not too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskTrouble {
    /// Folders are nested too deep to be measured.
    TooDeep,
    /// More files are open or mapped than can be looked at.
    TooManyOpen,
    /// Something in them could not be read.
    Unreadable,
    /// The machine's disk is nearly full, and this sandbox holds the most of it.
    DiskFull,
}

impl Ending {
    /// How a limit ended it, with numbers. Whoever is ended by a limit has used all of it, if no more is known.
    pub fn by_limit(&self, control: Control, limits: &Limits) -> Option<String> {
        Some(match control {
            Control::Memory => format!("killed: used {} of {} of memory", self.at_least(limits.memory), limits.memory),
            Control::Disk => self.by_disk(limits.disk),
            Control::Tmp => format!("killed: used {0} of {0} of /tmp", limits.tmp),
            Control::Pids => format!("killed: used {0} of {0} processes", limits.pids),
            Control::Time => {
                let time = self.time.unwrap_or(limits.run).as_secs_f64();
                format!("killed: ran for {time} s of {time} s")
            }
            _ => return None,
        })
    }

    /// That processes could not be started, if so.
    pub fn refused(&self, limits: &Limits) -> Option<String> {
        let what = match self.refused_processes {
            0 => return None,
            1 => "one process was not started".to_owned(),
            count => format!("{count} processes were not started"),
        };
        Some(format!("{what}: the sandbox had all of its {} processes and threads", limits.pids))
    }

    fn by_disk(&self, limit: Bytes) -> String {
        match self.disk {
            None => format!("killed: used {} of {limit} of disk", self.at_least(limit)),
            Some(DiskTrouble::TooDeep) => {
                "killed: folders are nested too deep for files to be measured against the disk limit".to_owned()
            }
            Some(DiskTrouble::TooManyOpen) => {
                "killed: too many files are open or mapped to be measured against the disk limit".to_owned()
            }
            Some(DiskTrouble::Unreadable) => {
                "killed: some of its files cannot be measured against the disk limit".to_owned()
            }
            Some(DiskTrouble::DiskFull) => format!(
                "killed: this machine's disk is nearly full, and this sandbox has the most files on it ({})",
                self.used.unwrap_or_default()
            ),
        }
    }

    fn at_least(&self, limit: Bytes) -> Bytes {
        self.used.unwrap_or(limit).max(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    fn told(control: Control, ending: Ending) -> String {
        let mut limits = Policy::default().limits;
        (limits.memory, limits.disk, limits.pids) = (Bytes::mib(512), Bytes::mib(100), 64);
        ending.by_limit(control, &limits).or(ending.refused(&limits)).unwrap_or_default()
    }

    #[test]
    fn limits_are_named_with_numbers() {
        let none = Ending::default();
        assert_eq!(told(Control::Memory, none), "killed: used 512 MiB of 512 MiB of memory");
        let used = Ending { used: Some(Bytes::mib(600)), ..none };
        assert_eq!(told(Control::Memory, used), "killed: used 600 MiB of 512 MiB of memory");
        assert_eq!(told(Control::Disk, used), "killed: used 600 MiB of 100 MiB of disk");
        let deep = Ending { disk: Some(DiskTrouble::TooDeep), ..none };
        assert!(told(Control::Disk, deep).contains("too deep") && !told(Control::Disk, deep).contains("MiB"));
        let time = Ending { time: Some(Duration::from_millis(1500)), ..none };
        assert_eq!(told(Control::Time, time), "killed: ran for 1.5 s of 1.5 s");
        assert_eq!(told(Control::Network, none), "");
    }

    #[test]
    fn processes_that_were_refused_are_told() {
        let refused = Ending { refused_processes: 3, ..Ending::default() };
        let expected = "3 processes were not started: the sandbox had all of its 64 processes and threads";
        assert_eq!(told(Control::Network, refused), expected);
    }
}
