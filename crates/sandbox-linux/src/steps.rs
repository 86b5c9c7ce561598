//! What is done beneath the new root of a sandbox, step by step. Pure.

use std::path::PathBuf;

use sandbox_core::{
    Bytes, SandboxSpec,
    policy::{Capabilities, Root, User},
};
use serde::{Deserialize, Serialize};

use crate::{
    certificates,
    host::Host,
    layers::Layers,
    prepared::Prepared,
    root,
    wall::{self, Wall},
};

/// Covered in `/proc`: what container engines cover, and what tells this machine's hardware and disks apart from others
/// without being of use to a program that runs here.
pub const MASKED: [&str; 21] = [
    "acpi",
    "asound",
    "bus",
    "cmdline",
    "config.gz",
    "consoles",
    "diskstats",
    "driver",
    "interrupts",
    "iomem",
    "ioports",
    "kallsyms",
    "kcore",
    "keys",
    "latency_stats",
    "partitions",
    "pressure",
    "sched_debug",
    "scsi",
    "timer_list",
    "tty",
];
/// Cannot be changed there.
pub const FROZEN: [&str; 4] = ["fs", "irq", "sys", "sysrq-trigger"];

/// One thing done beneath the new root. Targets are relative to it, sources are paths of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Step {
    Folder {
        target: String,
        mode: u32,
    },
    Link {
        target: String,
        to: String,
    },
    Bind {
        source: PathBuf,
        target: String,
        access: Access,
    },
    /// Folders, with a layer of the sandbox's own above them.
    Layers {
        target: String,
        layers: Layers,
    },
    Device {
        name: String,
    },
    /// A file of nothing in place of `/dev/zero`: memory that is shared through the device has no owner who could be
    /// asked for it, so where memory is summed over processes the device is not there.
    Zeros {
        source: PathBuf,
    },
    Tmpfs {
        target: String,
        size: u64,
        mode: u32,
    },
    Proc,
    Terminals,
    /// A folder that may be written though the root may not: one of the sandbox's own where there is a source, else what
    /// is there already. It is made if missing, and belongs to this user inside.
    Place {
        source: Option<PathBuf>,
        target: String,
        owner: u32,
    },
    /// A folder with programs from outside, which is made if missing.
    Tool {
        source: PathBuf,
        target: String,
    },
    /// The stub over a program that the policy takes away.
    Cover {
        stub: PathBuf,
        target: String,
    },
    Mask {
        target: String,
    },
    Freeze {
        target: String,
    },
}

/// What may be done with a bound folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Access {
    Read,
    Write,
}

/// All of them, in their order.
pub fn steps(spec: &SandboxSpec, host: &Host, prepared: &Prepared) -> Vec<Step> {
    let folder = host.state.join("sandboxes").join(spec.id.as_str());
    let limits = &spec.policy.limits;
    let mut steps = Vec::with_capacity(64);
    let open = |target: &str| Step::Folder { target: target.into(), mode: 0o755 };
    steps.extend(["proc", "dev", "tmp", "workspace", "home", "home/sandbox"].map(open));
    steps.extend(root::programs(spec, host, prepared));
    let zeros = if host.cgroup.covers().memory {
        Step::Device { name: "zero".into() }
    } else {
        Step::Zeros { source: host.etc.join("zero") }
    };
    steps.extend(devices(limits.tmp, zeros));
    steps.push(Step::Proc);
    if wall::stands(Wall::Masks) {
        steps.extend(MASKED.map(|name| Step::Mask { target: format!("proc/{name}") }));
    }
    if wall::stands(Wall::FrozenProc) {
        steps.extend(FROZEN.map(|name| Step::Freeze { target: format!("proc/{name}") }));
    }
    let privileges = &spec.policy.privileges;
    if (privileges.user == User::Root || privileges.capabilities != Capabilities::NONE) && wall::stands(Wall::Masks) {
        // Who is root inside, or can become it, could change there how soon the executor is killed for memory.
        steps.push(Step::Mask { target: "proc/1".into() });
    }
    steps.push(Step::Tmpfs { target: "tmp".into(), size: limits.tmp.0, mode: 0o1777 });
    for (name, target) in [("workspace", "workspace"), ("home", "home/sandbox")] {
        steps.push(Step::Bind { source: folder.join(name), target: target.into(), access: Access::Write });
    }
    steps.extend(root::places(spec, &folder, prepared));
    steps.extend(root::tools(spec));
    steps.extend(root::covers(host, prepared));
    steps.extend(certificates::steps(spec, &folder));
    if spec.policy.filesystem.root == Root::ReadOnly && wall::stands(Wall::ReadOnlyRoot) {
        steps.push(Step::Freeze { target: ".".into() });
    }
    steps
}

fn devices(tmp: Bytes, zeros: Step) -> Vec<Step> {
    let mut steps = vec![Step::Tmpfs { target: "dev".into(), size: 64 << 10, mode: 0o755 }];
    let devices = ["null", "full", "random", "urandom", "tty"];
    steps.extend(devices.map(|name| Step::Device { name: name.into() }));
    steps.push(zeros);
    steps.push(Step::Terminals);
    steps.push(Step::Folder { target: "dev/shm".into(), mode: 0o1777 });
    steps.push(Step::Tmpfs { target: "dev/shm".into(), size: tmp.0.min(64 << 20), mode: 0o1777 });
    let links =
        [("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")];
    steps.extend(links.map(|(name, to)| Step::Link { target: format!("dev/{name}"), to: to.into() }));
    steps.push(Step::Freeze { target: "dev".into() });
    steps
}
