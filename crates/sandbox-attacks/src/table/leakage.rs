//! Seeing what belongs to the machine or to other sandboxes.

use crate::{
    Attack, Group,
    Wall::{self, *},
    attack::Way,
    expectation::{cgroup_names, root_may_be_writable, unpromised},
    judge,
    outside::neighbours,
};

const fn leakage(name: &'static str, walls: &'static [Wall], tries: &'static str) -> Attack {
    Attack::new(Group::Leakage, Way::Inside, name, walls, tries)
}

/// All of the group.
pub(super) const ATTACKS: &[Attack] = &[
    leakage(
        "environment",
        &[Environment, PidNamespace],
        "Reads the variables of every process, for those of the server",
    )
    .by(Way::Judged(judge::environment)),
    leakage(
        "host_secrets",
        &[MountNamespace],
        "Reads files of the machine and of its user: keys, passwords, histories",
    )
    .by(Way::Judged(judge::host_secrets)),
    leakage("host_folders", &[MountNamespace], "Lists /home, /root, /run, /srv, /var and their like")
        .expecting(root_may_be_writable)
        .by(Way::Judged(judge::host_folders)),
    leakage(
        "host_canary_file",
        &[MountNamespace],
        "Looks for a file that the suite put into the machine's temporary folder",
    ),
    leakage("host_processes", &[PidNamespace], "Looks for a process that the suite started on the machine"),
    leakage("host_name", &[UtsNamespace], "Asks for the machine's name"),
    leakage("host_users", &[MountNamespace], "Looks for the machine's people in /etc/passwd"),
    leakage("mount_table", &[MountNamespace], "Looks in the mount table for folders of the machine")
        .expecting(unpromised)
        .by(Way::Judged(judge::mount_table)),
    leakage("cgroup_path", &[CgroupNamespace], "Asks for its place in the machine's cgroup tree")
        .expecting(cgroup_names)
        .by(Way::Judged(judge::cgroup_path)),
    leakage("boot_command_line", &[ProcMasks], "Reads how the machine's kernel was started")
        .by(Way::Judged(judge::boot_command_line)),
    leakage("interrupts", &[ProcMasks], "Reads the interrupt counters, with which key strokes were told apart"),
    leakage("kernel_config", &[ProcMasks], "Reads how the kernel was built"),
    leakage("kernel_addresses", &[ProcMasks, Capabilities], "Looks for addresses of the kernel"),
    leakage("kernel_secrets", &[ProcMasks], "Reads tables of the kernel: memory, keys, timers"),
    leakage("kernel_log", &[SystemCallFilter, Devices, Capabilities], "Reads the kernel's log"),
    leakage("sys_secrets", &[MountNamespace], "Reads serial numbers, addresses and energy counters in /sys"),
    leakage("shared_memory_segment", &[IpcNamespace], "Looks for shared memory that the suite has on the machine"),
    leakage("shared_memory_file", &[MountNamespace], "Looks for a file that the suite put into the machine's /dev/shm"),
    leakage("message_queue", &[IpcNamespace], "Looks for a message queue that the suite has on the machine"),
    leakage("network_tables", &[NetworkNamespace], "Looks for connections and neighbours of the machine"),
    leakage(
        "neighbours_things",
        &[MountNamespace, PidNamespace, IpcNamespace, NetworkNamespace],
        "Looks for files, processes, memory and sockets of another sandbox",
    )
    .by(Way::Outside(neighbours::neighbours_things)),
    leakage("leftovers", &[CleanUp], "Looks for what an earlier sandbox left").by(Way::Outside(neighbours::leftovers)),
];
