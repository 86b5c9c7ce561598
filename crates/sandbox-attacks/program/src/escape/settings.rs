//! The kernel's settings: every file of `/proc` and `/sys` that could be written. Files are opened and closed again;
//! where something is written it is the value that was there.

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use crate::{Attack, arguments::Arguments, outcome::Outcome};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("core_pattern", |_| write_same("/proc/sys/kernel/core_pattern")),
    ("modprobe_path", |_| {
        Outcome::first_breach(
            ["/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/sys/kernel/uevent_helper"].map(write_same),
        )
    }),
    ("user_namespace_limit", |_| write_same("/proc/sys/user/max_user_namespaces")),
    ("binfmt_misc", |_| {
        Outcome::of("opening binfmt_misc/register", writable(Path::new("/proc/sys/fs/binfmt_misc/register")))
    }),
    ("sysrq_trigger", |_| Outcome::of("opening sysrq-trigger for writing", writable(Path::new("/proc/sysrq-trigger")))),
    ("kernel_settings", |_| sweep("/proc/sys", 6, &[])),
    ("proc_files", |_| sweep("/proc", 4, &["/proc/sys", "/proc/self", "/proc/thread-self"])),
    ("sys_files", |_| sweep("/sys", 5, &[])),
    ("cgroup_files", cgroup_files),
    ("release_agent", release_agent),
];

fn writable(path: &Path) -> std::io::Result<fs::File> {
    fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

fn write_same(path: &str) -> Outcome {
    let Ok(value) = fs::read(path) else {
        return Outcome::first_breach([Outcome::of(format!("opening {path} for writing"), writable(Path::new(path)))]);
    };
    let written = writable(Path::new(path)).and_then(|mut file| file.write_all(&value));
    Outcome::of(format!("writing {path}"), written)
}

/// Files that can be opened for writing. Numbers in `/proc` are processes, tried elsewhere.
fn sweep(root: &str, depth: u32, without: &[&str]) -> Outcome {
    let mut open = Vec::new();
    let mut seen = 0;
    let mut folders = vec![(PathBuf::from(root), 0)];
    while let Some((folder, level)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let is_process =
                name.to_str().is_some_and(|name| name.parse::<u32>().is_ok()) && root == "/proc" && level == 0;
            let Ok(kind) = entry.file_type() else { continue };
            if is_process || without.iter().any(|known| path == Path::new(known)) {
                continue;
            }
            if kind.is_dir() && level < depth && seen < 30_000 {
                folders.push((path, level + 1));
            } else if fs::symlink_metadata(&path).is_ok_and(|found| found.is_file()) {
                // What is masked by a device is not that file any more.
                seen += 1;
                if writable(&path).is_ok() {
                    open.push(path.display().to_string());
                }
            }
        }
    }
    Outcome::of_list(format!("of {seen} files of {root} can be written"), open)
}

fn cgroup_files(_: &Arguments) -> Outcome {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter(|line| line.contains(" - cgroup")).filter_map(|line| line.split(' ').nth(4));
    let points: Vec<String> = points.map(str::to_owned).chain(["/sys/fs/cgroup".to_owned()]).collect();
    let files = [
        "cgroup.procs",
        "tasks",
        "memory.max",
        "memory.limit_in_bytes",
        "pids.max",
        "cpu.max",
        "cgroup.subtree_control",
    ];
    let writable_files = points.iter().flat_map(|point| files.map(|file| format!("{point}/{file}")));
    Outcome::of_list(
        "cgroup files that can be written",
        writable_files.filter(|path| writable(Path::new(path)).is_ok()).collect(),
    )
}

/// A program that the kernel starts outside when a cgroup empties.
fn release_agent(_: &Arguments) -> Outcome {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter(|line| line.contains(" - cgroup ")).filter_map(|line| line.split(' ').nth(4));
    let attempts =
        points.flat_map(|point| ["release_agent", "notify_on_release"].map(|file| format!("{point}/{file}")));
    let attempts = attempts.chain(["/sys/fs/cgroup/release_agent".to_owned()]);
    let attempts = attempts.map(|path| Outcome::of(format!("opening {path}"), writable(Path::new(&path))));
    Outcome::first_breach(attempts.collect::<Vec<_>>())
}
