//! Where and when it was measured.

use std::{fs, thread};

use crate::program::CommandLine;

/// The machine, in words.
pub struct Machine {
    processors: usize,
    model: String,
    memory_gib: f64,
    system: String,
    kernel: String,
    cgroups: &'static str,
    user: &'static str,
    bwrap: String,
    date: String,
    load: String,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let said =
            |words: &[&str]| CommandLine::new(words.iter().copied()).output().unwrap_or_else(|_| "unknown".into());
        let unified = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let unified = unified.lines().any(|line| line.contains(" /sys/fs/cgroup cgroup2 "));
        Self {
            processors: thread::available_parallelism().map_or(0, usize::from),
            model: field("/proc/cpuinfo", "model name", ':'),
            memory_gib: field("/proc/meminfo", "MemTotal", ':').trim_end_matches(" kB").parse().unwrap_or(0.0)
                / 1048576.0,
            system: field("/etc/os-release", "PRETTY_NAME", '=').trim_matches('"').to_owned(),
            kernel: said(&["uname", "-r"]),
            cgroups: if unified { "cgroup v2" } else { "cgroup v1" },
            user: if said(&["id", "-u"]) == "0" { "root" } else { "an ordinary user" },
            bwrap: said(&["bwrap", "--version"]),
            date: said(&["date", "+%Y-%m-%d"]),
            load: load(),
        }
    }

    /// One sentence.
    pub fn in_words(&self) -> String {
        format!(
            "{}: {} processors ({}), {:.0} GiB, {}, Linux {}, {}, as {}, load {} at the start; {}",
            self.date,
            self.processors,
            self.model,
            self.memory_gib,
            self.system,
            self.kernel,
            self.cgroups,
            self.user,
            self.load,
            self.bwrap
        )
    }
}

/// How many wanted a processor in the last minute, on average.
pub fn load() -> String {
    fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').next().unwrap_or("?").to_owned()
}

fn field(file: &str, name: &str, separator: char) -> String {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(separator));
    line.unwrap_or("unknown").trim().to_owned()
}
