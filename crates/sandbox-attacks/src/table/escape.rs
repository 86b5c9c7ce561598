//! Ways out of the sandbox, into its executor and into the kernel.

use crate::{
    Attack, Group,
    Wall::{self, *},
    attack::Way,
    expectation::{
        another_user, capabilities_may_be_granted, debuggers_may, device_folder, hidden_settings, no_devices,
        own_output, proc_of_root, root_inside_may, root_may_be_writable, scores, socket_names,
    },
    outside::neighbours,
};

const fn escape(name: &'static str, walls: &'static [Wall], tries: &'static str) -> Attack {
    Attack::new(Group::Escape, Way::Inside, name, walls, tries)
}

/// What is mounted where.
pub(super) const MOUNTS: &[Attack] = &[
    escape("mount_tmpfs", &[Capabilities, SystemCallFilter], "Mounts a new file system in memory"),
    escape("mount_proc", &[Capabilities, SystemCallFilter], "Mounts a new /proc, without the masks of the sandbox's"),
    escape("mount_sysfs", &[Capabilities, SystemCallFilter], "Mounts the kernel's /sys"),
    escape(
        "mount_cgroup",
        &[Capabilities, SystemCallFilter],
        "Mounts the cgroup tree, to change limits or start a program outside",
    ),
    escape("mount_bind", &[Capabilities, SystemCallFilter], "Binds the root to another folder"),
    escape("mount_overlay", &[Capabilities, SystemCallFilter], "Mounts an overlay over the machine's programs"),
    escape("remount_root_writable", &[Capabilities, SystemCallFilter], "Mounts read-only folders again, writable"),
    escape("unmount_masks", &[Capabilities, SystemCallFilter], "Unmounts what covers parts of /proc and /dev"),
    escape(
        "mount_by_descriptor",
        &[Capabilities, SystemCallFilter],
        "Makes a file system with the calls fsopen and fsmount",
    ),
    escape("copy_mount_tree", &[Capabilities, SystemCallFilter], "Copies the mount tree with open_tree"),
    escape("move_mount", &[Capabilities, SystemCallFilter], "Moves a mount with move_mount"),
    escape("make_mount_writable", &[Capabilities, SystemCallFilter], "Takes read-only off a mount with mount_setattr"),
    escape("pivot_root", &[Capabilities, SystemCallFilter], "Changes the root with pivot_root"),
    escape(
        "chroot_walk",
        &[Capabilities, MountNamespace],
        "Changes the root below an open folder and walks up to the machine's",
    ),
    escape("above_the_root", &[MountNamespace], "Looks above the root for the machine's"),
    escape("write_root", &[ReadOnlyRoot, Identity], "Makes files in the folders of the root file system")
        .expecting(root_may_be_writable),
    escape(
        "root_mounted_writable",
        &[ReadOnlyRoot],
        "Looks whether more than the owner of files keeps it from changing the root",
    )
    .expecting(root_may_be_writable),
    escape("write_system_folders", &[ReadOnlyRoot, ProcMasks, Devices], "Makes files in /dev, /proc and /sys")
        .expecting(device_folder),
    escape(
        "preload_for_others",
        &[ReadOnlyRoot, Identity],
        "Names a library that the loader puts into every later command",
    )
    .expecting(root_may_be_writable),
];

/// New namespaces, and other ones that exist.
pub(super) const NAMESPACES: &[Attack] = &[
    escape(
        "unshare_user",
        &[SystemCallFilter, UserNamespace],
        "Makes a user namespace, in which it would be root with all capabilities",
    ),
    escape("unshare_mount", &[SystemCallFilter, Capabilities], "Makes a mount namespace"),
    escape("unshare_pid", &[SystemCallFilter, Capabilities], "Makes a process namespace"),
    escape("unshare_network", &[SystemCallFilter, Capabilities], "Makes a network namespace"),
    escape("unshare_ipc", &[SystemCallFilter, Capabilities], "Makes a namespace for shared memory"),
    escape("unshare_uts", &[SystemCallFilter, Capabilities], "Makes a namespace for the host name"),
    escape("unshare_cgroup", &[SystemCallFilter, Capabilities], "Makes a cgroup namespace"),
    escape("unshare_time", &[SystemCallFilter, Capabilities], "Makes a time namespace"),
    escape(
        "clone_with_namespaces",
        &[SystemCallFilter, UserNamespace],
        "Starts a process in new namespaces with clone",
    ),
    escape(
        "clone3_with_namespaces",
        &[SystemCallFilter, UserNamespace],
        "Starts a process in new namespaces with clone3, whose flags a filter cannot see",
    ),
    escape(
        "enter_namespaces_of_first_process",
        &[ExecutorHardening, SystemCallFilter],
        "Enters the first process's namespaces through its files in /proc",
    ),
    escape(
        "enter_namespaces_by_pidfd",
        &[SystemCallFilter, Capabilities],
        "Enters the first process's namespaces by a descriptor of it",
    ),
];

