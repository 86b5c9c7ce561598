//! What an executor does for itself where an engine started it: folders for the commands' user, then no more privileges than
//! it needs, then the filter for system calls. An engine's own walls are there already; these are the ones that it lacks.

use std::{fs, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{Gid, Mode, OFlags, Uid, chown, fchmod, fstatfs, open},
    io::Errno,
    mount::{MountFlags, UnmountFlags, mount, unmount},
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
        set_capabilities, set_no_new_privs,
    },
};
use sandbox_executor::boot::{Boot, Identity};

use super::sys;

/// Nothing is in it yet, so something may be mounted over it for a moment.
const POINT: &str = "/tmp";

/// Signals that may wait for the processes of one user.
const SIGNALS: u64 = 2048;

/// Does it, before anything else runs here. Returns where the processes of this sandbox are counted, if that is here.
pub fn prepare(boot: &Boot) -> Result<Option<OwnedFd>, String> {
    if let Identity::Drop { uid, gid } = boot.user {
        for folder in &boot.itself.own {
            chown(folder.as_str(), Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
                .map_err(|error| format!("making {folder} over to user {uid} failed: {error}"))?;
        }
    }
    for folder in &boot.itself.shared {
        share(folder).map_err(|error| format!("opening {folder} to everybody failed: {error}"))?;
    }
    let mut tally = None;
    if let Some(pids) = boot.itself.pids {
        tally = Some(hold_processes(pids)?);
        cover_ourselves()?;
        remove_devices();
    }
    if let Some(keep) = boot.itself.keep {
        hold_signals();
        give_up_all_but(keep)?;
    }
    if boot.itself.filter.is_empty() {
        return Ok(tally);
    }
    let installed = sys::install_filter(&boot.itself.filter);
    installed.map(|()| tally).map_err(|error| format!("the filter for system calls: {error}"))
}

/// Only what is in memory: the rest is the image's.
fn share(folder: &str) -> rustix::io::Result<()> {
    const TMPFS: u64 = 0x0102_1994;
    let open = match open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        other => other?,
    };
    if fstatfs(&open)?.f_type as u64 == TMPFS { fchmod(&open, Mode::from_raw_mode(0o1777)) } else { Ok(()) }
}

/// Nothing comes back by starting a program: privileges that are not permitted now are never gained any more.
pub fn give_up_all_but(keep: u64) -> Result<(), String> {
    let kept = CapabilitySet::from_bits_retain(keep);
    for one in (0..u64::BITS).map(|number| CapabilitySet::from_bits_retain(1 << number)) {
        if !kept.contains(one) {
            // Said once more, where we may: what is not permitted cannot be gained either way.
            let _ = remove_capability_from_bounding_set(one);
        }
    }
    set_no_new_privs(true)
        .and_then(|()| match clear_ambient_capability_set() {
            // gVisor knows no such set.
            Err(Errno::INVAL) => Ok(()),
            other => other,
        })
        .and_then(|()| {
            let now = rustix::thread::capabilities(None)?;
            // What the engine did not give cannot be had.
            let kept = kept & now.permitted;
            set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: kept })
        })
        .map_err(|error| format!("giving up capabilities failed: {error}"))
}

/// Signals that may wait, for us and all that we will start. Not every engine does it that is asked to.
fn hold_signals() {
    let now = getrlimit(Resource::Sigpending);
    if now.maximum.is_none_or(|most| most > SIGNALS) {
        let _ = setrlimit(Resource::Sigpending, Rlimit { current: Some(SIGNALS), maximum: Some(SIGNALS) });
    }
}

/// A cgroup of this sandbox's own kernel, with us and all that we will start in it. It cannot be reached once it is
/// unmounted, and stays; only its count is kept open, which is one look where a look at `/proc` is hundreds.
fn hold_processes(pids: u32) -> Result<OwnedFd, String> {
    let failed = |step: &str| {
        let step = step.to_owned();
        move |error: std::io::Error| format!("holding the number of processes failed: {step}: {error}")
    };
    mount("none", POINT, "cgroup", MountFlags::empty(), Some(c"pids"))
        .map_err(|error| failed("mounting its cgroup")(error.into()))?;
    let group = Path::new(POINT).join("sandbox");
    let made = fs::create_dir(&group)
        .map_err(failed("making its cgroup"))
        // We are one of them, and not counted for the commands.
        .and_then(|()| fs::write(group.join("pids.max"), (pids + 1).to_string()).map_err(failed("setting its limit")))
        .and_then(|()| fs::write(group.join("cgroup.procs"), "0").map_err(failed("entering its cgroup")))
        .and_then(|()| fs::File::open(group.join("pids.current")).map_err(failed("opening its count")));
    let hidden = unmount(POINT, UnmountFlags::DETACH).map_err(|error| failed("hiding its cgroup")(error.into()));
    let tally = made?;
    hidden.map(|()| tally.into())
}

/// In gVisor a process that has changed its user can be looked into by that user, whatever it says: so what is told about us
/// is covered, also for who is root.
pub fn cover_ourselves() -> Result<(), String> {
    let own = format!("/proc/{}", std::process::id());
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("none", own.as_str(), "tmpfs", flags, Some(c"size=4096,mode=0555"))
        .map_err(|error| format!("covering {own} failed: {error}"))
}

/// gVisor has more of them than anybody here needs. They are its own, and lead nowhere; but what is not there needs no proof.
fn remove_devices() {
    for name in ["/dev/fuse", "/dev/net/tun", "/dev/nvidiactl", "/dev/tpu"] {
        let _ = fs::remove_file(name);
    }
    let _ = fs::remove_dir("/dev/net");
}

/// Where a supervisor outside writes its verdicts, if that is a file.
pub fn open_verdicts(boot: &Boot) -> Option<OwnedFd> {
    let path = boot.itself.verdicts.as_ref()?;
    open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}
