//! A little more than a sandbox's own share of what the kernel counts for a user: enough to show that there is no
//! share, and far too little to be missed outside.

use std::{fs, io, os::unix::fs::OpenOptionsExt};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::hold_breach;
use crate::{
    Attack,
    arguments::Arguments,
    outcome::Outcome,
    sys::{Argument, call, n},
};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("share_of_files", share_of_files),
    ("share_of_signals", share_of_signals),
    ("share_of_terminals", |_| beyond("terminals", 64, terminal)),
    ("share_of_watchers", share_of_watchers),
];

/// Takes a few more than the share and holds them all.
fn beyond<T>(what: &str, share: u64, mut make: impl FnMut() -> io::Result<T>) -> Outcome {
    let mut kept = Vec::new();
    while kept.len() as u64 <= share + 4 {
        match make() {
            Ok(one) => kept.push(one),
            Err(error) => return Outcome::Held(format!("{} {what}, then {error}", kept.len())),
        }
    }
    hold_breach(format!("{} {what}, {share} are its share", kept.len()), kept)
}

fn share_of_files(arguments: &Arguments) -> Outcome {
    let most = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
    beyond("open files", arguments.number("files", 65_536), || fs::File::open("/dev/null"))
}

/// A real-time signal that is blocked is queued as often as it is sent.
fn share_of_signals(arguments: &Arguments) -> Outcome {
    let _ = call(libc::SYS_rt_sigprocmask, [n(0), Argument::Bytes(&[0xff; 8]), n(0), n(8)]);
    let own = i64::from(std::process::id());
    let mut information = [0u8; 128];
    information[0] = 40;
    information[8..12].copy_from_slice(&(-1i32).to_ne_bytes());
    beyond("queued signals", arguments.number("pids", 64).max(1024), || {
        call(libc::SYS_rt_sigqueueinfo, [n(own), n(40), Argument::Bytes(&information)])
    })
}

fn terminal() -> io::Result<fs::File> {
    fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open("/dev/ptmx")
}

/// A sandbox has a quarter of what its user has; a third is more.
fn share_of_watchers(_: &Arguments) -> Outcome {
    let path = "/proc/sys/fs/inotify/max_user_instances";
    let all = fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    match all {
        Some(all) => beyond("watchers of files", all / 3, || call(libc::SYS_inotify_init1, [n(0)])),
        None => Outcome::NotApplicable(format!("{path} does not tell")),
    }
}
