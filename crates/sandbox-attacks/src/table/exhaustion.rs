//! Using up what is everybody's. Each in a sandbox of its own with small limits.

use crate::{
    Attack, Group,
    Wall::{self, *},
    attack::{Room, Way},
    expectation::{files_on_their_way, kernel_memory, own_counts, own_share, own_user, removed_files},
    outside::jobs,
};

const fn exhaustion(name: &'static str, walls: &'static [Wall], tries: &'static str) -> Attack {
    Attack::new(Group::Exhaustion, Way::Exhausting(Room::Small), name, walls, tries)
}

/// All of the group.
pub(super) const ATTACKS: &[Attack] = &[
    exhaustion("fork_bomb", &[PidsLimit], "Starts processes until no more can be started"),
    exhaustion("fork_tree", &[PidsLimit], "Starts processes that start processes"),
    exhaustion("thread_bomb", &[PidsLimit], "Starts threads until no more can be started"),
    exhaustion("zombie_flood", &[PidsLimit], "Starts processes that end and that nobody takes note of"),
    exhaustion("orphan_flood", &[PidsLimit, ExecutorHardening], "Leaves thousands of processes to the first process"),
    exhaustion(
        "runaway_siblings",
        &[PidsLimit, CleanUp],
        "Starts processes that replace each other faster than they can be killed",
    ),
    exhaustion("cpu_by_processes", &[CpuLimit], "Uses more processor time than its share with processes"),
    exhaustion("cpu_by_threads", &[CpuLimit], "Uses more processor time than its share with threads"),
    exhaustion("memory_private", &[MemoryLimit], "Takes more memory than allowed"),
    exhaustion("memory_shared", &[MemoryLimit, SystemCallFilter], "Takes shared memory that belongs to no file"),
    exhaustion("memory_of_zero_device", &[MemoryLimit, Devices], "Takes shared memory by way of /dev/zero"),
    exhaustion("memory_file", &[MemoryLimit, SystemCallFilter], "Takes memory as files without a disk"),
    exhaustion("memory_of_children", &[MemoryLimit], "Takes memory with many processes, each below the limit"),
    exhaustion("memory_segments", &[MemoryLimit, SystemCallFilter], "Takes shared memory that nobody is attached to"),
    exhaustion("memory_in_dev_shm", &[MemoryLimit], "Takes memory as files in /dev/shm"),
    exhaustion("memory_in_tmp", &[MemoryLimit], "Takes memory as files in a large /tmp")
        .by(Way::Exhausting(Room::LargeTmp))
        .expecting(kernel_memory),
    exhaustion("memory_in_pipes", &[MemoryLimit, UserLimits], "Takes memory in the buffers of pipes")
        .by(Way::Exhausting(Room::Kernels))
        .expecting(kernel_memory),
    exhaustion(
        "memory_spliced_into_pipes",
        &[MemoryLimit, SystemCallFilter],
        "Takes memory that pipes keep by a byte of each page",
    ),
    exhaustion("memory_in_sockets", &[MemoryLimit], "Takes memory in the buffers of sockets")
        .by(Way::Exhausting(Room::Kernels))
        .expecting(kernel_memory),
    exhaustion("memory_in_page_tables", &[MemoryLimit], "Takes memory for tables of memory that is not there")
        .by(Way::Exhausting(Room::Kernels))
        .expecting(kernel_memory),
    exhaustion("memory_locked", &[MemoryLimit, UserLimits], "Takes memory that cannot be swapped out"),
    exhaustion("tmp_beyond_its_size", &[TmpLimit], "Fills /tmp beyond its size"),
    exhaustion("disk_by_name", &[DiskLimit], "Fills the disk with files"),
    exhaustion("disk_in_home", &[DiskLimit], "Fills the disk with files in HOME"),
    exhaustion("disk_in_root", &[DiskLimit, ReadOnlyRoot], "Fills the disk with files in the root file system"),
    exhaustion("disk_without_a_name", &[DiskLimit], "Fills the disk with open files that have no name")
        .expecting(removed_files),
    exhaustion("disk_mapped_without_a_name", &[DiskLimit], "Fills the disk with files that only memory refers to")
        .expecting(removed_files),
    exhaustion("disk_on_its_way", &[DiskLimit], "Fills the disk with files that are on their way between processes")
        .expecting(files_on_their_way),
    exhaustion(
        "disk_kept_by_a_rule",
        &[DiskLimit, SystemCallFilter],
        "Fills the disk with files that only rules refer to",
    ),
    exhaustion("disk_of_running_programs", &[DiskLimit], "Fills the disk with programs that run and have no name")
        .expecting(removed_files),
    exhaustion("disk_mapped_in_odd_folders", &[DiskLimit], "Fills the disk with files whose names look like memory"),
    exhaustion("disk_reserved", &[DiskLimit], "Reserves room on the disk without writing"),
    exhaustion("disk_sparse_then_filled", &[DiskLimit], "Fills holes in huge files"),
    exhaustion("disk_inodes", &[DiskLimit], "Makes more empty files than the disk has room for")
        .by(Way::Exhausting(Room::TinyDisk)),
    exhaustion("disk_attributes", &[DiskLimit], "Fills the disk with attributes of files")
        .by(Way::Exhausting(Room::TinyDisk)),
    exhaustion("disk_long_names", &[DiskLimit], "Fills a folder with long names"),
    exhaustion("open_files", &[UserLimits], "Opens files without end"),
    exhaustion("inotify_instances", &[UserLimits], "Uses up the user's file watchers").expecting(own_counts),
    exhaustion("inotify_watches", &[UserLimits], "Uses up the user's watched files").expecting(own_counts),
    exhaustion("share_of_files", &[UserLimits], "Opens more files than a sandbox has of its user's")
        .expecting(own_share),
    exhaustion("share_of_signals", &[UserLimits], "Queues more signals than a sandbox has of its user's")
        .expecting(own_share),
    exhaustion("share_of_terminals", &[UserLimits], "Opens more terminals than a sandbox has of the machine's")
        .expecting(own_share),
    exhaustion("share_of_watchers", &[UserLimits], "Takes more file watchers than a sandbox has of its user's")
        .expecting(own_share),
    exhaustion("terminals", &[UserLimits], "Uses up the machine's terminals").expecting(own_counts),
    exhaustion("queued_signals", &[UserLimits], "Uses up the user's queue of signals").expecting(own_counts),
    exhaustion("message_queues", &[UserLimits, IpcNamespace], "Uses up message queues"),
    exhaustion("aio_contexts", &[UserLimits, SystemCallFilter], "Uses up the machine's asynchronous I/O"),
    exhaustion("timers", &[UserLimits], "Uses up the user's timers").expecting(own_counts),
    exhaustion("epoll_watches", &[UserLimits], "Uses up the user's watched descriptors"),
    exhaustion("event_descriptors", &[UserLimits], "Opens event descriptors without end"),
    exhaustion("file_locks", &[UserLimits, MemoryLimit], "Takes thousands of locks on a file"),
    exhaustion(
        "descriptors_on_their_way",
        &[UserLimits],
        "Sends descriptors that nobody receives, until the user can send no more",
    )
    .expecting(own_user),
    exhaustion("semaphores", &[UserLimits, IpcNamespace], "Uses up semaphores"),
    exhaustion("pipe_buffers", &[UserLimits], "Uses up the user's room for pipes").expecting(own_user),
    exhaustion("ignored_deadline", &[TimeLimit], "Ignores every signal when its time is over")
        .by(Way::Outside(jobs::ignored_deadline)),
    exhaustion("daemon_survives_job", &[CleanUp], "Leaves a daemon behind when its job is killed")
        .by(Way::Outside(jobs::daemon_survives_job)),
    exhaustion(
        "daemon_survives_sandbox",
        &[CleanUp, PidNamespace],
        "Leaves a daemon behind when its sandbox is removed",
    )
    .by(Way::Outside(jobs::daemon_survives_sandbox)),
    exhaustion("output_floods", &[MemoryLimit, ExecutorHardening], "Writes output without end that nobody reads")
        .by(Way::Outside(jobs::output_flood)),
];
