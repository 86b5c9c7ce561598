//! Folders that may be written though the root may not: which are possible, and how they are opened up.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Uid},
    io::Errno,
    mount::{MoveMountFlags, OpenTreeFlags},
};
use sandbox_core::{Error, Image, Result, SandboxSpec, policy::Root};

use crate::{
    host::{Host, Top},
    plan::{HOME, WORKSPACE},
};

/// Writable in any case.
const OPEN: [&str; 3] = [WORKSPACE, HOME, "/tmp"];

/// The places of a policy that have to be opened up; nothing where the whole root is writable.
pub fn check(spec: &SandboxSpec, host: &Host) -> Result<Vec<String>> {
    let mut places: Vec<String> = Vec::new();
    if spec.policy.filesystem.root == Root::Writable {
        return Ok(places);
    }
    for place in &spec.policy.filesystem.writable {
        let beneath = |above: &str| Path::new(place).starts_with(above);
        if OPEN.iter().any(|open| beneath(open)) || places.iter().any(|above| beneath(above)) {
            continue;
        }
        if let Some(inner) = OPEN.iter().find(|open| Path::new(open).starts_with(place)) {
            return Err(refused(
                place,
                &format!("{inner} is in it"),
                "Name a folder that holds none of /workspace, HOME and /tmp",
            ));
        }
        if spec.image == Image::Host && is_read_only(place, host) && !exists(place, host) {
            let why = "it is not there, and nothing can be made in this machine's own folders";
            return Err(refused(
                place,
                why,
                "Name a folder that exists, one outside of /usr and /etc such as /data, or use an image of your own",
            ));
        }
        places.push(place.clone());
    }
    Ok(places)
}

fn refused(place: &str, why: &str, fix: &str) -> Error {
    Error::Invalid { what: format!("the policy wants to write to {place}, but {why}"), fix: fix.into() }
}

/// Whether the place lies in a folder that is bound as it is.
fn is_read_only(place: &str, host: &Host) -> bool {
    let mut tops = host.tops.iter().map(|top| match top {
        Top::Link { name, .. } | Top::Folder { name } => name.as_str(),
    });
    let first = place.split('/').nth(1).unwrap_or_default();
    first == "etc" || tops.any(|top| top == first) || Path::new(place).starts_with("/opt/sandbox")
}

/// As it will be inside, where `/etc` is made up.
fn exists(place: &str, host: &Host) -> bool {
    match (place.strip_prefix("/etc"), place.strip_prefix("/opt/sandbox")) {
        (Some(rest), _) => host.etc.join("etc").join(rest.trim_start_matches('/')).is_dir(),
        (_, Some(rest)) => host.etc.join("opt").join(rest.trim_start_matches('/')).is_dir(),
        _ => Path::new(place).is_dir(),
    }
}

/// Mounts `tree`, or the place itself once more, at a place beneath the current folder, which will be the root: what is
/// frozen later is only the mount beneath.
pub fn open_up(place: &str, tree: Option<OwnedFd>, owner: u32) -> io::Result<()> {
    let point = make(place)?;
    let tree = match tree {
        Some(tree) => tree,
        None => {
            give(&point, owner)?;
            let flags =
                OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
            rustix::mount::open_tree(&point, "", flags | OpenTreeFlags::AT_RECURSIVE)?
        }
    };
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(&tree, "", &point, "", flags)?)
}

/// The folder, made with those above it where they are missing. Links in an image lead to where they would from inside,
/// never to this machine's own files.
fn make(place: &str) -> io::Result<OwnedFd> {
    let root = rustix::fs::open(".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let open = |path: &str| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)
    };
    let (mut above, mut here) =
        (String::from("."), rustix::fs::openat(CWD, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
    for name in place.split('/') {
        let path = format!("{above}/{name}");
        here = match open(&path) {
            Err(Errno::NOENT) => {
                rustix::fs::mkdirat(here.as_fd(), name, Mode::from_raw_mode(0o755)).map_err(|error| match error {
                    Errno::EXIST => io::Error::other(format!("{name} is a link that leads nowhere")),
                    other => other.into(),
                })?;
                open(&path)?
            }
            other => other?,
        };
        above = path;
    }
    Ok(here)
}

/// Whoever the commands are can write to it.
fn give(folder: &OwnedFd, owner: u32) -> io::Result<()> {
    if rustix::fs::fstat(folder)?.st_uid == owner {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
    Ok(rustix::fs::chownat(folder, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?)
}
