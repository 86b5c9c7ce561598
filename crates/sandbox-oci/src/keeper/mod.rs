//! The keeper of one sandbox: this program in another role, started by the server that makes the sandbox and outliving it.
//!
//! It becomes root of a user namespace where it is not root already, prepares the sandbox's folder, starts the runtime
//! ([`start`]) and then serves and watches ([`serve`], [`watch`]) until the sandbox has ended.

mod serve;
mod start;
mod watch;

pub use watch::channel;

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{PermissionsExt, chown, symlink},
    },
    path::{Path, PathBuf},
};

use rustix::net::SocketType;
use sandbox_executor::boot::{Attachment, Carries, Verdicts};
use sandbox_linux::{birth, cgroup::Cgroup, etc, executor_image, ground, host::Host, stage, sys, tree};

use crate::{
    bundle::{self, BOOT, DOOR, EXECUTOR, OUT, VERDICTS},
    plan::Plan,
    talk::{self, Report},
};

/// The name under which this program keeps a sandbox.
pub const ROLE: &str = "sandbox-keeper";
/// The name under which it only looks at what this machine offers, and says so on standard output.
pub const LOOK_ROLE: &str = "sandbox-keeper-look";
/// The name under which it removes what is left of an ended sandbox, which may belong to ids of a user namespace.
pub const SWEEP_ROLE: &str = "sandbox-keeper-sweep";

/// What a keeper has made before the runtime starts.
struct Prepared {
    /// Where servers ask.
    outer: OwnedFd,
    /// Where the executor calls.
    inner: OwnedFd,
    /// Where the proxy is looked for, if the sandbox has a way out.
    out: Option<OwnedFd>,
    verdicts: File,
    cgroup: Cgroup,
}

/// Keeps one sandbox. The plan comes on standard input, the report goes to standard output.
pub fn run() -> io::Result<()> {
    // Whoever started the server may have left descriptors open that are nobody's business here.
    sys::close_from(3);
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes)?;
    let plan: Plan = rmp_serde::from_slice(&bytes).map_err(io::Error::other)?;
    let made = prepare(&plan).and_then(|prepared| {
        let started = start::start(&plan).map_err(|error| format!("starting the runtime failed: {error}"));
        let clean = |_: &String| {
            plan.cgroup.remove(&plan.name);
        };
        started.inspect_err(clean).map(|started| (prepared, started))
    });
    match made {
        Ok((prepared, started)) => serve::run(&plan, prepared, started),
        Err(why) => report(&Report::Failed(why)),
    }
}

/// Tells the server how it went.
fn report(report: &Report) -> io::Result<()> {
    let bytes = rmp_serde::to_vec_named(report).map_err(io::Error::other)?;
    let mut output = io::stdout().lock();
    output.write_all(&bytes)?;
    output.flush()
}

/// Says what this machine offers.
pub fn look(state: &Path) -> io::Result<()> {
    let stage = stage::enter().map_err(|error| format!("becoming root of a user namespace failed: {error}"));
    let host: Result<Host, String> = stage.and_then(|stage| {
        if stage.bwrap.is_some() {
            return Err("this program may not make user namespaces, and bwrap is no help here".into());
        }
        Host::look(state, stage).map_err(|error| error.to_string())
    });
    let bytes = rmp_serde::to_vec_named(&host).map_err(io::Error::other)?;
    io::stdout().lock().write_all(&bytes)
}

/// Removes a folder in the trash.
pub fn sweep(folder: &Path) -> io::Result<()> {
    // Without its ids, what can be removed is.
    let _ = stage::enter();
    let _ = tree::clear(folder);
    fs::remove_dir(folder)
}