/// The executor, which is the sandbox's first process.
pub(super) const FIRST_PROCESS: &[Attack] = &[
    escape("first_process_root", &[ExecutorHardening], "Lists the first process's root through /proc/1/root"),
    escape("first_process_folder", &[ExecutorHardening], "Lists the first process's folder through /proc/1/cwd"),
    escape("first_process_descriptors", &[ExecutorHardening], "Lists the first process's open files")
        .expecting(hidden_settings),
    escape("first_process_environment", &[ExecutorHardening, Environment], "Reads the first process's variables"),
    escape("first_process_memory", &[ExecutorHardening], "Opens the first process's memory"),
    escape("first_process_map", &[ExecutorHardening], "Reads where the first process's memory lies"),
    escape("first_process_state", &[ExecutorHardening], "Reads the first process's registers, stack and counters"),
    escape("first_process_layout", &[ExecutorHardening], "Reads addresses of the first process from its status line"),
    escape("first_process_program", &[ExecutorHardening], "Opens the first process's program"),
    escape("first_process_program_overwrite", &[ExecutorHardening], "Opens the first process's program for writing"),
    escape("first_process_namespaces", &[ExecutorHardening], "Reads which namespaces the first process is in"),
    escape(
        "first_process_oom_score",
        &[ExecutorHardening, Identity],
        "Makes the first process the first to be killed when memory is short",
    )
    .expecting(hidden_settings)
    .by(Way::Alone),
    escape(
        "first_process_settings",
        &[ExecutorHardening, Identity],
        "Changes the first process's name, timers, dumps and scheduling through /proc",
    )
    .expecting(hidden_settings)
    .by(Way::Alone),
    escape(
        "first_process_id_maps",
        &[ExecutorHardening, Capabilities],
        "Writes the first process's tables of users and groups",
    ),
    escape("ptrace_first_process", &[SystemCallFilter, ExecutorHardening], "Traces the first process").by(Way::Alone),
    escape(
        "read_first_process_by_vm",
        &[SystemCallFilter, ExecutorHardening],
        "Reads the first process's memory with process_vm_readv",
    ),
    escape(
        "write_first_process_by_vm",
        &[SystemCallFilter, ExecutorHardening],
        "Writes the first process's memory with process_vm_writev",
    ),
    escape(
        "take_descriptor_of_first_process",
        &[SystemCallFilter, ExecutorHardening],
        "Takes open files from the first process with pidfd_getfd",
    ),
    escape(
        "compare_with_first_process",
        &[SystemCallFilter, ExecutorHardening],
        "Compares its memory with the first process's by kcmp",
    ),
    escape("limits_of_first_process", &[SystemCallFilter, ExecutorHardening], "Sets the first process's limits"),
    escape(
        "processors_of_first_process",
        &[Identity, ExecutorHardening],
        "Sets which processors the first process may use",
    )
    .expecting(another_user)
    .by(Way::Alone),
    escape(
        "priority_of_first_process",
        &[Identity, ExecutorHardening],
        "Lowers the first process's priority, so that it answers late",
    )
    .expecting(another_user)
    .by(Way::Alone),
    escape(
        "pages_of_first_process",
        &[SystemCallFilter, ExecutorHardening],
        "Has the first process's memory moved, cooled or released",
    ),
    escape("session_of_first_process", &[ExecutorHardening], "Looks whether the first process is in a session outside"),
    escape(
        "signals_of_files_to_first_process",
        &[PidNamespace, ExecutorHardening],
        "Has signals sent to the first process by sockets that have something to read",
    )
    .by(Way::Alone),
    escape(
        "null_device_of_first_process",
        &[ReadOnlyRoot, ExecutorHardening],
        "Puts a pipe in place of /dev/null, which the first process might open",
    )
    .by(Way::Alone),
    escape(
        "signals_to_first_process",
        &[PidNamespace, ExecutorHardening],
        "Sends every signal to the first process by every way",
    )
    .by(Way::Alone),
    escape("kill_everything", &[PidNamespace, ExecutorHardening], "Stops and kills everything that it may signal")
        .by(Way::Alone),
];

