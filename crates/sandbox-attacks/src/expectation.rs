//! What a policy grants, and what a sandbox's own label does not promise. Nearly everything else is to be held.

use sandbox_core::{
    Bytes, Control, Facts, Held,
    policy::{Capabilities, DeniedPrograms, Root, SystemCalls, User},
};

use crate::{Attack, Expected, Wall, attack::Room};

/// What should come of this attack on a sandbox like this.
pub fn of(attack: &Attack, facts: &Facts) -> Expected {
    const SYS_PTRACE: u64 = 1 << 19;
    let granted = facts.spec.policy.privileges.capabilities.bits();
    if attack.walls.contains(&Wall::ExecutorHardening) && granted & SYS_PTRACE != 0 {
        // Who may look into every process may look into the executor; the label says so.
        return Expected::Unpromised;
    }
    // What the label says is not held, by the wall that comes first, was accepted by name.
    let first = attack.walls.first().and_then(|wall| facts.enforcement.0.get(&wall.control()));
    if first.is_some_and(|holding| holding.held == Held::None) {
        return Expected::Unpromised;
    }
    (attack.expected)(facts)
}

/// It must not work, whatever the policy.
pub fn held(_: &Facts) -> Expected {
    Expected::Held
}

/// The kernel has no way to keep it from commands, and SECURITY.md says so. It is shown all the same.
pub fn unpromised(_: &Facts) -> Expected {
    Expected::Unpromised
}

/// What only another user than the executor's is refused.
pub fn another_user(facts: &Facts) -> Expected {
    held_if(identity(facts).contains("is another user"))
}

/// A pipe that somebody else made: out of reach for another user who may not pass by the owners of files.
pub fn own_output(facts: &Facts) -> Expected {
    match capabilities_may_be_granted(facts) {
        Expected::Granted => Expected::Granted,
        _ => another_user(facts),
    }
}

/// What the kernel counts for the commands' user.
pub fn own_user(facts: &Facts) -> Expected {
    held_if(identity(facts).contains("no other sandbox has the commands' user"))
}

/// What the kernel counts for a user or for the machine: a label that says who shares it promises no share.
pub fn own_counts(facts: &Facts) -> Expected {
    held_if(!identity(facts).contains("others share the commands' user"))
}

/// Files that only a packet on its way keeps: a label says where nobody sees them.
pub fn files_on_their_way(facts: &Facts) -> Expected {
    held_if(!says(facts, Control::Disk).contains("through a socket are not seen"))
}

/// Files without a name that something keeps open, in the same way.
pub fn removed_files(facts: &Facts) -> Expected {
    held_if(!says(facts, Control::Disk).contains("removed files that are open"))
}

/// File systems that know no devices: engines have a list of devices instead, and their label says so.
pub fn no_devices(facts: &Facts) -> Expected {
    held_if(!says(facts, Control::Filesystem).contains("device files lead to the few devices"))
}

/// Files in `/dev`: a label says where they are root's own, in memory.
pub fn device_folder(facts: &Facts) -> Expected {
    held_if(!says(facts, Control::Filesystem).contains("root inside may change its /dev"))
}

/// Scores for out-of-memory kills: a kernel of the sandbox's own that looks at none says so.
pub fn scores(facts: &Facts) -> Expected {
    held_if(!says(facts, Control::Privileges).contains("scores for out-of-memory kills mean nothing"))
}

/// The executor's own score, settings and list of open files: root inside may reach them where a label says so.
pub fn hidden_settings(facts: &Facts) -> Expected {
    held_if(!identity(facts).contains("are not hidden"))
}

/// Opening files of `/proc` that take nothing, which the owner of all files may where a label says so.
pub fn proc_of_root(facts: &Facts) -> Expected {
    held_if(!says(facts, Control::Filesystem).contains("opens files of /proc for writing"))
}

/// Low ports: in a network of the sandbox's own kernel, in which nobody else is, they are nobody's.
pub fn low_ports(facts: &Facts) -> Expected {
    match capabilities_may_be_granted(facts) {
        Expected::Granted => Expected::Granted,
        _ => held_if(!says(facts, Control::Network).contains("every port in it is free")),
    }
}

/// Names of sockets, where a label says whose is seen and who is let in.
pub fn socket_names(facts: &Facts) -> Expected {
    held_if(!says(facts, Control::Network).contains("the name of the executor's socket is seen"))
}

/// Names of cgroups: engines that give no namespace for them say so.
pub fn cgroup_names(facts: &Facts) -> Expected {
    let label = says(facts, Control::Filesystem);
    held_if(!label.contains("name of its cgroup is seen") && !label.contains("own cgroups are seen"))
}

