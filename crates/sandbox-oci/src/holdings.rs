//! How every limit and wall of a sandbox is held by a runtime on this host, in words, and what of it is ours to watch. Pure.

use sandbox_core::{
    Control, Enforcement, Held, SandboxSpec,
    policy::{DeniedPrograms, Root, SecurityProfile, User},
};
use sandbox_linux::{
    host::Host,
    network::Kind as Network,
    plan::{self, Watch},
    prepared::Prepared,
};

use crate::{
    plan::GVISORS_OWN,
    runtime::{Kind, Runtime},
};

/// How every limit is held, and what of it is ours to watch.
pub fn of_limits(spec: &SandboxSpec, host: &Host, runtime: &Runtime) -> (Enforcement, Watch) {
    let limits = &spec.policy.limits;
    let gvisor = runtime.kind == Kind::Gvisor;
    let (covers, by) = (host.cgroup.covers(), host.cgroup.name());
    let mut enforcement = Enforcement::default();
    // gVisor dies as a whole where the kernel ends one of its processes, so its commands are ended before that.
    let mut watch = Watch { disk: Some(limits.disk), memory: gvisor.then_some(limits.memory), ..Watch::default() };
    match (covers.memory, gvisor) {
        (true, true) => enforcement.hold(
            Control::Memory,
            Held::Kernel,
            format!(
                "{by}: {} and {GVISORS_OWN} for gVisor itself; commands are ended before, and where that comes too late the \
                 whole sandbox ends",
                limits.memory
            ),
        ),
        (true, false) => {
            let how = format!("{by}: {}; a command that is killed for it is not told apart from others", limits.memory);
            enforcement.hold(Control::Memory, Held::Kernel, how);
        }
        (false, true) => enforcement.hold(
            Control::Memory,
            Held::Supervised,
            format!(
                "{} and {GVISORS_OWN} for gVisor itself, looked at every 2 to 100 ms; commands are ended before, and where \
                 that comes too late the whole sandbox ends",
                limits.memory
            ),
        ),
        (false, false) => enforcement.hold(Control::Memory, Held::None, "no cgroup can be made here"),
    }
    let cpus = f64::from(limits.cpu_millis) / 1000.0;
    let clocks = if gvisor { "; its clocks inside go on where it has to wait for them" } else { "" };
    if covers.cpu {
        enforcement.hold(Control::Cpu, Held::Kernel, format!("{by}: {cpus} processors{clocks}"));
    } else if limits.cpu_millis.is_multiple_of(1000) {
        enforcement.hold(Control::Cpu, Held::Kernel, format!("processor affinity: {cpus}{clocks}"));
    } else {
        watch.cpu_millis = Some(limits.cpu_millis);
        let how = format!("{cpus} processors by stopping and continuing{clocks}");
        enforcement.hold(Control::Cpu, Held::Supervised, how);
    }
    match (gvisor, covers.pids) {
        (true, _) => {
            let how = format!(
                "gVisor's kernel: {}; the first processes of commands that run at once are counted late",
                limits.pids
            );
            enforcement.hold(Control::Pids, Held::Supervised, how)
        }
        (false, true) => enforcement.hold(Control::Pids, Held::Kernel, format!("{by}: {}", limits.pids)),
        (false, false) => enforcement.hold(Control::Pids, Held::None, "no cgroup can be made here"),
    }
    let how = format!("{} watched; each file at most that much by rlimit", limits.disk);
    enforcement.hold(Control::Disk, Held::Supervised, how);
    enforcement.hold(Control::Tmp, Held::Kernel, format!("size of the file system: {}", limits.tmp));
    enforcement.hold(Control::Time, Held::Supervised, format!("the executor's clock: {} s", limits.run.as_secs()));
    let (network, files, privileges) = match runtime.kind {
        Kind::Gvisor => (
            "gVisor's own network, with loopback only; every port in it is free, and nobody else is there",
            "gVisor's own file system over a root that has nothing of this machine but its programs",
            "gVisor's own kernel between commands and this machine's; no_new_privs, capabilities dropped; scores for out-of-memory kills mean nothing to it",
        ),
        Kind::Plain => (
            "own network namespace with loopback only; the name of the executor's socket is seen, which leads nowhere inside",
            "own mount namespace; this machine's files are not in it",
            "user namespace, capabilities dropped, no_new_privs",
        ),
    };
    let network = match plan::kind_of_network(spec) {
        Network::Sealed => network.to_owned(),
        Network::Wired => format!("{network}; our proxy is the only way out, for programs that know one"),
    };
    enforcement.hold(Control::Network, Held::Kernel, network);
    let of_root = match spec.policy.privileges.user {
        User::Root if gvisor => "; root inside may change its /dev, which is in memory",
        _ => "",
    };
    enforcement.hold(Control::Filesystem, Held::Kernel, format!("{files}{of_root}"));
    enforcement.hold(Control::Privileges, Held::Kernel, privileges);
    of_executor(&mut enforcement, spec, runtime.kind);
    of_profile(&mut enforcement, spec);
    (enforcement, watch)
}

fn of_executor(enforcement: &mut Enforcement, spec: &SandboxSpec, kind: Kind) {
    const SYS_PTRACE: u64 = 1 << 19;
    let traces = spec.policy.privileges.capabilities.bits() & SYS_PTRACE != 0;
    let other = match kind {
        Kind::Gvisor => {
            "the executor's user is not the commands', and what is told about it is covered; a command can read its own output pipes, whose mode gVisor keeps"
        }
        Kind::Plain => "the executor is another user than the commands",
    };
    let (held, how) = match spec.policy.privileges.user {
        _ if traces => (Held::None, "the policy grants sys_ptrace, which reaches into every process, the executor too"),
        User::Root if kind == Kind::Plain => (
            Held::Kernel,
            "the executor has the commands' uid: it is not dumpable, but what /proc tells about it is not hidden",
        ),
        User::Root => (Held::Kernel, "the executor has the commands' uid: it is not dumpable"),
        User::Sandbox => (Held::Kernel, other),
    };
    enforcement.hold(Control::ExecutorIdentity, held, how);
}

/// A runtime could be told one, but nobody has tried that here.
fn of_profile(enforcement: &mut Enforcement, spec: &SandboxSpec) {
    if let SecurityProfile::Named(profile) = &spec.policy.privileges.security_profile {
        let how = format!("this backend gives sandboxes no profile of AppArmor or SELinux, so not {profile}");
        enforcement.hold(Control::SecurityModule, Held::None, how);
    }
}

/// Only where something is asked to hold which programs run.
pub fn of_commands(enforcement: &mut Enforcement, spec: &SandboxSpec, prepared: &Prepared) {
    let mut how = Vec::new();
    let mut held = Held::Kernel;
    if spec.policy.commands.denied_programs == DeniedPrograms::Removed {
        how.push(format!("{} denied programs have a stub mounted over them", prepared.covered.len()));
    }
    if prepared.executable.is_some() {
        held = Held::None;
        let why = match spec.policy.filesystem.root {
            Root::Writable => {
                "what may be executed cannot be held where the root may be changed: a listed program could be replaced"
            }
            Root::ReadOnly => {
                "what may be executed cannot be held: that takes Landlock, which only the embedded backend uses"
            }
        };
        how.push(why.into());
    }
    if !how.is_empty() {
        enforcement.hold(Control::Commands, held, how.join("; "));
    }
}
