//! Where sandboxes are made from: the launcher's own privileges.
//!
//! Root of this machine makes them as it is. Anybody else first becomes root of a user namespace with whatever ids the
//! system grants: a range of subordinate ones where `newuidmap` gives it, else only the user's own. From there on both
//! work alike: id maps are written, network namespaces made and files removed without asking the system again.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    process::{Command, Stdio},
};

use rustix::thread::UnshareFlags;

use crate::{
    bwrap, counts,
    ids::IdSource,
    sys::{self, Cloned},
};

/// With this variable set an ordinary user's sandboxes have a single id, as where `newuidmap` is missing.
pub const FORCE_SINGLE: &str = "SANDBOX_MCP_SINGLE_ID";
/// So many subordinate ids are enough for any image.
const ENOUGH: u32 = 65_536;

/// With this variable set sandboxes are started by `bwrap`, as where this program may not make user namespaces itself.
pub const FORCE_BWRAP: &str = "SANDBOX_MCP_USE_BWRAP";

/// What the launcher can work with.
pub struct Stage {
    /// Ids that sandboxes can have.
    pub ids: IdSource,
    /// The program that starts sandboxes for us, where we may not do it ourselves.
    pub bwrap: Option<PathBuf>,
}

/// Takes the stage. Only for a process with a single thread.
pub fn enter() -> io::Result<Stage> {
    let root = rustix::process::geteuid().is_root();
    if !root && let Some(bwrap) = bwrap_if_needed()? {
        return Ok(Stage { ids: IdSource::Single, bwrap: Some(bwrap) });
    }
    let ids = if root { as_root()? } else { as_user()? };
    if !root {
        counts::leave_half_to_the_user();
    }
    // What is mounted for a sandbox must not show anywhere else.
    sys::unshare(UnshareFlags::NEWNS)?;
    let private = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    Ok(Stage { ids, bwrap: None })
}

/// Some systems forbid user namespaces to all but a few programs, and some let them be made but not used. Only trying
/// tells, and what was tried cannot be taken back: so a process of its own tries.
fn bwrap_if_needed() -> io::Result<Option<PathBuf>> {
    let forced = std::env::var_os(FORCE_BWRAP).is_some();
    let refusal = if forced { libc::EPERM } else { try_namespaces()? };
    if refusal == 0 {
        return Ok(None);
    }
    match bwrap::find() {
        Some(program) => Ok(Some(program)),
        None => Err(io::Error::from_raw_os_error(refusal)),
    }
}

/// Zero, or the error that the system gave.
fn try_namespaces() -> io::Result<i32> {
    match sys::clone(0, None)? {
        Cloned::Child => {
            let private = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
            let tried = sys::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
                .and_then(|()| rustix::mount::mount_change("/", private));
            sys::exit_now(tried.map_or_else(|error| error.raw_os_error(), |()| 0))
        }
        Cloned::Parent { pidfd, .. } => Ok(exit_status(&pidfd).unwrap_or(libc::EPERM)),
    }
}

fn exit_status(pidfd: &OwnedFd) -> Option<i32> {
    let options = rustix::process::WaitIdOptions::EXITED;
    let status = rustix::process::waitid(rustix::process::WaitId::PidFd(pidfd.as_fd()), options);
    status.ok().flatten()?.exit_status()
}

/// Root of the machine has all ids; root of somebody's user namespace only some.
fn as_root() -> io::Result<IdSource> {
    let map = fs::read_to_string("/proc/self/uid_map")?;
    let count: u64 = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum();
    Ok(match count {
        count if count >= 1 << 31 => IdSource::Ranges,
        count if count > 1000 => IdSource::Subordinate { count: (count - 1).min(u64::from(ENOUGH)) as u32 },
        _ => IdSource::Single,
    })
}

fn as_user() -> io::Result<IdSource> {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let forced = std::env::var_os(FORCE_SINGLE).is_some();
    let ranges =
        (!forced).then(|| Some((subordinate("/etc/subuid", uid)?, subordinate("/etc/subgid", uid)?))).flatten();
    let helper = ranges.map(|(uids, gids)| MapHelper::start(uid, gid, uids, gids)).transpose()?;
    sys::unshare(UnshareFlags::NEWUSER)?;
    if let (Some(helper), Some(((_, count), _))) = (helper, ranges)
        && helper.finish()
    {
        return Ok(IdSource::Subordinate { count });
    }
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {uid} 1\n"))?;
    fs::write("/proc/self/gid_map", format!("0 {gid} 1\n"))?;
    Ok(IdSource::Single)
}

/// The user's line in `/etc/subuid`: start and count.
fn subordinate(file: &str, uid: u32) -> Option<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let own = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid.to_string()));
    let name = own.and_then(|line| line.split(':').next()).unwrap_or_default();
    let lines = fs::read_to_string(file).ok()?;
    lines.lines().find_map(|line| {
        let mut fields = line.split(':');
        let owner = fields.next()?;
        let (start, count): (u32, u32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let ours = (!name.is_empty() && owner == name) || owner == uid.to_string();
        (ours && count >= ENOUGH).then_some((start, ENOUGH))
    })
}

/// A process that stays outside and lets `newuidmap` write our maps once we are inside.
struct MapHelper {
    go: OwnedFd,
    pidfd: OwnedFd,
}

impl MapHelper {
    fn start(uid: u32, gid: u32, uids: (u32, u32), gids: (u32, u32)) -> io::Result<Self> {
        let launcher = rustix::process::getpid().as_raw_nonzero().to_string();
        let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        match sys::clone(0, None)? {
            Cloned::Child => {
                drop(go);
                let _ = rustix::io::read(&wait, &mut [0; 1]);
                let map = |program: &str, own: u32, (start, count): (u32, u32)| {
                    let numbers = [0, own, 1, 1, start, count].map(|number| number.to_string());
                    let mut command = Command::new(program);
                    command
                        .arg(&launcher)
                        .args(numbers)
                        .stdin(Stdio::null())
                        .stdout(Stdio::null())
                        .stderr(Stdio::null());
                    command.status().is_ok_and(|status| status.success())
                };
                let done = map("newuidmap", uid, uids) && map("newgidmap", gid, gids);
                sys::exit_now(if done { 0 } else { 1 })
            }
            Cloned::Parent { pidfd, .. } => Ok(Self { go, pidfd }),
        }
    }

    /// Whether the maps were written.
    fn finish(self) -> bool {
        drop(self.go);
        exit_status(&self.pidfd) == Some(0)
    }
}
