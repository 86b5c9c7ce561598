//! Cgroups of both versions: where this process may make them, one per sandbox, its limits, its use, its end.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::wall::{self, Wall};

/// Ours are all beneath a cgroup of this name.
const PARENT: &str = "sandbox-mcp";
/// Length of a period in which processor time is counted.
const CPU_PERIOD_US: u64 = 100_000;

/// All sandboxes together against one process outside (v1) or one other cgroup (v2), in hundredths: a server that has to
/// answer comes first, and an idle machine is theirs all the same.
const WEIGHT: u64 = 10;

/// How much a sandbox weighs against others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Weight {
    Full,
    Little,
}

/// Where cgroups can be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CgroupHost {
    /// One tree with all controllers.
    V2 {
        /// Sandboxes go beneath this folder.
        parent: PathBuf,
        /// Controllers that work there.
        covers: Covers,
    },
    /// A tree per controller.
    V1 {
        /// Controller and folder.
        parents: Vec<(String, PathBuf)>,
    },
    /// Nowhere, and why.
    None {
        /// Why not.
        why: String,
    },
}

/// Which limits cgroups hold here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Covers {
    pub memory: bool,
    pub cpu: bool,
    pub pids: bool,
}

/// Limits of one sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct CgroupLimits {
    pub memory: u64,
    pub cpu_millis: u32,
    pub pids: u32,
}

/// The cgroup of one sandbox.
#[derive(Debug)]
pub struct Cgroup {
    folders: Vec<PathBuf>,
    entry: Entry,
    oom: Option<OwnedFd>,
    refused: Option<OwnedFd>,
}

/// How the first process gets in.
#[derive(Debug)]
pub enum Entry {
    /// `clone3` puts it there (v2).
    Clone(OwnedFd),
    /// It writes `0` to each of these while it has a single thread (v1): unlike `cgroup.procs` that waits for nothing.
    Tasks(Vec<OwnedFd>),
    /// There is none.
    None,
}

impl Entry {
    /// The folder that `clone3` wants.
    pub fn folder(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Clone(folder) => Some(folder.as_fd()),
            Self::Tasks(_) | Self::None => None,
        }
    }

    /// The files that the first process writes to.
    pub fn files(&self) -> &[OwnedFd] {
        match self {
            Self::Tasks(files) => files,
            Self::Clone(_) | Self::None => &[],
        }
    }
}

