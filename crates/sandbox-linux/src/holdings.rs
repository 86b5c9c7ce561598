//! How every limit and wall of a sandbox is held on this host, in words, and what of it is ours to watch. Pure.

use sandbox_core::{
    Control, Enforcement, Held, SandboxSpec,
    policy::{DeniedPrograms, Root, User},
};

use crate::{
    host::Host,
    ids::{IdMap, IdSource},
    network::Kind,
    plan::{Watch, kind_of_network, user_id},
    prepared::Prepared,
    root,
    way_out::Reach,
};

/// How every limit is held on this host, and what of it is ours to watch.
pub fn of_limits(spec: &SandboxSpec, host: &Host, ids: &IdMap) -> (Enforcement, Watch) {
    let limits = &spec.policy.limits;
    let covers = host.cgroup.covers();
    let by = host.cgroup.name();
    let mut enforcement = Enforcement::default();
    let mut watch = Watch { disk: Some(limits.disk), ..Watch::default() };
    if covers.memory {
        enforcement.hold(Control::Memory, Held::Kernel, format!("{by}: {}", limits.memory));
    } else {
        watch.memory = Some(limits.memory);
        let how = format!(
            "{} summed over all processes every 10 to 250 ms; each process at most that much by rlimit",
            limits.memory
        );
        enforcement.hold(Control::Memory, Held::Supervised, how);
    }
    let cpus = f64::from(limits.cpu_millis) / 1000.0;
    if covers.cpu {
        enforcement.hold(Control::Cpu, Held::Kernel, format!("{by}: {cpus} processors"));
    } else if limits.cpu_millis.is_multiple_of(1000) {
        enforcement.hold(Control::Cpu, Held::Kernel, format!("processor affinity: {cpus}"));
    } else {
        watch.cpu_millis = Some(limits.cpu_millis);
        enforcement.hold(Control::Cpu, Held::Supervised, format!("{cpus} processors by stopping and continuing"));
    }
    if covers.pids {
        enforcement.hold(Control::Pids, Held::Kernel, format!("{by}: {}", limits.pids));
    } else if spec.policy.privileges.user == User::Root && host.ids != IdSource::Single {
        // The kernel counts per user, and root inside may become any of many.
        watch.pids = Some(limits.pids);
        let how =
            format!("{} counted over all processes every 10 to 250 ms; as many for each user by rlimit", limits.pids);
        enforcement.hold(Control::Pids, Held::Supervised, how);
    } else {
        let how = format!("rlimit, counted in the sandbox's own user namespace: {}", limits.pids);
        enforcement.hold(Control::Pids, Held::Kernel, how);
    }
    let how = format!("{} watched; each file at most that much by rlimit", limits.disk);
    enforcement.hold(Control::Disk, Held::Supervised, how);
    enforcement.hold(Control::Tmp, Held::Kernel, format!("size of the file system: {}", limits.tmp));
    enforcement.hold(Control::Time, Held::Supervised, format!("the executor's clock: {} s", limits.run.as_secs()));
    enforcement.hold(Control::Network, Held::Kernel, network(spec, host));
    enforcement.hold(Control::Filesystem, Held::Kernel, "own mount namespace; this machine's files are not in it");
    enforcement.hold(Control::Privileges, Held::Kernel, "user namespace, capabilities dropped, no_new_privs");
    const SYS_PTRACE: u64 = 1 << 19;
    let traces = spec.policy.privileges.capabilities.bits() & SYS_PTRACE != 0;
    let (held, identity) = match (host.ids, spec.policy.privileges.user) {
        _ if traces => (Held::None, "the policy grants sys_ptrace, which reaches into every process, the executor too"),
        (IdSource::Single, _) | (_, User::Root) => {
            let how = "the executor has the commands' uid: it is not dumpable and its limits are out of reach, its priority is not";
            (Held::Kernel, how)
        }
        _ => (Held::Kernel, "the executor is another user than the commands"),
    };
    let neighbours = if ids.is_own(user_id(spec)) {
        "no other sandbox has the commands' user"
    } else {
        "other sandboxes share the commands' user, for whom the kernel counts pipes and descriptors on their way"
    };
    enforcement.hold(Control::ExecutorIdentity, held, format!("{identity}; {neighbours}"));
    (enforcement, watch)
}

fn network(spec: &SandboxSpec, host: &Host) -> String {
    let own = "own network namespace with loopback only";
    match (kind_of_network(spec), &host.way_out) {
        (Kind::Sealed, _) => own.into(),
        (Kind::Wired, Some(Reach::Proxy { .. })) => {
            format!("{own}; our proxy is the only way out, for programs that know one: nothing is redirected here")
        }
        (Kind::Wired, Some(Reach::Packets { .. })) => {
            "own network namespace with loopback and a tunnel to us: whatever is sent to anywhere ends there, and we decide"
                .into()
        }
        (Kind::Wired, _) => format!("{own}; whatever is connected to anywhere ends with us, and we decide"),
    }
}

/// Only where the kernel is asked to hold something: an explanation that comes before a command is no wall.
pub fn of_commands(enforcement: &mut Enforcement, spec: &SandboxSpec, host: &Host, prepared: &Prepared) {
    let covered = root::covers(host, prepared).len();
    let left = prepared.covered.len() - covered;
    let mut how = Vec::new();
    let mut held = Held::Kernel;
    if spec.policy.commands.denied_programs == DeniedPrograms::Removed {
        how.push(format!("{covered} denied programs have a stub mounted over them"));
        if left > 0 {
            how.push(format!("{left} are links to shared programs, which bwrap cannot cover"));
            // Commands by these names are explained and not started, and nobody holds who calls them otherwise.
            held = Held::Supervised;
        }
    }
    if let Some(files) = &prepared.executable {
        if spec.policy.filesystem.root == Root::Writable {
            held = Held::None;
            how.push(
                "what may be executed cannot be held where the root may be changed: a listed program could be replaced"
                    .into(),
            );
        } else if host.landlock {
            how.push(format!("Landlock: {} files and folders may be executed", files.len()));
            match prepared.missing.as_slice() {
                [] => {}
                few if few.len() <= 3 => how.push(format!("listed, but not there: {}", few.join(", "))),
                many => how.push(format!("{} of the listed programs are not there", many.len())),
            }
        } else {
            held = Held::None;
            how.push("what may be executed cannot be held: that takes Landlock, which is missing, too old, or not to be had with bwrap".into());
        }
    }
    if !how.is_empty() {
        enforcement.hold(Control::Commands, held, how.join("; "));
    }
}
