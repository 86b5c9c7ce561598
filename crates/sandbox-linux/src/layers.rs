//! Folders on top of each other: overlays whose uppermost layer is the sandbox's own.
//!
//! Root of this machine makes them in the launcher, over layers whose owners are mapped to the sandbox's ids. An
//! ordinary user makes them inside the sandbox's own namespaces; there owners cannot be mapped, so a folder that others
//! own can only be changed where a folder of the user's own lies above it (see [`crate::ground`]).

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags},
};
use serde::{Deserialize, Serialize};

use crate::{enact, sys};

/// What lies beneath a layer of the sandbox's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layers {
    /// The name of the sandbox's own layer in `upper` and `work` of its folder.
    pub name: String,
    /// What lies beneath, the uppermost first.
    pub lower: Vec<PathBuf>,
    /// Owners in them are ids of this machine and have to be mapped.
    pub map_ids: bool,
    /// Do without durability: the layer dies with the sandbox.
    pub volatile: bool,
}

/// Makes the overlay for the sandbox in `folder`. With `ids` owners are mapped by that user namespace, and the caller is
/// root of this machine; without, attributes of the overlay are kept in the class that anybody may write.
pub fn assemble(folder: &Path, layers: &Layers, ids: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let made = match ids {
        // Layers by descriptor are for kernels from 6.13 on, so mapped ones stand at a path for the moment that it takes.
        Some(ids) => {
            let points: Vec<PathBuf> =
                (0..layers.lower.len()).map(|number| folder.join(format!("lower-{number}"))).collect();
            let mapped = layers.lower.iter().zip(&points).try_for_each(|(lower, point)| map_at(point, lower, ids));
            let made = mapped.and_then(|()| configure(&context, folder, layers, &points));
            for point in points {
                let _ = rustix::mount::unmount(&point, UnmountFlags::DETACH);
                let _ = fs::remove_dir(&point);
            }
            made
        }
        None => {
            rustix::mount::fsconfig_set_flag(&context, "userxattr")?;
            configure(&context, folder, layers, &layers.lower)
        }
    };
    made?;
    let flags = enact::harmless();
    Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

/// A folder as it is, read-only. With `ids` owners are mapped by that user namespace, and the caller is root of this machine.
pub fn bound(folder: &Path, ids: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    let tree = clone_tree(folder)?;
    sys::set_mount_attributes(tree.as_fd(), MountAttrFlags::MOUNT_ATTR_RDONLY | enact::harmless(), ids)?;
    Ok(tree)
}

/// Puts a copy of a mount tree with mapped owners at a path.
fn map_at(point: &Path, lower: &Path, ids: BorrowedFd<'_>) -> io::Result<()> {
    let tree = clone_tree(lower)?;
    sys::set_mount_attributes(tree.as_fd(), MountAttrFlags::MOUNT_ATTR_RDONLY, Some(ids))?;
    fs::create_dir(point)?;
    attach(&tree, point)
}

/// Folders are named by descriptor: a setting is at most 255 bytes long, a colon in a name would separate layers, and
/// whoever looks at the mounts from inside learns nothing of where this machine keeps them.
fn configure(context: &OwnedFd, folder: &Path, layers: &Layers, lower: &[PathBuf]) -> io::Result<()> {
    let open = |path: &Path| {
        rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    };
    let name = |folder: &OwnedFd| format!("/proc/self/fd/{}", folder.as_raw_fd());
    let lower = lower.iter().map(|path| open(path)).collect::<io::Result<Vec<_>>>()?;
    let [upper, work] = ["upper", "work"].map(|kind| open(&folder.join(kind).join(&layers.name)));
    let (upper, work) = (upper?, work?);
    rustix::mount::fsconfig_set_string(context, "lowerdir", lower.iter().map(name).collect::<Vec<_>>().join(":"))?;
    rustix::mount::fsconfig_set_string(context, "upperdir", name(&upper))?;
    rustix::mount::fsconfig_set_string(context, "workdir", name(&work))?;
    if layers.volatile {
        rustix::mount::fsconfig_set_flag(context, "volatile")?;
    }
    Ok(rustix::mount::fsconfig_create(context)?)
}

/// A copy of a mount tree that is nowhere yet.
pub fn clone_tree(source: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    Ok(rustix::mount::open_tree(CWD, source, flags)?)
}

/// Puts a mount tree at a path.
pub fn attach(tree: &OwnedFd, target: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(tree, "", CWD, target, flags)?)
}
