//! Sandboxes by an OCI runtime, driven directly: `runsc` (gVisor), which has a kernel of its own, or `runc`. No daemon.
//!
//! A server ([`OciBackend`]) computes a [`plan`] and starts a *keeper* with it, one for each sandbox: this program in
//! another role. The keeper builds the root file system where nobody else sees it ([`view`]), starts the runtime with a
//! [`bundle`], hands out connections to the executor, watches what no cgroup holds, and removes all of it at the end. It
//! outlives its server; if it is killed, everything in the sandbox dies with it.

#![forbid(unsafe_code)]

mod backend;
mod bundle;
mod explain;
mod holdings;
mod keeper;
mod plan;
mod probe;
mod runtime;
mod sandbox;
mod talk;
mod view;

use std::{path::Path, sync::Arc};

use sandbox_core::{Result, Sandbox};

pub use backend::{BACKEND, OciBackend};

/// Runs the keeper and ends, if this process was started as one. Call it first in `main`, before any
/// thread exists.
pub fn run_role_if_asked() {
    let mut arguments = std::env::args_os();
    let Some(name) = arguments.next() else { return };
    let done = match name.to_str() {
        Some(keeper::ROLE) => keeper::run(),
        Some(keeper::LOOK_ROLE) => keeper::look(Path::new(&arguments.next().unwrap_or_default())),
        Some(keeper::SWEEP_ROLE) => keeper::sweep(Path::new(&arguments.next().unwrap_or_default())),
        _ => return,
    };
    if let Err(error) = &done {
        eprintln!("{}: {error}", name.display());
    }
    std::process::exit(if done.is_ok() { 0 } else { 70 });
}

/// A sandbox of another server of this user, by its folder.
pub fn attach(folder: &Path) -> Result<Arc<dyn Sandbox>> {
    Ok(Arc::new(sandbox::OciSandbox::open(folder, None, None)?))
}
