//! What no profile can switch off, and what none may refuse because the executor has the same filter.

use super::{
    Narrowing, names,
    rules::{Answer, Compare::Equal, Profile, Rule, Test},
};

/// Calls that are closed for ever, with the reason.
pub const NEVER: &[(&[&str], &str)] = &[
    (&["unshare", "setns"], "new namespaces bring back privileges that were dropped"),
    (
        &[
            "mount",
            "umount2",
            "pivot_root",
            "mount_setattr",
            "move_mount",
            "open_tree",
            "fsopen",
            "fsconfig",
            "fsmount",
            "fspick",
        ],
        "mounts are what keeps this machine's files out",
    ),
    (&["open_by_handle_at"], "opens files by number, past every mount and folder"),
    (&["bpf", "perf_event_open"], "programs and probes in the kernel that all share"),
    (
        &["io_uring_setup", "io_uring_enter", "io_uring_register"],
        "makes calls that no filter sees, in the part of the kernel with the most holes",
    ),
    (&["userfaultfd"], "stops the kernel in the middle of its work, which exploits need"),
    (&["keyctl", "add_key", "request_key"], "keys are not separated by all namespaces"),
    (&["init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load"], "changes the kernel itself"),
    (&["reboot", "swapon", "swapoff", "acct", "syslog", "quotactl", "quotactl_fd"], "acts on the whole machine"),
    (&["settimeofday", "clock_settime", "clock_adjtime", "adjtimex"], "there is one clock for all"),
    (&["iopl", "ioperm"], "ports of the hardware"),
];

const NEW_NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// The profile with everything taken out that no profile can give.
pub fn beneath(mut profile: Profile, narrowing: Narrowing) -> Profile {
    for name in NEVER.iter().flat_map(|(names, _)| *names) {
        only(&mut profile, name, Answer::REFUSE);
    }
    // Its flags are in memory, where a filter cannot look; libraries fall back to clone.
    only(&mut profile, "clone3", Answer::ABSENT);
    // A rule keeps its file after the last name and descriptor are gone, where nobody could count it.
    for name in ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"] {
        only(&mut profile, name, Answer::ABSENT);
    }
    refuse(&mut profile, "clone", vec![Test::any_of(0, NEW_NAMESPACES as u32)]);
    // The executor's limits, where it has the commands' uid.
    refuse(&mut profile, "prlimit64", vec![Test::is_not(0, 0)]);
    // Typing into terminals that one only reads from.
    refuse(&mut profile, "ioctl", vec![Test::is(1, libc::TIOCSTI as u32)]);
    refuse(&mut profile, "ioctl", vec![Test::is(1, libc::TIOCLINUX as u32)]);
    // Some families reach past the network namespace (vsock), others are seldom used parts of the kernel.
    let [unix, inet, inet6, netlink] =
        [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].map(|family| family as u32);
    let others = [unix, inet, inet6, netlink].map(|family| Test::is_not(0, family)).into();
    let other_kinds = vec![Test::is(0, netlink), Test::is_not(2, libc::NETLINK_ROUTE as u32)];
    answer(&mut profile, "socket", others, Answer::NO_FAMILY);
    answer(&mut profile, "socket", other_kinds, Answer::NO_PROTOCOL);
    answer(&mut profile, "socketpair", vec![Test::is_not(0, unix)], Answer::NO_FAMILY);
    if narrowing.visible_memory_only {
        // With vmsplice, and with sending without a copy, a pipe or socket keeps memory that no process has any more.
        for name in ["memfd_create", "memfd_secret", "shmget", "semget", "msgget", "vmsplice"] {
            only(&mut profile, name, Answer::REFUSE);
        }
        let zero_copy = [Test::is(1, libc::SOL_SOCKET as u32), Test::is(2, libc::SO_ZEROCOPY as u32)];
        refuse(&mut profile, "setsockopt", zero_copy.into());
        // MAP_SHARED is bit 0 also in MAP_SHARED_VALIDATE; MAP_PRIVATE is bit 1.
        let shared_without_file = [libc::MAP_SHARED, libc::MAP_ANONYMOUS].map(|flag| Test::any_of(3, flag as u32));
        refuse(&mut profile, "mmap", shared_without_file.into());
    }
    if narrowing.fixed_processors {
        only(&mut profile, "sched_setaffinity", Answer::REFUSE);
    }
    if let Some(capabilities) = narrowing.lenient_kernel {
        ask_as_linux_does(&mut profile, capabilities);
    }
    profile
}