impl CgroupHost {
    /// Finds where this process may make cgroups, and makes our parent there.
    pub fn find() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        match find_v2(&mounts, &own) {
            Ok(found) => found,
            Err(why) => find_v1(&mounts, &own).unwrap_or(Self::None { why }),
        }
    }

    /// Which limits are held here.
    pub fn covers(&self) -> Covers {
        match self {
            Self::V2 { covers, .. } => *covers,
            Self::V1 { parents } => {
                let has = |name: &str| parents.iter().any(|(controller, _)| controller == name);
                Covers { memory: has("memory"), cpu: has("cpu"), pids: has("pids") }
            }
            Self::None { .. } => Covers::default(),
        }
    }

    /// Whether a process is put into its cgroup when it is made, and not later.
    pub fn takes_in_at_birth(&self) -> bool {
        matches!(self, Self::V2 { .. })
    }

    /// In words.
    pub fn name(&self) -> &'static str {
        match self {
            Self::V2 { .. } => "cgroup v2",
            Self::V1 { .. } => "cgroup v1",
            Self::None { .. } => "no cgroup",
        }
    }

    /// Makes a cgroup with these limits.
    pub fn create(&self, name: &str, limits: &CgroupLimits) -> io::Result<Cgroup> {
        let folders = self.folders(name);
        for folder in &folders {
            match fs::create_dir(folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        let quota = u64::from(limits.cpu_millis) * CPU_PERIOD_US / 1000;
        match self {
            Self::V2 { covers, .. } => {
                let folder = &folders[0];
                if covers.memory {
                    fs::write(folder.join("memory.max"), limits.memory.to_string())?;
                    optional(folder.join("memory.swap.max"), "0");
                }
                if covers.cpu {
                    fs::write(folder.join("cpu.max"), format!("{quota} {CPU_PERIOD_US}"))?;
                }
                if covers.pids {
                    fs::write(folder.join("pids.max"), limits.pids.to_string())?;
                }
                let entry = Entry::Clone(open(folder, OFlags::RDONLY | OFlags::DIRECTORY)?);
                let oom = covers.memory.then(|| open(&folder.join("memory.events"), OFlags::RDONLY)).transpose()?;
                let refused = open(&folder.join("pids.events"), OFlags::RDONLY).ok();
                Ok(Cgroup { folders, entry, oom, refused })
            }
            Self::V1 { parents } => {
                let (mut tasks, mut oom, mut refused) = (Vec::new(), None, None);
                for ((controller, _), folder) in parents.iter().zip(&folders) {
                    match controller.as_str() {
                        "memory" => {
                            fs::write(folder.join("memory.limit_in_bytes"), limits.memory.to_string())?;
                            optional(folder.join("memory.memsw.limit_in_bytes"), &limits.memory.to_string());
                            oom = Some(open(&folder.join("memory.oom_control"), OFlags::RDONLY)?);
                        }
                        "cpu" => fs::write(folder.join("cpu.cfs_quota_us"), quota.to_string())?,
                        "pids" => {
                            fs::write(folder.join("pids.max"), limits.pids.to_string())?;
                            refused = open(&folder.join("pids.events"), OFlags::RDONLY).ok();
                        }
                        _ => {}
                    }
                    tasks.push(open(&folder.join("tasks"), OFlags::WRONLY)?);
                }
                Ok(Cgroup { folders, entry: Entry::Tasks(tasks), oom, refused })
            }
            Self::None { .. } => Ok(Cgroup { folders, entry: Entry::None, oom: None, refused: None }),
        }
    }

    /// What a sandbox uses, as far as its cgroup tells: memory, processor time, processes.
    pub fn usage(&self, name: &str) -> Option<(u64, Duration, u32)> {
        let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let folders = self.folders(name);
        match self {
            Self::V2 { .. } => {
                let folder = &folders[0];
                let stat = fs::read_to_string(folder.join("cpu.stat")).ok()?;
                let micros = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?.parse().ok()?;
                let pids = number(folder.join("pids.current"))? as u32;
                Some((number(folder.join("memory.current"))?, Duration::from_micros(micros), pids))
            }
            Self::V1 { parents } => {
                let file = |controller: &str, name: &str| {
                    let at = parents.iter().position(|(found, _)| found == controller)?;
                    number(folders[at].join(name))
                };
                let memory = file("memory", "memory.usage_in_bytes")?;
                let cpu = file("cpuacct", "cpuacct.usage").or_else(|| file("cpu", "cpuacct.usage"));
                let cpu = Duration::from_nanos(cpu.unwrap_or(0));
                Some((memory, cpu, file("pids", "pids.current")? as u32))
            }
            Self::None { .. } => None,
        }
    }

    /// Processor time that a sandbox has used.
    pub fn processor_time(&self, name: &str) -> Option<Duration> {
        match self {
            Self::V2 { parent, .. } => {
                let stat = fs::read_to_string(parent.join(name).join("cpu.stat")).ok()?;
                let micros = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
                Some(Duration::from_micros(micros.parse().ok()?))
            }
            Self::V1 { parents } => {
                let usage = |(_, parent): &(String, PathBuf)| {
                    fs::read_to_string(parent.join(name).join("cpuacct.usage")).ok()?.trim().parse().ok()
                };
                parents
                    .iter()
                    .filter(|(controller, _)| controller.starts_with("cpu"))
                    .find_map(usage)
                    .map(Duration::from_nanos)
            }
            Self::None { .. } => None,
        }
    }

    /// Weighs a sandbox against others.
    pub fn weigh(&self, name: &str, weight: Weight) {
        let percent = match weight {
            Weight::Full => 100,
            Weight::Little => 2,
        };
        match self {
            Self::V2 { parent, .. } => weigh(&parent.join(name), "cpu.weight", percent),
            Self::V1 { parents } => {
                for (_, parent) in parents.iter().filter(|(controller, _)| controller == "cpu") {
                    weigh(&parent.join(name), "cpu.shares", 1024 * percent / 100);
                }
            }
            Self::None { .. } => {}
        }
    }

    /// Removes the cgroup of a sandbox that has ended. True if something was there and is gone.
    pub fn remove(&self, name: &str) -> bool {
        remove_all(&self.folders(name))
    }

    /// Removes a cgroup if no process is in it. True if it was there and is gone.
    pub fn remove_empty(&self, name: &str) -> bool {
        let folders = self.folders(name);
        folders.iter().map(|folder| fs::remove_dir(folder).is_ok()).fold(!folders.is_empty(), |all, one| all && one)
    }

    /// Whether a cgroup was made a moment ago: perhaps its first process is on its way into it.
    pub fn is_young(&self, name: &str) -> bool {
        let age = |folder: &PathBuf| fs::metadata(folder).ok()?.modified().ok()?.elapsed().ok();
        self.folders(name).iter().filter_map(age).any(|age| age < Duration::from_secs(60))
    }

    /// Names of all sandboxes that have a cgroup here.
    pub fn existing(&self) -> Vec<String> {
        let first = match self {
            Self::V2 { parent, .. } => Some(parent),
            Self::V1 { parents } => parents.first().map(|(_, folder)| folder),
            Self::None { .. } => None,
        };
        let entries = first.and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn folders(&self, name: &str) -> Vec<PathBuf> {
        match self {
            Self::V2 { parent, .. } => vec![parent.join(name)],
            Self::V1 { parents } => parents.iter().map(|(_, parent)| parent.join(name)).collect(),
            Self::None { .. } => Vec::new(),
        }
    }
}

impl Cgroup {
    /// How the first process gets in.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// The kernel's count of out-of-memory kills.
    pub fn oom_counter(&self) -> Option<&OwnedFd> {
        self.oom.as_ref()
    }

    /// The kernel's count of processes that it refused.
    pub fn refused_counter(&self) -> Option<&OwnedFd> {
        self.refused.as_ref()
    }

    /// Closes what only a birth needs.
    pub fn settle(&mut self) {
        self.entry = Entry::None;
        (self.oom, self.refused) = (None, None);
    }

    /// Removes it; all its processes have ended.
    pub fn remove(&self) -> bool {
        remove_all(&self.folders)
    }
}

/// A process that has just ended may still be counted for a moment.
fn remove_all(folders: &[PathBuf]) -> bool {
    let gone = |folder: &PathBuf| {
        (0..100).any(|attempt| match fs::remove_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(_) => {
                std::thread::sleep(Duration::from_micros(100 << (attempt / 10)));
                false
            }
            Ok(()) => true,
        })
    };
    folders.iter().map(gone).fold(!folders.is_empty(), |all, one| all && one)
}

/// `ID PARENT DEVICE ROOT MOUNTPOINT OPTIONS … - TYPE SOURCE SUPER`, see proc_pid_mountinfo(5).
fn mount_points<'a>(mounts: &'a str, kind: &'a str) -> impl Iterator<Item = (&'a str, PathBuf, &'a str)> {
    mounts.lines().filter_map(move |line| {
        let (left, right) = line.split_once(" - ")?;
        let (found, super_options) = right.split_once(' ')?;
        let mut fields = left.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (found == kind).then(|| (root, PathBuf::from(point), super_options))
    })
}

