//! What a container uses: from its cgroup where that is on this machine, else as its engine counts.

use std::{fs, fs::File, io, os::fd::OwnedFd, path::PathBuf, time::Duration};

use bollard::{Docker, query_parameters::StatsOptionsBuilder};
use futures::StreamExt;
use sandbox_core::{Bytes, Error, Result, Usage};

use crate::failure;

/// Where cgroups are.
const ROOT: &str = "/sys/fs/cgroup";

/// The cgroup of a process on this machine.
pub struct Cgroup {
    /// Lines of `/proc/PID/cgroup`: controllers, and the path.
    groups: Vec<(String, String)>,
}

impl Cgroup {
    /// Of this process.
    pub fn of(pid: i32) -> io::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let groups = text.lines().filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            Some((controllers.to_owned(), path.to_owned()))
        });
        Ok(Self { groups: groups.collect() })
    }

    fn file(&self, controller: &str, old: &str, new: &str) -> Option<PathBuf> {
        let named = self.groups.iter().find(|(names, _)| names.split(',').any(|name| name == controller));
        let path = match named {
            Some((_, path)) => format!("{ROOT}/{controller}{path}/{old}"),
            None => {
                let (_, path) = self.groups.iter().find(|(names, _)| names.is_empty())?;
                format!("{ROOT}{path}/{new}")
            }
        };
        Some(path.into())
    }

    /// The kernel's count of out-of-memory kills.
    pub fn oom_kills(&self) -> Option<OwnedFd> {
        File::open(self.file("memory", "memory.oom_control", "memory.events")?).ok().map(OwnedFd::from)
    }

    /// The kernel's count of processes that it refused.
    pub fn refused_processes(&self) -> Option<OwnedFd> {
        File::open(self.file("pids", "pids.events", "pids.events")?).ok().map(OwnedFd::from)
    }

    /// What it uses now, its files left out.
    pub fn usage(&self) -> Option<Usage> {
        let number = |path: Option<PathBuf>| fs::read_to_string(path?).ok()?.trim().parse::<u64>().ok();
        let memory = number(self.file("memory", "memory.usage_in_bytes", "memory.current"))?;
        let stat = fs::read_to_string(self.file("memory", "memory.stat", "memory.stat")?).ok()?;
        let cached = keyed(&stat, "total_inactive_file").or_else(|| keyed(&stat, "inactive_file")).unwrap_or_default();
        let nanoseconds = number(self.file("cpuacct", "cpuacct.usage", "none")).or_else(|| {
            let stat = fs::read_to_string(self.file("cpu", "cpu.stat", "cpu.stat")?).ok()?;
            keyed(&stat, "usage_usec").map(|micros| micros * 1000)
        });
        let pids = number(self.file("pids", "pids.current", "pids.current")).unwrap_or_default();
        Some(Usage {
            memory: Bytes(memory.saturating_sub(cached)),
            cpu: Duration::from_nanos(nanoseconds.unwrap_or_default()),
            pids: u32::try_from(pids).unwrap_or(u32::MAX),
            disk: Bytes(0),
        })
    }
}

/// What a process and all beneath it use, where no cgroup counts them: as the system shows it to everybody.
pub fn of_tree(pid: i32) -> Usage {
    let (mut waiting, mut usage) = (vec![pid], Usage::default());
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    let page = rustix::param::page_size() as u64;
    while let Some(pid) = waiting.pop() {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let stat = read("stat");
        // After the name, which may hold anything: state, parent, …, and from the twelfth on the times.
        let fields: Vec<u64> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().map(number).collect();
        let at = |index: usize| fields.get(index).copied().unwrap_or_default();
        usage.cpu += Duration::from_secs_f64((at(11) + at(12)) as f64 / ticks as f64);
        usage.memory.0 += read("statm").split_whitespace().nth(1).map(number).unwrap_or_default() * page;
        usage.pids += u32::from(!stat.is_empty());
        for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            waiting.extend(children.split_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        }
    }
    usage
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}

fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// As the engine counts.
pub async fn asked(docker: &Docker, container: &str) -> Result<Usage> {
    let options = StatsOptionsBuilder::default().stream(false).one_shot(true).build();
    let said = docker.stats(container, Some(options)).next().await;
    let none = || Error::Step { step: format!("measuring {container}"), why: "the engine said nothing".into() };
    let said = said.ok_or_else(none)?.map_err(failure::step(format!("measuring {container}")))?;
    let memory = said.memory_stats.unwrap_or_default();
    let cached =
        memory.stats.as_ref().and_then(|stats| stats.get("total_inactive_file").or(stats.get("inactive_file")));
    let used = memory.usage.unwrap_or_default().saturating_sub(cached.copied().unwrap_or_default());
    let cpu = said.cpu_stats.and_then(|cpu| cpu.cpu_usage?.total_usage).unwrap_or_default();
    let pids = said.pids_stats.and_then(|pids| pids.current).unwrap_or_default();
    Ok(Usage {
        memory: Bytes(used),
        cpu: Duration::from_nanos(cpu),
        pids: u32::try_from(pids).unwrap_or(u32::MAX),
        disk: Bytes(0),
    })
}
