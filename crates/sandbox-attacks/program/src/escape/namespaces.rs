//! New namespaces, and other ones that exist.

use std::{fs, io, os::fd::AsRawFd};

use crate::{
    Attack,
    arguments::Arguments,
    outcome::Outcome,
    sys::{self, Argument, call, n},
};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("unshare_user", |_| unshare(libc::CLONE_NEWUSER)),
    ("unshare_mount", |_| unshare(libc::CLONE_NEWNS)),
    ("unshare_pid", |_| unshare(libc::CLONE_NEWPID)),
    ("unshare_network", |_| unshare(libc::CLONE_NEWNET)),
    ("unshare_ipc", |_| unshare(libc::CLONE_NEWIPC)),
    ("unshare_uts", |_| unshare(libc::CLONE_NEWUTS)),
    ("unshare_cgroup", |_| unshare(libc::CLONE_NEWCGROUP)),
    ("unshare_time", |_| unshare(TIME)),
    ("clone_with_namespaces", clone_with_namespaces),
    ("clone3_with_namespaces", clone3_with_namespaces),
    ("enter_namespaces_of_first_process", enter_by_file),
    ("enter_namespaces_by_pidfd", enter_by_pidfd),
];

const TIME: i32 = 0x80;

/// Kinds that can be asked for, with their flag and their file in `/proc/PID/ns`.
const KINDS: [(&str, i32); 8] = [
    ("user", libc::CLONE_NEWUSER),
    ("mnt", libc::CLONE_NEWNS),
    ("pid", libc::CLONE_NEWPID),
    ("net", libc::CLONE_NEWNET),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("cgroup", libc::CLONE_NEWCGROUP),
    ("time", TIME),
];

fn unshare(flag: i32) -> Outcome {
    Outcome::of("unshare", call(libc::SYS_unshare, [n(flag)]))
}

fn clone_with_namespaces(_: &Arguments) -> Outcome {
    let broken = KINDS.iter().filter(|(_, flag)| *flag != TIME).filter_map(|(name, flag)| {
        ended(call(libc::SYS_clone, [n(flag | libc::SIGCHLD), n(0), n(0), n(0), n(0)]))
            .ok()
            .map(|()| (*name).to_owned())
    });
    Outcome::of_list("clone made new namespaces", broken.collect())
}

fn clone3_with_namespaces(_: &Arguments) -> Outcome {
    let broken = KINDS.iter().filter_map(|(name, flag)| {
        let mut arguments = [0u8; 64];
        arguments[..8].copy_from_slice(&(*flag as u64).to_ne_bytes());
        arguments[32..40].copy_from_slice(&(libc::SIGCHLD as u64).to_ne_bytes());
        ended(call(libc::SYS_clone3, [Argument::Bytes(&arguments), n(64)])).ok().map(|()| (*name).to_owned())
    });
    Outcome::of_list("clone3 made new namespaces", broken.collect())
}

/// In the new process: ends it. In ours: takes note of its end.
fn ended(made: io::Result<i64>) -> io::Result<()> {
    match made? {
        0 => {
            let _ = call(libc::SYS_exit_group, [n(0)]);
            Ok(())
        }
        child => sys::wait(child as i32).map(drop),
    }
}

fn enter_by_file(_: &Arguments) -> Outcome {
    let attempts = KINDS.iter().map(|(name, flag)| {
        let entered = fs::File::open(format!("/proc/1/ns/{name}"))
            .and_then(|file| call(libc::SYS_setns, [n(file.as_raw_fd()), n(*flag)]));
        Outcome::of(format!("entering the {name} namespace of the first process"), entered)
    });
    Outcome::first_breach(attempts.collect::<Vec<_>>())
}

fn enter_by_pidfd(_: &Arguments) -> Outcome {
    let first = match call(libc::SYS_pidfd_open, [n(1), n(0)]) {
        Ok(first) => first,
        Err(error) => return Outcome::Held(format!("pidfd_open: {error}")),
    };
    let flags =
        KINDS.iter().map(|(_, flag)| *flag).chain([libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET]);
    let attempts =
        flags.map(|flag| Outcome::of(format!("setns {flag:#x} by pidfd"), call(libc::SYS_setns, [n(first), n(flag)])));
    Outcome::first_breach(attempts.collect::<Vec<_>>())
}
