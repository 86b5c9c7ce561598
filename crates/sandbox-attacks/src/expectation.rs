//! What a policy grants, and what a sandbox's own label does not promise. Nearly everything else is to be held.

use sandbox_core::{
    Control, Facts, Held,
    policy::{Capabilities, Network, Root, User},
};

use crate::Expected;

/// It must not work, whatever the policy.
pub fn held(_: &Facts) -> Expected {
    Expected::Held
}

/// Changing the root file system.
pub fn root_may_be_writable(facts: &Facts) -> Expected {
    granted_if(facts.spec.policy.root == Root::Writable)
}

/// What takes a capability that container engines give: owners, users, device-less nodes, low ports.
pub fn capabilities_may_be_granted(facts: &Facts) -> Expected {
    granted_if(facts.spec.policy.capabilities != Capabilities::None)
}

/// What root inside may do to its own processes.
pub fn root_inside_may(facts: &Facts) -> Expected {
    granted_if(facts.spec.policy.user == User::Root || facts.spec.policy.capabilities != Capabilities::None)
}

/// Public addresses.
pub fn network_may_be_public(facts: &Facts) -> Expected {
    granted_if(facts.spec.policy.network != Network::None)
}

/// Memory that the kernel itself uses for a sandbox counts only where the kernel holds the limit.
pub fn kernel_memory(facts: &Facts) -> Expected {
    let held = facts.enforcement.0.get(&Control::Memory).map(|holding| holding.held);
    if held == Some(Held::Kernel) { Expected::Held } else { Expected::Unpromised }
}

fn granted_if(granted: bool) -> Expected {
    if granted { Expected::Granted } else { Expected::Held }
}

/// Capabilities that commands may have with this policy, and those that may stay in their bounding set because the
/// executor needs them itself.
pub fn capability_masks(facts: &Facts) -> (u64, u64) {
    /// What container engines give, less what needs a network of one's own.
    const CONTAINER: u64 = 0x8804_05fb;
    const DAC_READ_SEARCH: u64 = 1 << 2;
    const EXECUTORS: u64 = 1 << 5 | 1 << 6 | 1 << 7;
    let granted = match facts.spec.policy.capabilities {
        Capabilities::None => 0,
        Capabilities::Container => CONTAINER,
        Capabilities::Extended => CONTAINER | DAC_READ_SEARCH,
    };
    (granted, EXECUTORS)
}