fn find_v2(mounts: &str, own: &str) -> Result<CgroupHost, String> {
    let (_, mount, _) = mount_points(mounts, "cgroup2").next().ok_or("no cgroup v2 is mounted")?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).ok_or("this process is in no cgroup v2")?;
    let own = mount.join(path);
    let available = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
    if !available.split_whitespace().any(|name| name == "memory") {
        return Err("cgroup v2 is there, but without the memory controller".into());
    }
    // The highest cgroup above us that is ours to divide. As root that is the top.
    let delegated =
        own.ancestors().take_while(|folder| folder.starts_with(&mount)).filter(|folder| writable(folder)).last();
    let Some(delegated) = delegated else {
        return Err(format!("the cgroup {} is not delegated to this user", own.display()));
    };
    enable_controllers(delegated, &own)?;
    let parent = delegated.join(PARENT);
    make(&parent).map_err(|error| format!("making {}: {error}", parent.display()))?;
    let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory +pids");
    let _ = fs::write(parent.join("cgroup.subtree_control"), "+cpu");
    weigh(&parent, "cpu.weight", WEIGHT);
    let enabled = fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap_or_default();
    let has = |name: &str| enabled.split_whitespace().any(|found| found == name);
    let covers = Covers { memory: has("memory"), cpu: has("cpu"), pids: has("pids") };
    if covers == Covers::default() {
        return Err(format!("no controller is delegated beneath {}", delegated.display()));
    }
    Ok(CgroupHost::V2 { parent, covers })
}