/// Doors into the kernel.
pub(super) const KERNEL: &[Attack] = &[
    escape("kexec_load", &[SystemCallFilter, Capabilities], "Loads another kernel"),
    escape("kexec_file_load", &[SystemCallFilter, Capabilities], "Loads another kernel from a file"),
    escape("load_module", &[SystemCallFilter, Capabilities], "Loads a module into the kernel"),
    escape("load_module_from_file", &[SystemCallFilter, Capabilities], "Loads a module into the kernel from a file"),
    escape("remove_module", &[SystemCallFilter, Capabilities], "Removes a module from the kernel"),
    escape("bpf", &[SystemCallFilter, Capabilities], "Makes a bpf map and loads a bpf program"),
    escape("io_uring", &[SystemCallFilter], "Sets up io_uring, whose calls no filter sees"),
    escape("io_uring_register", &[SystemCallFilter], "Registers something with io_uring"),
    escape("add_key", &[SystemCallFilter], "Adds a key to the kernel's key store, which no namespace divides"),
    escape("read_keyring", &[SystemCallFilter], "Asks for a keyring of its session"),
    escape("request_key", &[SystemCallFilter], "Has the kernel look for a key, which starts a program outside"),
    escape("userfaultfd", &[SystemCallFilter], "Takes over page faults, with which races in the kernel are won"),
    escape("perf_event_open", &[SystemCallFilter], "Counts events of the processor"),
    escape("open_by_handle", &[SystemCallFilter, Capabilities], "Opens a file by its number instead of a path"),
    escape("quotactl", &[SystemCallFilter], "Asks for disk quotas of the machine"),
    escape("swapon", &[SystemCallFilter, Capabilities], "Adds swap space to the machine"),
    escape("reboot", &[SystemCallFilter, Capabilities], "Restarts the machine (asked so that nothing happens)"),
    escape("set_time", &[SystemCallFilter, Capabilities], "Sets the machine's clock"),
    escape("set_host_name", &[SystemCallFilter, UtsNamespace, Capabilities], "Sets the host name"),
    escape("io_ports", &[SystemCallFilter, Capabilities], "Reaches the processor's ports"),
    escape("process_accounting", &[SystemCallFilter, Capabilities], "Switches process accounting on"),
    escape("fanotify", &[SystemCallFilter, Capabilities], "Watches all files of a file system"),
    escape("hang_up_terminal", &[SystemCallFilter, Capabilities], "Hangs up the terminal"),
    escape("trace_a_child", &[SystemCallFilter], "Traces a child, with which filters were circumvented")
        .expecting(debuggers_may),
    escape("secret_memory", &[SystemCallFilter], "Takes memory that even the kernel cannot see"),
    escape("weaken_personality", &[SystemCallFilter], "Switches random addresses off for the programs that it starts")
        .expecting(debuggers_may),
    escape("unfiltered", &[SystemCallFilter], "Looks whether system calls are filtered at all"),
    escape("unknown_calls", &[SystemCallFilter], "Makes system calls with numbers that no kernel has yet"),
    escape("calls_32_bit", &[SystemCallFilter], "Makes a system call as a 32-bit program"),
    escape("calls_x32", &[SystemCallFilter], "Makes a system call by the x32 table"),
    escape("crypto_sockets", &[SystemCallFilter], "Opens a socket to the kernel's cryptography"),
    escape("vsock_sockets", &[SystemCallFilter], "Opens a socket to the hypervisor"),
    escape("packet_sockets", &[SystemCallFilter, Capabilities], "Opens a socket for raw packets"),
    escape("odd_socket_families", &[SystemCallFilter], "Opens a socket of any family that programs do not need"),
    escape("netlink_kinds", &[SystemCallFilter], "Opens netlink sockets other than the one that lists addresses"),
    escape(
        "core_pattern",
        &[ReadOnlyRoot, ProcMasks, Capabilities],
        "Changes the program that the kernel starts for a crash",
    ),
    escape(
        "modprobe_path",
        &[ReadOnlyRoot, ProcMasks, Capabilities],
        "Changes the program that the kernel starts to load modules",
    ),
    escape("user_namespace_limit", &[ReadOnlyRoot, ProcMasks, Capabilities], "Raises the limit of user namespaces"),
    escape(
        "binfmt_misc",
        &[ProcMasks, Capabilities],
        "Registers an interpreter that the kernel starts for a kind of file",
    ),
    escape("sysrq_trigger", &[ProcMasks, Capabilities], "Presses the kernel's emergency keys"),
    escape("kernel_settings", &[ProcMasks, Capabilities], "Opens every setting in /proc/sys for writing"),
    escape("proc_files", &[ProcMasks, Identity], "Opens every other file of /proc for writing").expecting(proc_of_root),
    escape("sys_files", &[MountNamespace, Capabilities], "Opens every file of /sys for writing"),
    escape("cgroup_files", &[MountNamespace, CgroupNamespace], "Writes the files that hold its limits"),
    escape(
        "release_agent",
        &[MountNamespace, Capabilities],
        "Names a program that the kernel starts outside when a cgroup empties",
    ),
];