/// Whether the sandbox has a kernel of its own between it and this machine's.
pub fn has_own_kernel(facts: &Facts) -> bool {
    says(facts, Control::Privileges).contains("gVisor's")
}

/// Whether processor time inside says nothing: then it is counted from outside.
pub fn clocks_go_on(facts: &Facts) -> bool {
    says(facts, Control::Cpu).contains("clocks inside go on")
}

/// Whether going over its memory, in whatever form, may end a sandbox as a whole.
pub fn may_end_as_a_whole(facts: &Facts) -> bool {
    says(facts, Control::Memory).contains("the whole sandbox ends")
}

/// What may be taken beside the memory of the policy before it is held, as the label says: by everything, or only by what
/// the sandbox's own kernel keeps for it.
pub(crate) fn room_beside_memory(room: Room, facts: &Facts) -> u64 {
    let label = says(facts, Control::Memory);
    if room != Room::Kernels && label.contains("commands are ended before") {
        return 0;
    }
    let Some((before, _)) = label.split_once(OWN_ROOM) else { return 0 };
    let words: Vec<&str> = before.rsplitn(3, ' ').take(2).collect();
    let &[unit, number] = words.as_slice() else { return 0 };
    format!("{number} {unit}").parse().map_or(0, |bytes: Bytes| bytes.0)
}

/// How a label names what the sandbox's own kernel may use.
const OWN_ROOM: &str = " for gVisor itself";

fn says(facts: &Facts, control: Control) -> &str {
    facts.enforcement.0.get(&control).map_or("", |holding| &holding.by)
}

fn identity(facts: &Facts) -> &str {
    says(facts, Control::ExecutorIdentity)
}

/// Changing the root file system.
pub fn root_may_be_writable(facts: &Facts) -> Expected {
    let filesystem = &facts.spec.policy.filesystem;
    granted_if(filesystem.root == Root::Writable || !filesystem.writable.is_empty())
}

/// What takes a capability that container engines give: owners, users, device-less nodes, low ports.
pub fn capabilities_may_be_granted(facts: &Facts) -> Expected {
    granted_if(facts.spec.policy.privileges.capabilities != Capabilities::NONE)
}

/// What root inside may do to its own processes.
pub fn root_inside_may(facts: &Facts) -> Expected {
    let privileges = &facts.spec.policy.privileges;
    granted_if(privileges.user == User::Root || privileges.capabilities != Capabilities::NONE)
}

/// What debuggers and builds want of their own processes. A profile of the operator's own may allow it too.
pub fn debuggers_may(facts: &Facts) -> Expected {
    granted_if(matches!(facts.spec.policy.privileges.system_calls, SystemCalls::Build | SystemCalls::File(_)))
}

/// Only some policies take the programs away; the others say why they gain nothing.
pub fn denied_may_start(facts: &Facts) -> Expected {
    granted_if(facts.spec.policy.commands.denied_programs != DeniedPrograms::Removed)
}

/// The one that is tried is on no list but one that names whole folders of this machine.
pub fn unlisted_may_start(facts: &Facts) -> Expected {
    let allow = facts.spec.policy.commands.allow.as_ref();
    let may = |rule: &String| rule == "arch" || (rule.starts_with('/') && !rule.starts_with("/workspace/"));
    granted_if(allow.is_none_or(|rules| rules.iter().any(may)))
}

/// Memory that the kernel itself uses for a sandbox counts only where the kernel holds the limit, or where it is a kernel of
/// the sandbox's own, whose memory is watched.
pub fn kernel_memory(facts: &Facts) -> Expected {
    let held = facts.enforcement.0.get(&Control::Memory).map(|holding| holding.held);
    held_if(held == Some(Held::Kernel) || says(facts, Control::Memory).contains(OWN_ROOM))
}

/// A share of its own of what the kernel counts for a user: only the embedded backend gives one.
pub fn own_share(facts: &Facts) -> Expected {
    held_if(facts.backend == "linux")
}

/// Files that one process may open on the embedded backend: fewer where memory is summed over processes.
pub fn open_files(facts: &Facts) -> u64 {
    if kernel_memory(facts) == Expected::Held { 65_536 } else { 4096 }
}

fn held_if(promised: bool) -> Expected {
    if promised { Expected::Held } else { Expected::Unpromised }
}

fn granted_if(granted: bool) -> Expected {
    if granted { Expected::Granted } else { Expected::Held }
}

/// Capabilities that commands may have with this policy, and those that may stay in their bounding set because the
/// executor needs them itself.
pub fn capability_masks(facts: &Facts) -> (u64, u64) {
    const KILL_SETGID_SETUID: u64 = 1 << 5 | 1 << 6 | 1 << 7;
    (facts.spec.policy.privileges.capabilities.bits(), KILL_SETGID_SETUID)
}