/// fcntl(2), ioctl_sockios: numbers that the C library does not have for every system.
const F_SETOWN_EX: i32 = 15;
const FIOSETOWN: u32 = 0x8901;
const SIOCSPGRP: u32 = 0x8902;

/// What Linux asks a capability for and gVisor does not: a priority above the usual one, options of sockets that act on the
/// whole machine. And what nobody in a container has on Linux, but root has in gVisor: devices of one's own, and a first
/// process that signals end.
fn ask_as_linux_does(profile: &mut Profile, capabilities: u64) {
    const NET_ADMIN: u64 = 1 << 12;
    const SYS_NICE: u64 = 1 << 23;
    for name in ["kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open"] {
        refuse(profile, name, vec![Test::is(0, 1)]);
    }
    // Whose file has something to read is signalled too, with whatever signal one likes, and root may name anybody.
    for command in [libc::F_SETOWN, F_SETOWN_EX] {
        refuse(profile, "fcntl", vec![Test::is(1, command as u32)]);
    }
    for command in [FIOSETOWN, SIOCSPGRP] {
        refuse(profile, "ioctl", vec![Test::is(1, command)]);
    }
    for kind in [libc::S_IFCHR, libc::S_IFBLK] {
        let is_device = |argument| Test { argument, mask: libc::S_IFMT.into(), compare: Equal, value: kind.into() };
        refuse(profile, "mknod", vec![is_device(1)]);
        refuse(profile, "mknodat", vec![is_device(2)]);
    }
    if capabilities & SYS_NICE == 0 {
        const NEGATIVE: u32 = 1 << 31;
        refuse(profile, "setpriority", vec![Test::any_of(2, NEGATIVE)]);
    }
    if capabilities & NET_ADMIN == 0 {
        let (socket, ip) = (libc::SOL_SOCKET, libc::SOL_IP);
        let options = [libc::SO_MARK, libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE, libc::SO_DEBUG, libc::SO_PRIORITY];
        let options = options.map(|option| (socket, option)).into_iter();
        for (level, option) in options.chain([(ip, libc::IP_TRANSPARENT), (libc::SOL_IPV6, libc::IPV6_TRANSPARENT)]) {
            refuse(profile, "setsockopt", vec![Test::is(1, level as u32), Test::is(2, option as u32)]);
        }
    }
}

fn only(profile: &mut Profile, name: &str, answer: Answer) {
    if let Some(number) = names::number(name) {
        profile.calls.insert(number, vec![Rule::always(answer)]);
    }
}

/// Ahead of what the profile itself refuses, so that the answer is the same with every profile.
fn refuse(profile: &mut Profile, name: &str, tests: Vec<Test>) {
    answer(profile, name, tests, Answer::REFUSE);
}

/// Before all that the profile itself says of the call.
fn answer(profile: &mut Profile, name: &str, tests: Vec<Test>, answer: Answer) {
    if let Some(number) = names::number(name) {
        profile.calls.entry(number).or_default().insert(0, Rule { tests, answer });
    }
}

