//! The root file system of a sandbox, built by its keeper in a mount namespace where nobody else sees it, with all that the
//! runtime needs beside it. Everything is named by short paths in memory; nothing has to be unmounted or removed at the end.

use std::{
    collections::VecDeque,
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{Mode, OFlags},
    thread::UnshareFlags,
};
use sandbox_linux::{
    enact,
    ids::IdMap,
    layers::{self, Layers},
    places,
    plan::RootSource,
    steps::{Access, Step},
    sys::{self, Cloned},
};

use crate::plan::Plan;

/// Covered by all of this.
const TOP: &str = "/tmp";
/// The root file system.
pub const ROOT: &str = "/tmp/root";
/// The bundle.
pub const BUNDLE: &str = "/tmp/bundle";
/// What the runtime remembers.
pub const STATE: &str = "/tmp/state";

/// The runtime, which may lie where all of this does.
pub const RUNTIME: &str = "/tmp/runtime";

/// Builds it. Only for a process with a single thread, in a mount namespace of its own.
pub fn build(plan: &Plan) -> Result<(), String> {
    let mut materials = Materials::gather(plan)?;
    let named = |step: &'static str| move |error: io::Error| format!("{step} failed: {error}");
    let top = enact::tmpfs(8 << 20, 0o755).map_err(named("making a place for the root file system"))?;
    layers::attach(&top, Path::new(TOP)).map_err(named("mounting a place for the root file system"))?;
    for folder in [ROOT, BUNDLE, STATE] {
        fs::create_dir(folder).map_err(named("making a place for the root file system"))?;
    }
    fs::write(RUNTIME, "").map_err(named("making a place for the runtime"))?;
    layers::attach(&materials.runtime, Path::new(RUNTIME)).map_err(named("mounting the runtime"))?;
    fs::write(Path::new(BUNDLE).join("config.json"), &plan.config).map_err(named("writing the bundle"))?;
    let root = materials.root.take().ok_or("the root file system is missing")?;
    layers::attach(&root, Path::new(ROOT)).map_err(named("mounting the root file system"))?;
    rustix::process::chdir(ROOT).map_err(|error| format!("entering the root file system failed: {error}"))?;
    for step in &plan.steps {
        walk(step, &mut materials).map_err(|error| format!("{step:?} failed: {error}"))?;
    }
    rustix::process::chdir("/").map_err(|error| format!("leaving the root file system failed: {error}"))
}

/// What is named by paths of this machine, opened before they are covered, in the order of the steps.
struct Materials {
    runtime: OwnedFd,
    root: Option<OwnedFd>,
    overlays: VecDeque<OwnedFd>,
    sources: VecDeque<OwnedFd>,
}

impl Materials {
    fn gather(plan: &Plan) -> Result<Self, String> {
        let mapped = || namespace(&plan.ids).map_err(|error| format!("mapping ids failed: {error}"));
        let shown = |map_ids: bool| map_ids.then(mapped).transpose();
        let layered = |layers: &Layers| {
            let ids = shown(layers.map_ids)?;
            layers::assemble(&plan.folder, layers, ids.as_ref().map(AsFd::as_fd))
                .map_err(|error| format!("layering over {:?} failed: {error}", layers.lower))
        };
        let runtime = layers::clone_tree(&plan.runtime.path);
        let runtime = runtime.map_err(|error| format!("opening {} failed: {error}", plan.runtime.path.display()))?;
        let root = match &plan.root {
            RootSource::Empty => {
                enact::tmpfs(4 << 20, 0o755).map_err(|error| format!("making the root file system failed: {error}"))?
            }
            RootSource::Bound { folder, map_ids } => {
                let ids = shown(*map_ids)?;
                let bound = layers::bound(folder, ids.as_ref().map(AsFd::as_fd));
                bound.map_err(|error| format!("mounting {} failed: {error}", folder.display()))?
            }
            RootSource::Layers(layers) => layered(layers)?,
        };
        let (mut overlays, mut sources) = (VecDeque::new(), VecDeque::new());
        for step in &plan.steps {
            let source = match step {
                Step::Bind { source, access, .. } => Some((source, *access)),
                Step::Place { source: Some(source), .. } => Some((source, Access::Write)),
                Step::Cover { stub, .. } => Some((stub, Access::Read)),
                Step::Layers { layers, .. } => {
                    overlays.push_back(layered(layers)?);
                    None
                }
                _ => None,
            };
            if let Some((source, access)) = source {
                let opened = enact::open_source(source, access);
                sources.push_back(opened.map_err(|error| format!("{step:?} failed: {error}"))?);
            }
        }
        Ok(Self { runtime, root: Some(root), overlays, sources })
    }

    fn source(&mut self) -> io::Result<OwnedFd> {
        self.sources.pop_front().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn walk(step: &Step, materials: &mut Materials) -> io::Result<()> {
    let made = |result: rustix::io::Result<()>| match result {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        other => Ok(other?),
    };
    match step {
        Step::Folder { target, mode } => {
            let mode = Mode::from_raw_mode(*mode);
            match rustix::fs::mkdir(target.as_str(), mode) {
                // Whatever our mask for new files is.
                Ok(()) => Ok(rustix::fs::chmod(target.as_str(), mode)?),
                other => made(other),
            }
        }
        Step::Link { target, to } => made(rustix::fs::symlink(to.as_str(), target.as_str())),
        Step::Bind { target, .. } => layers::attach(&materials.source()?, Path::new(target)),
        Step::Layers { target, .. } => {
            let overlay = materials.overlays.pop_front().ok_or(io::ErrorKind::NotFound)?;
            layers::attach(&overlay, Path::new(target))
        }
        Step::Place { source, target, owner } => {
            let tree = source.as_ref().map(|_| materials.source()).transpose()?;
            places::open_up(target, tree, *owner)
        }
        Step::Cover { target, .. } => enact::cover(&materials.source()?, target),
        Step::Freeze { target } => enact::freeze(target),
        _ => Ok(()),
    }
}

/// A user namespace with these ids, for mounts that show them.
fn namespace(ids: &IdMap) -> io::Result<OwnedFd> {
    let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    match sys::clone(UnshareFlags::NEWUSER.bits() as i32, None)? {
        Cloned::Child => {
            drop(go);
            let _ = rustix::io::read(&wait, &mut [0; 1]);
            sys::exit_now(0)
        }
        Cloned::Parent { pid, pidfd } => {
            drop(wait);
            let own = Path::new("/proc").join(pid.to_string());
            let made = fs::write(own.join("uid_map"), ids.lines())
                .and_then(|()| fs::write(own.join("gid_map"), ids.lines()))
                .and_then(|()| {
                    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                    Ok(rustix::fs::open(own.join("ns/user"), flags, Mode::empty())?)
                });
            drop(go);
            sandbox_linux::birth::end(&pidfd);
            made
        }
    }
}
