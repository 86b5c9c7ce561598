//! The built-in profiles. Each has what the one before it has, and more.
//!
//! What a profile does not list is refused with EPERM, or looks as if this kernel did not have it where programs are
//! known to fall back then. Calls that another architecture has and this one does not are passed over.

use sandbox_core::policy::SystemCalls;
use serde::{Deserialize, Serialize};

use super::{
    names,
    rules::{Answer, Profile, Rule, Test},
};

/// A profile that is always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "see sandbox_core::policy::SystemCalls")]
pub enum BuiltIn {
    Minimal,
    Standard,
    Build,
}

impl BuiltIn {
    /// The name that policies use.
    pub fn name(self) -> String {
        match self {
            Self::Minimal => SystemCalls::Minimal,
            Self::Standard => SystemCalls::Standard,
            Self::Build => SystemCalls::Build,
        }
        .to_string()
    }

    /// Its rules, without the floor.
    pub fn profile(self) -> Profile {
        let mut profile = Profile { calls: Default::default(), otherwise: Answer::REFUSE };
        let (tables, absent, personality): (&[&[&str]], &[&[&str]], Option<u32>) = match self {
            Self::Minimal => (&[MINIMAL], &[AIO, PIPE_TRICKS], None),
            Self::Standard => (&[MINIMAL, STANDARD], &[AIO], Some(LINUX32 | UNAME26)),
            Self::Build => (&[MINIMAL, STANDARD, BUILD], &[AIO], Some(LINUX32 | UNAME26 | NO_RANDOMIZE)),
        };
        let mut add = |name: &str, tests: Vec<Test>, answer| {
            if let Some(number) = names::number(name) {
                profile.add(number, Rule { tests, answer });
            }
        };
        tables.iter().copied().flatten().for_each(|name| add(name, Vec::new(), Answer::Allow));
        absent.iter().copied().flatten().for_each(|name| add(name, Vec::new(), Answer::ABSENT));
        // Asking which one it is changes nothing.
        add("personality", vec![Test::is(0, u32::MAX)], Answer::Allow);
        if let Some(bits) = personality {
            add("personality", vec![Test::none_of(0, !bits)], Answer::Allow);
        }
        if self == Self::Minimal {
            // Named pipes are made with the call for devices.
            add("mknod", vec![kind_of_file(1, libc::S_IFIFO)], Answer::Allow);
            add("mknodat", vec![kind_of_file(2, libc::S_IFIFO)], Answer::Allow);
        }
        profile
    }
}

/// See personality(2): 32-bit names, an old version number, and addresses that stay the same, which debuggers want.
const LINUX32: u32 = 0x0008;
const UNAME26: u32 = 0x2_0000;
const NO_RANDOMIZE: u32 = 0x4_0000;

fn kind_of_file(argument: u8, kind: u32) -> Test {
    Test { mask: libc::S_IFMT.into(), ..Test::is(argument, kind) }
}

/// What programs, shells and interpreters need to compute, to work with files and to talk over sockets.
///
/// Becoming another user is here because the executor does it and has the same filter; commands have no right to.
/// Extended attributes are, because the kernel leaves everything but `user.*` to privileges that commands do not have.
#[rustfmt::skip]
const MINIMAL: &[&str] = &[
    "accept", "accept4", "access", "alarm", "arch_prctl", "bind", "brk", "capget", "capset", "chdir", "chmod",
    "chown", "clock_getres", "clock_gettime", "clock_nanosleep", "clone", "close", "close_range", "connect",
    "copy_file_range", "creat", "dup", "dup2", "dup3", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait",
    "epoll_pwait2", "epoll_wait", "eventfd", "eventfd2", "execve", "execveat", "exit", "exit_group", "faccessat",
    "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat",
    "fcntl", "fdatasync", "fgetxattr", "flistxattr", "flock", "fork", "fremovexattr", "fsetxattr", "fstat", "fstatfs",
    "fsync", "ftruncate", "futex", "futex_waitv", "futimesat", "get_robust_list", "getcpu", "getcwd", "getdents",
    "getdents64", "getegid", "geteuid", "getgid", "getgroups", "getitimer", "getpeername", "getpgid", "getpgrp",
    "getpid", "getppid", "getpriority", "getrandom", "getresgid", "getresuid", "getrlimit", "getrusage", "getsid",
    "getsockname", "getsockopt", "gettid", "gettimeofday", "getuid", "getxattr", "inotify_add_watch", "inotify_init",
    "inotify_init1", "inotify_rm_watch", "ioctl", "ioprio_get", "kill", "lchown", "lgetxattr", "link", "linkat", "listen",
    "listxattr", "llistxattr", "lremovexattr", "lseek", "lsetxattr", "lstat", "madvise", "membarrier", "memfd_create",
    "mincore", "mkdir", "mkdirat", "mlock", "mlock2", "mmap", "mprotect", "mremap", "mseal", "msync", "munlock",
    "munmap", "nanosleep", "newfstatat", "open", "openat", "openat2", "pause", "pidfd_open", "pidfd_send_signal",
    "pipe", "pipe2", "pkey_alloc", "pkey_free", "pkey_mprotect", "poll", "ppoll", "prctl", "pread64", "preadv",
    "preadv2", "prlimit64", "pselect6", "pwrite64", "pwritev", "pwritev2", "read", "readahead", "readlink",
    "readlinkat", "readv", "recvfrom", "recvmmsg", "recvmsg", "removexattr", "rename", "renameat", "renameat2",
    "restart_syscall", "rmdir", "rseq", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo",
    "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo", "sched_get_priority_max",
    "sched_get_priority_min", "sched_getaffinity", "sched_getattr", "sched_getparam", "sched_getscheduler",
    "sched_rr_get_interval", "sched_setaffinity", "sched_yield", "seccomp", "select", "sendfile", "sendmmsg",
    "sendmsg", "sendto", "set_robust_list", "set_tid_address", "setfsgid", "setfsuid", "setgroups", "setitimer",
    "setpgid", "setpriority", "setresgid", "setresuid", "setrlimit", "setsid", "setsockopt", "setxattr", "shutdown",
    "sigaltstack", "signalfd", "signalfd4", "socket", "socketpair", "splice", "stat", "statfs", "statx", "symlink",
    "symlinkat", "sync_file_range", "sysinfo", "tgkill", "time", "timer_create", "timer_delete", "timer_getoverrun",
    "timer_gettime", "timer_settime", "timerfd_create", "timerfd_gettime", "timerfd_settime", "times", "tkill",
    "truncate", "umask", "uname", "unlink", "unlinkat", "utime", "utimensat", "utimes", "vfork", "wait4", "waitid",
    "write", "writev",
];