fn prepare(plan: &Plan) -> Result<Prepared, String> {
    let stage = stage::enter().map_err(|error| format!("becoming root of a user namespace failed: {error}"))?;
    if stage.bwrap.is_some() {
        return Err("this program may not make user namespaces".into());
    }
    // Whoever fills memory is stopped in time also where the machine is busy. Only root may; others do without.
    let _ = rustix::process::setpriority_process(None, -10);
    // Held as long as we live, so that nobody takes it from under the sandbox.
    etc::prepare(&plan.state).map_err(|error| format!("preparing /etc failed: {error}"))?;
    make_folders(plan).map_err(|error| format!("making folders failed: {error}"))?;
    let (inner, out) = furnish(plan).map_err(|error| format!("preparing the executor failed: {error}"))?;
    let outer = talk::listen(&plan.folder, talk::SOCKET, SocketType::SEQPACKET)
        .map_err(|error| format!("listening for servers failed: {error}"))?;
    let verdicts = File::options().write(true).open(plan.folder.join("inner").join(VERDICTS));
    let verdicts = verdicts.map_err(|error| format!("opening the verdicts failed: {error}"))?;
    let cgroup = plan.cgroup.create(&plan.name, &plan.limits);
    let mut cgroup = cgroup.map_err(|error| format!("making the cgroup failed: {error}"))?;
    cgroup.settle();
    Ok(Prepared { outer, inner, out, verdicts, cgroup })
}

fn make_folders(plan: &Plan) -> io::Result<()> {
    let links = [(&plan.ground, ground::LINK), (&plan.image, sandbox_image::LINK)];
    for (to, name) in links.into_iter().filter_map(|(to, name)| Some((to.as_deref()?, name))) {
        symlink(to, plan.folder.join(name))?;
    }
    plan.folders.iter().try_for_each(|(name, owner)| birth::make_folder(&plan.folder.join(name), *owner))
}

/// The folder that only the executor looks into, with a socket on which it is waited for.
fn furnish(plan: &Plan) -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let folder = plan.folder.join("inner");
    let owner = plan.ids.outside(0);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
    bring_executor(&plan.state.join("cache"), &folder.join(EXECUTOR))?;
    fs::write(folder.join(BOOT), rmp_serde::to_vec_named(&plan.boot).map_err(io::Error::other)?)?;
    fs::write(folder.join(VERDICTS), Verdicts::default().to_bytes())?;
    let kind = match &plan.boot.attachment {
        Attachment::Call { carries: Carries::Descriptors, .. } => SocketType::SEQPACKET,
        _ => SocketType::STREAM,
    };
    let socket = talk::listen(&folder, DOOR, kind)?;
    let out = plan.boot.itself.outward.as_ref().map(|_| talk::listen(&folder, OUT, SocketType::STREAM)).transpose()?;
    for name in [BOOT, VERDICTS, DOOR].into_iter().chain(out.as_ref().map(|_| OUT)) {
        chown(folder.join(name), Some(owner), Some(owner))?;
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o600))?;
    }
    Ok((socket, out))
}

/// Removes the cgroups that a runtime made for a sandbox, in every tree. True if there were some.
pub fn remove_cgroups(name: &str) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let trees = mounts.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        right.starts_with("cgroup").then(|| left.split(' ').nth(4)).flatten()
    });
    let remove = |tree: &str| {
        let folder = Path::new(tree).join(bundle::cgroup_path(name).trim_start_matches('/'));
        // What has just ended is counted for a moment.
        (0..50).any(|_| match fs::remove_dir(&folder) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(_) => {
                std::thread::sleep(std::time::Duration::from_millis(2));
                false
            }
        })
    };
    trees.map(remove).fold(false, |any, one| any | one)
}

/// The same file for all sandboxes: what is in the page cache once is there for all.
fn bring_executor(cache: &Path, target: &Path) -> io::Result<()> {
    let _ = fs::remove_file(target);
    let program: PathBuf = executor_image::cached(cache)?;
    fs::hard_link(&program, target).or_else(|_| {
        fs::copy(&program, target)?;
        fs::set_permissions(target, fs::Permissions::from_mode(0o555))
    })
}