/// Calls that the executor makes with arguments of every kind.
#[rustfmt::skip]
const EXECUTOR: &[&str] = &[
    "accept4", "arch_prctl", "brk", "capset", "chdir", "clock_gettime", "close", "close_range", "dup", "dup3",
    "epoll_create1", "epoll_ctl", "epoll_pwait", "eventfd2", "execve", "execveat", "exit", "exit_group", "fchmod",
    "fchmodat", "fstat", "ftruncate", "futex", "getdents64", "geteuid", "getpid", "getrandom", "getsockopt",
    "lseek", "madvise", "mkdirat", "mprotect", "mremap", "munmap", "newfstatat", "open", "openat", "openat2",
    "pipe2", "poll", "ppoll", "pread64", "pwrite64", "read", "readlinkat", "recvfrom", "recvmsg", "renameat",
    "renameat2", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigtimedwait", "sendmsg", "sendto",
    "set_tid_address", "setfsgid", "setfsuid", "setgroups", "setresgid", "setresuid", "setsid", "shutdown",
    "sigaltstack", "signalfd4", "stat", "umask", "unlinkat", "wait4", "write", "writev",
];

/// Calls that it makes with these arguments only.
#[allow(clippy::unnecessary_cast, reason = "the numbers are signed in one C library and unsigned in the other")]
const EXECUTOR_WITH: &[(&str, [u64; 6])] = &[
    ("clone", [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]),
    ("clone", [(libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as u64, 0, 0, 0, 0, 0]),
    ("fcntl", [3, libc::F_DUPFD_CLOEXEC as u64, 3, 0, 0, 0]),
    ("fcntl", [3, libc::F_GETFL as u64, 0, 0, 0, 0]),
    ("fcntl", [3, libc::F_SETFD as u64, libc::FD_CLOEXEC as u64, 0, 0, 0]),
    ("fcntl", [3, libc::F_SETFL as u64, 0, 0, 0, 0]),
    ("fcntl", [3, libc::F_SETPIPE_SZ as u64, 1 << 20, 0, 0, 0]),
    ("ioctl", [3, libc::FIONBIO as u64, 0, 0, 0, 0]),
    ("ioctl", [3, libc::TIOCSCTTY as u64, 0, 0, 0, 0]),
    ("ioctl", [3, libc::TIOCSWINSZ as u64, 0, 0, 0, 0]),
    ("kill", [2, libc::SIGKILL as u64, 0, 0, 0, 0]),
    ("kill", [-2i64 as u64, libc::SIGKILL as u64, 0, 0, 0, 0]),
    ("mmap", [0, 4096, 3, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64, u64::MAX, 0]),
    ("prctl", [libc::PR_SET_DUMPABLE as u64, 0, 0, 0, 0, 0]),
    ("prctl", [libc::PR_SET_PDEATHSIG as u64, libc::SIGKILL as u64, 0, 0, 0, 0]),
    ("prctl", [libc::PR_CAP_AMBIENT as u64, libc::PR_CAP_AMBIENT_CLEAR_ALL as u64, 0, 0, 0, 0]),
    ("prlimit64", [0, libc::RLIMIT_CORE as u64, 1, 0, 0, 0]),
];

/// The calls without which the executor cannot work, as far as this profile refuses them.
pub fn missing(profile: &Profile) -> Vec<&'static str> {
    let always = EXECUTOR
        .iter()
        .copied()
        .filter(|name| names::number(name).is_some_and(|number| !always_allowed(profile, number)));
    let sometimes = EXECUTOR_WITH.iter().filter_map(|(name, arguments)| {
        let number = names::number(name)?;
        (profile.answer(number, arguments) != Answer::Allow).then_some(*name)
    });
    let mut missing: Vec<_> = always.chain(sometimes).collect();
    missing.dedup();
    missing
}

fn always_allowed(profile: &Profile, number: u32) -> bool {
    let rules = profile.rules(number);
    let at_last = profile.otherwise == Answer::Allow || rules.iter().any(|rule| rule.tests.is_empty());
    at_last && rules.iter().all(|rule| rule.answer == Answer::Allow)
}
