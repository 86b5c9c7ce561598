//! What an executor does for itself where an engine started it: folders for the commands' user, then no more privileges than
//! it needs, then the filter for system calls. An engine's own walls are there already; these are the ones that it lacks.

use rustix::{
    fs::{Gid, Uid, chown},
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
        set_capabilities, set_no_new_privs,
    },
};
use sandbox_executor::boot::{Boot, Identity};

use super::sys;

/// Does it, before anything else runs here.
pub fn prepare(boot: &Boot) -> Result<(), String> {
    if let Identity::Drop { uid, gid } = boot.user {
        for folder in &boot.itself.own {
            chown(folder.as_str(), Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
                .map_err(|error| format!("making {folder} over to user {uid} failed: {error}"))?;
        }
    }
    if let Some(keep) = boot.itself.keep {
        give_up_all_but(keep)?;
    }
    if boot.itself.filter.is_empty() {
        return Ok(());
    }
    sys::install_filter(&boot.itself.filter).map_err(|error| format!("the filter for system calls: {error}"))
}

/// Nothing comes back by starting a program: privileges that are not permitted now are never gained any more.
fn give_up_all_but(keep: u64) -> Result<(), String> {
    let kept = CapabilitySet::from_bits_retain(keep);
    for number in 0..u64::BITS {
        let Some(one) = CapabilitySet::from_bits(1 << number).filter(|one| !kept.contains(*one)) else { continue };
        // Refused where we may not, and then what follows suffices.
        let _ = remove_capability_from_bounding_set(one);
    }
    set_no_new_privs(true)
        .and_then(|()| clear_ambient_capability_set())
        .and_then(|()| {
            let now = rustix::thread::capabilities(None)?;
            // What the engine did not give cannot be had.
            let kept = kept & now.permitted;
            set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: kept })
        })
        .map_err(|error| format!("giving up capabilities failed: {error}"))
}
