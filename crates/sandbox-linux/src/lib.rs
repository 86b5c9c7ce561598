//! The embedded backend: sandboxes on this machine's own kernel, as root or as an ordinary user, with no daemon.
//!
//! A server ([`LinuxBackend`]) computes a [`plan`] and orders it from its [`launcher`], a small process of the same
//! program; that forks into new namespaces ([`birth`]), where the plan is [`enact`]ed and the executor started.
//! Unsafe code is in `sys.rs` only.

#![deny(unsafe_code)]

mod accounts;
mod allowed;
mod aside;
mod backend;
mod balance;
pub mod birth;
mod bwrap;
pub mod certificates;
pub mod cgroup;
pub mod counts;
pub mod disk;
pub mod enact;
pub mod etc;
pub mod executor_image;
pub mod folder;
pub mod ground;
mod handover;
pub mod here;
mod holdings;
pub mod host;
pub mod ids;
pub mod images;
mod java_trust;
mod landlock;
mod launcher;
pub mod layers;
mod netlink;
pub mod network;
mod nft;
mod orders;
pub mod places;
pub mod plan;
pub mod prepared;
mod pressure;
pub mod probe;
mod programs;
mod repair;
pub mod root;
mod sandbox;
pub mod seccomp;
pub mod security_module;
mod single;
mod skeleton;
mod spare;
pub mod stage;
pub mod steps;
pub mod supervise;
pub mod sys;
pub mod trash;
pub mod tree;
pub mod tunnel;
pub mod unavailable;
mod unlinked;
#[cfg(feature = "breakable")]
pub mod wall;
#[cfg(not(feature = "breakable"))]
mod wall;
pub mod way_out;
pub mod wire;

use std::{path::Path, sync::Arc};

use sandbox_core::{Result, Sandbox};

pub use aside::Leash;
pub use backend::{BACKEND, LEASE_VARIABLE, LinuxBackend, slot};
pub use certificates::renew as renew_certificates;
pub use images::{is_there as has_image, open as open_images, root_of as root_of_image};
pub use network::packets_without_route;
pub use plan::{HOME, WORKSPACE, tell_jvm, variables};
pub use repair::{Repair, RepairOutcome, repair};
pub use single::{Single, run_single};
pub use sys::{interrupt_nobody, watched};

/// Runs the launcher, or what unpacks images, and ends, if this process was started as one. Call it first in `main`, before any thread exists.
pub fn run_role_if_asked() {
    let mut arguments = std::env::args_os();
    let role = arguments.next().unwrap_or_default();
    if role == images::ROLE {
        let order = arguments.next().unwrap_or_default();
        std::process::exit(images::work(&order.to_string_lossy()));
    }
    if role == here::ROLE {
        let error = here::become_executor();
        let _ = std::io::Write::write_all(&mut std::io::stderr(), error.to_string().as_bytes());
        std::process::exit(70);
    }
    if role == backend::LAUNCHER_ROLE {
        let state = arguments.next().unwrap_or_default();
        let code = match launcher::run(Path::new(&state)) {
            Ok(()) => 0,
            Err(_) => 70,
        };
        std::process::exit(code);
    }
}

/// A sandbox of another server of this user, by its folder.
pub fn attach(folder: &Path) -> Result<Arc<dyn Sandbox>> {
    Ok(Arc::new(sandbox::LinuxSandbox::open(folder, None, None)?))
}