/// Devices, terminals, descriptors and sockets of the machine.
pub(super) const MACHINE: &[Attack] = &[
    escape("make_block_device", &[Capabilities, Devices, UserNamespace], "Makes a node for a disk and opens it"),
    escape(
        "make_character_device",
        &[Capabilities, Devices, UserNamespace],
        "Makes a node for memory, consoles or virtual machines and opens it",
    )
    .expecting(no_devices),
    escape(
        "device_files",
        &[Devices],
        "Makes a file for a device that everybody may name, and has the kernel look for it",
    )
    .expecting(no_devices),
    escape("open_host_devices", &[Devices, MountNamespace], "Opens devices of the machine"),
    escape("unexpected_devices", &[Devices], "Looks for devices beyond the usual six"),
    escape("type_into_terminal", &[SystemCallFilter], "Types into a terminal with TIOCSTI"),
    escape(
        "console_ioctls",
        &[SystemCallFilter, Capabilities],
        "Takes the console's output, and pastes with TIOCLINUX",
    ),
    escape("line_disciplines", &[SystemCallFilter], "Sets drivers for modems and buses on a terminal"),
    escape(
        "controlling_terminal",
        &[Descriptors],
        "Opens the terminal of whoever started the sandbox, or shares their session",
    ),
    escape("inherited_descriptors", &[Descriptors], "Looks for files that were left open"),
    escape("standard_streams", &[Descriptors], "Looks where its standard streams lead"),
    escape("read_own_output", &[ExecutorHardening, Identity], "Opens the pipe that its output goes to for reading")
        .expecting(own_output),
    escape("other_processes_descriptors", &[ExecutorHardening, Identity], "Lists open files of processes of others")
        .expecting(capabilities_may_be_granted),
    escape("runtime_sockets", &[MountNamespace], "Connects to Docker, containerd, systemd, D-Bus, X11 and their like"),
    escape("any_socket_file", &[MountNamespace], "Connects to any socket that it finds among the files"),
    escape("socket_table", &[NetworkNamespace], "Looks for local sockets of others, the executor's among them")
        .expecting(socket_names)
        .by(Way::Outside(neighbours::socket_table)),
];

/// Becoming more than one is.
pub(super) const PRIVILEGES: &[Attack] = &[
    escape("become_root", &[Identity, Capabilities], "Becomes root inside").expecting(root_inside_may),
    escape("become_root_group", &[Identity, Capabilities], "Becomes a member of root's group")
        .expecting(root_inside_may),
    escape("hold_capabilities", &[Capabilities], "Looks for capabilities beyond the policy"),
    escape("raise_capabilities", &[Capabilities], "Raises every capability with capset"),
    escape("raise_ambient_capabilities", &[Capabilities], "Raises ambient capabilities"),
    escape("change_securebits", &[Capabilities], "Changes how capabilities and root belong together")
        .expecting(capabilities_may_be_granted),
    escape("move_own_memory_map", &[Capabilities], "Changes what the kernel notes about its memory"),
    escape(
        "setuid_programs",
        &[NoNewPrivileges, MountNamespace],
        "Starts programs that are root for whoever starts them",
    ),
    escape("own_setuid_program", &[NoNewPrivileges, MountNamespace], "Makes a program setuid and starts it")
        .expecting(root_inside_may),
    escape(
        "setuid_for_another",
        &[NoNewPrivileges, MountNamespace],
        "Makes a program setuid for another user and starts it",
    ),
    escape("file_capabilities", &[Capabilities, UserNamespace], "Gives a program the capability to administer")
        .expecting(capabilities_may_be_granted),
    escape("gain_by_exec", &[NoNewPrivileges], "Looks whether starting a program may gain privileges"),
    escape("give_files_away", &[Capabilities, Identity], "Gives a file to another user")
        .expecting(capabilities_may_be_granted),
    escape("realtime_priority", &[Capabilities], "Takes real-time priority, before everybody else"),
    escape("raise_priority", &[Capabilities], "Raises its own priority"),
    escape("raise_hard_limit", &[Capabilities], "Raises its own hard limits"),
    escape("protect_from_oom", &[Capabilities], "Makes others be killed first when memory is short").expecting(scores),
];