/// What container engines allow beyond that: System V objects, devices and roots as far as the kernel gives them,
/// scheduling. Not POSIX message queues: their limit is the mark by which the executor knows a job's processes.
#[rustfmt::skip]
const STANDARD: &[&str] = &[
    "chroot", "get_thread_area", "ioprio_set", "mknod", "mknodat", "mlockall", "msgctl", "msgget", "msgrcv", "msgsnd",
    "munlockall", "sched_setattr", "sched_setparam", "sched_setscheduler", "semctl", "semget", "semop", "semtimedop",
    "set_thread_area", "setgid", "setregid", "setreuid", "setuid", "shmat", "shmctl", "shmdt", "shmget", "sync",
    "syncfs", "tee", "vmsplice",
];

/// What debuggers, tracers and test suites want beyond that: a look into other processes of the same user. The
/// executor is out of reach: it is not dumpable, and changing a call through ptrace is filtered like making it.
#[rustfmt::skip]
const BUILD: &[&str] = &[
    "kcmp", "pidfd_getfd", "process_madvise", "process_vm_readv", "process_vm_writev", "ptrace",
];

/// Contexts of asynchronous input and output are counted for the whole machine: one sandbox could use them all up.
const AIO: &[&str] = &["io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit"];

/// Passing on pages instead of bytes: only ever a shortcut.
const PIPE_TRICKS: &[&str] = &["tee", "vmsplice"];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const ALL: [BuiltIn; 3] = [BuiltIn::Minimal, BuiltIn::Standard, BuiltIn::Build];

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn every_name_is_one_of_this_kernel() {
        for name in [MINIMAL, STANDARD, BUILD, AIO, PIPE_TRICKS].concat() {
            assert!(names::number(name).is_some(), "{name}");
        }
    }

    #[test]
    fn no_name_stands_in_two_tables() {
        let all = [MINIMAL, STANDARD, BUILD, AIO].concat();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn each_profile_allows_all_that_the_one_before_it_allows() {
        for pair in ALL.windows(2) {
            let (narrow, wide) = (pair[0].profile(), pair[1].profile());
            for (name, number) in names::all() {
                let allowed = |profile: &Profile| profile.answer(number, &[0; 6]) == Answer::Allow;
                assert!(!allowed(&narrow) || allowed(&wide), "{name}");
            }
        }
    }

    #[test]
    fn minimal_makes_pipes_with_names_but_no_devices() {
        let profile = BuiltIn::Minimal.profile();
        let make = |mode: u32| profile.answer(libc::SYS_mknodat as u32, &[0, 0, mode.into(), 0, 0, 0]);
        assert_eq!(make(libc::S_IFIFO | 0o600), Answer::Allow);
        assert_eq!(make(libc::S_IFCHR | 0o600), Answer::REFUSE);
        assert_eq!(make(libc::S_IFBLK | 0o600), Answer::REFUSE);
    }

    #[test]
    fn personalities_grow_with_the_profile() {
        let ask = |profile: BuiltIn, value: u32| {
            profile.profile().answer(libc::SYS_personality as u32, &[value.into(), 0, 0, 0, 0, 0]) == Answer::Allow
        };
        assert_eq!(ALL.map(|profile| ask(profile, u32::MAX)), [true, true, true]);
        assert_eq!(ALL.map(|profile| ask(profile, LINUX32)), [false, true, true]);
        assert_eq!(ALL.map(|profile| ask(profile, NO_RANDOMIZE)), [false, false, true]);
        assert_eq!(ALL.map(|profile| ask(profile, 0x0040_0000)), [false, false, false], "executable data");
    }
}