/// A cgroup that is divided may hold no process itself (except the top): ours move to a leaf beside the sandboxes.
fn enable_controllers(delegated: &Path, own: &Path) -> Result<(), String> {
    let control = delegated.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&control).unwrap_or_default();
    if ["memory", "pids", "cpu"].iter().all(|name| enabled.split_whitespace().any(|found| found == *name)) {
        return Ok(());
    }
    if delegated == own && fs::write(&control, "+memory +pids").is_err() {
        let leaf = delegated.join("sandbox-mcp-host");
        make(&leaf).map_err(|error| format!("making {}: {error}", leaf.display()))?;
        let processes = fs::read_to_string(delegated.join("cgroup.procs")).unwrap_or_default();
        for process in processes.lines() {
            let _ = fs::write(leaf.join("cgroup.procs"), process);
        }
    }
    let _ = fs::write(&control, "+memory +pids");
    let _ = fs::write(&control, "+cpu");
    Ok(())
}

fn find_v1(mounts: &str, own: &str) -> Option<CgroupHost> {
    let mut parents = Vec::new();
    for controller in ["memory", "pids", "cpu", "cpuacct"] {
        let held = |options: &str| options.split([',', ' ']).any(|found| found == controller);
        let Some((root, mount, _)) = mount_points(mounts, "cgroup").find(|(_, _, options)| held(options)) else {
            continue;
        };
        let named =
            |line: &&str| line.split(':').nth(1).is_some_and(|names| names.split(',').any(|name| name == controller));
        let path = own.lines().find(named).and_then(|line| line.splitn(3, ':').nth(2)).unwrap_or("/");
        // In a container the mount shows a part of the tree only.
        let path = path.strip_prefix(root).unwrap_or(path).trim_start_matches('/');
        let parent = mount.join(path).join(PARENT);
        if make(&parent).is_ok() && !parents.iter().any(|(_, found)| *found == parent) {
            if controller == "cpu" {
                weigh(&parent, "cpu.shares", 1024 * WEIGHT / 100);
            }
            parents.push((controller.to_owned(), parent));
        }
    }
    (!parents.is_empty()).then_some(CgroupHost::V1 { parents })
}

/// Best effort: where it is refused everybody weighs the same.
fn weigh(parent: &Path, file: &str, weight: u64) {
    if wall::stands(Wall::CpuWeight) {
        optional(parent.join(file), &weight.to_string());
    }
}

fn make(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && writable(folder) => Ok(()),
        other => other,
    }
}

fn writable(folder: &Path) -> bool {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok()
        && rustix::fs::access(folder.join("cgroup.procs"), rustix::fs::Access::WRITE_OK).is_ok()
}

fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// Kernels without swap accounting have no such file; memory itself is limited all the same.
fn optional(path: PathBuf, value: &str) {
    let _ = fs::write(path, value);
}
