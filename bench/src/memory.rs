//! How much memory the machine and groups of processes use, in KiB.

use std::{collections::HashMap, fs, process};

use anyhow::{Context, Result};

/// Memory at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// All memory in use that is not cache of files: the loss of free memory.
    pub machine: f64,
    /// What the kernel holds: slab, stacks, page tables, per-processor data, files in memory.
    pub kernel: f64,
    /// Proportional set size of a group of processes; `None` where we may not read it.
    pub processes: Option<f64>,
}

/// Which processes belong to the thing measured.
pub enum Group {
    /// This process and all below it.
    Own,
    /// All that carry this text in their command line, and all below those.
    Marked(String),
}

impl Moment {
    /// Now.
    pub fn now(group: &Group) -> Result<Self> {
        let text = fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0)
        };
        // Cached holds shared memory too, which is in use.
        let file_cache = value("Buffers") + value("Cached") - value("Shmem");
        let machine = value("MemTotal") - value("MemFree") - file_cache;
        let kernel = ["Slab", "KernelStack", "PageTables", "Percpu", "Shmem"].into_iter().map(value).sum();
        Ok(Self { machine, kernel, processes: proportional_set(group) })
    }
}

/// What one process has in memory, in KiB.
pub fn resident(process: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("a process has a size")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn proportional_set(group: &Group) -> Option<f64> {
    let parents = parents();
    let mut sum = 0.0;
    for &id in parents.keys().filter(|&&id| belongs(id, group, &parents)) {
        match fs::read_to_string(format!("/proc/{id}/smaps_rollup")) {
            Ok(text) => sum += pss(&text),
            // It has just ended; anything else means that we may not look.
            Err(error) if !matches!(error.raw_os_error(), Some(2 | 3)) => return None,
            Err(_) => {}
        }
    }
    Some(sum)
}

fn pss(rollup: &str) -> f64 {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
}

fn belongs(id: u32, group: &Group, parents: &HashMap<u32, u32>) -> bool {
    let chosen = |id: u32| match group {
        Group::Own => id == process::id(),
        Group::Marked(mark) => fs::read(format!("/proc/{id}/cmdline"))
            .is_ok_and(|line| id != process::id() && String::from_utf8_lossy(&line).contains(mark.as_str())),
    };
    let mut at = id;
    loop {
        if chosen(at) {
            return true;
        }
        match parents.get(&at) {
            Some(&parent) if parent > 1 => at = parent,
            _ => return false,
        }
    }
}

/// The parent of every process.
fn parents() -> HashMap<u32, u32> {
    let Ok(folder) = fs::read_dir("/proc") else { return HashMap::new() };
    let ids = folder.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|id| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name stands in parentheses and may hold anything.
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        Some((id, parent))
    })
    .collect()
}
