//! How every limit and wall of a container is held, in words. Pure.

use sandbox_core::{
    Bytes, Control, Enforcement, Held, SandboxSpec,
    policy::{Capabilities, DeniedPrograms, Root, SecurityProfile, User},
};

use crate::{
    nature::{Kind, Nature, Reach},
    plan::GVISORS_MEMORY,
    programs::Covered,
};

/// How such a sandbox would be held by this engine.
pub fn of(spec: &SandboxSpec, engine: &Nature, calls: &str, covered: Option<&Covered>) -> Enforcement {
    let mut enforcement = Enforcement::default();
    of_limits(&mut enforcement, spec, engine);
    of_privileges(&mut enforcement, spec, engine);
    let installed = if engine.is_told_filters(spec.policy.privileges.runtime.as_deref()) {
        "installed by the executor, and told to the engine"
    } else {
        "installed by the executor alone: this engine is not told, and has its own"
    };
    enforcement.hold(Control::SystemCalls, Held::Kernel, format!("{calls}; {installed}"));
    enforcement.hold(Control::Network, Held::Kernel, network(spec, engine));
    enforcement.hold(Control::Filesystem, Held::Kernel, filesystem(spec, engine));
    of_commands(&mut enforcement, spec, covered);
    enforcement
}

fn of_limits(enforcement: &mut Enforcement, spec: &SandboxSpec, engine: &Nature) {
    let limits = &spec.policy.limits;
    let by = format!("{} by cgroup v{}", engine.kind.name(), engine.cgroup);
    let cpus = f64::from(limits.cpu_millis) / 1000.0;
    // The kernel's count of such kills is out of the executor's sight elsewhere.
    let told_apart = engine.reach(spec.policy.privileges.runtime.as_deref()) == Reach::Socket;
    let held = [
        (Control::Memory, engine.holds.memory, limits.memory.to_string()),
        (Control::Cpu, engine.holds.cpu, format!("{cpus} processors")),
        (Control::Pids, engine.holds.pids, limits.pids.to_string()),
    ];
    let gvisor = engine.is_gvisor(spec.policy.privileges.runtime.as_deref());
    for (control, holds, value) in held {
        match (control, holds) {
            (Control::Memory, true) if gvisor => {
                let more = Bytes(GVISORS_MEMORY);
                let how = format!(
                    "{by}: {value} and {more} for gVisor itself; the command or the whole sandbox ends where it is reached"
                );
                enforcement.hold(control, Held::Kernel, how);
            }
            (Control::Pids, _) if gvisor => {
                let how = format!(
                    "gVisor's kernel: {value}; the first processes of commands that run at once are counted late"
                );
                enforcement.hold(control, Held::Supervised, how);
            }
            (Control::Cpu, true) if gvisor => {
                let how = format!("{by}: {value}; its clocks inside go on where it has to wait for them");
                enforcement.hold(control, Held::Kernel, how);
            }
            (Control::Memory, true) if !told_apart => {
                let how = format!("{by}: {value}; a command that is killed for it is not told apart from others");
                enforcement.hold(control, Held::Kernel, how);
            }
            (Control::Memory, true) if is_machines_root(spec, engine) => {
                let how = format!(
                    "{by}: {value}; where root inside fills memory that belongs to no process, the whole sandbox ends"
                );
                enforcement.hold(control, Held::Kernel, how);
            }
            (_, true) => enforcement.hold(control, Held::Kernel, format!("{by}: {value}")),
            (_, false) => {
                let why = if engine.rootless && engine.cgroup == 1 {
                    "an engine without root has no cgroups of version 1".to_owned()
                } else {
                    format!("{} has no such cgroup on this kernel", engine.kind.name())
                };
                let shared = match control {
                    Control::Pids => "; an rlimit holds it for all containers of this user together",
                    _ => "",
                };
                enforcement.hold(control, Held::None, format!("{value} wanted, and {why}{shared}"));
            }
        }
    }
    let (held, how) = disk(spec, engine, limits.disk);
    enforcement.hold(Control::Disk, held, how);
    enforcement.hold(Control::Tmp, Held::Kernel, format!("size of the file system: {}", limits.tmp));
    enforcement.hold(Control::Time, Held::Supervised, format!("the executor's clock: {} s", limits.run.as_secs()));
}

/// Only a try shows whether there are such quotas.
const QUOTA: &str = "the root's own layer has a quota, if the engine's disk has quotas for projects";

fn disk(spec: &SandboxSpec, engine: &Nature, limit: Bytes) -> (Held, String) {
    let unseen = if engine.is_gvisor(spec.policy.privileges.runtime.as_deref()) {
        "removed files that are open or on their way through a socket are not seen, and a file counts with its whole length"
    } else {
        "removed files on their way through a socket are not seen, nor more of removed files than is mapped"
    };
    let watched =
        format!("{limit} watched by the executor from inside, where {unseen}; each file at most that much by rlimit");
    let root = spec.policy.filesystem.root == Root::Writable;
    let how = if root && engine.sizes_layers() { format!("{watched}; {QUOTA}") } else { watched };
    (Held::Supervised, how)
}

fn of_privileges(enforcement: &mut Enforcement, spec: &SandboxSpec, engine: &Nature) {
    const SYS_PTRACE: u64 = 1 << 19;
    let privileges = &spec.policy.privileges;
    let granted = privileges.capabilities;
    let own_kernel = engine.own_kernel(privileges.runtime.as_deref());
    let gvisor = engine.is_gvisor(privileges.runtime.as_deref());
    let (held, how) = if own_kernel {
        let whose = if gvisor { "gVisor's kernel" } else { "a kernel of its own" };
        let scores = if gvisor { "; scores for out-of-memory kills mean nothing to it" } else { "" };
        let how = format!("{whose} between it and this machine's, capabilities dropped, no_new_privs{scores}");
        (Held::Kernel, how)
    } else if engine.user_namespaces {
        (Held::Kernel, "user namespace, capabilities dropped, no_new_privs".to_owned())
    } else if granted.is_within(Capabilities::EXTENDED) {
        let how = "capabilities dropped, no_new_privs; the engine gives no user namespace, so root inside is root of that \
                   machine without its privileges";
        (Held::Kernel, how.to_owned())
    } else {
        let how = format!(
            "the policy grants {granted}, and without a user namespace those are privileges over the whole machine"
        );
        (Held::None, how)
    };
    enforcement.hold(Control::Privileges, held, how);
    let (held, how) = match privileges.user {
        _ if granted.bits() & SYS_PTRACE != 0 => {
            (Held::None, "the policy grants sys_ptrace, which reaches into every process, the executor too")
        }
        User::Root if gvisor => (
            Held::Kernel,
            "the executor has the commands' uid: it is not dumpable, and what is told about it is covered",
        ),
        User::Sandbox if gvisor => (
            Held::Kernel,
            "the executor's user is not the commands', and what is told about it is covered; a command can read its own \
             output pipes, whose mode gVisor keeps",
        ),
        User::Root => (
            Held::Kernel,
            "the executor has the commands' uid: it is not dumpable; its priority, its settings and its score for out-of-memory kills are not hidden",
        ),
        User::Sandbox => (Held::Kernel, "the executor is another user than the commands"),
    };
    let shared = if own_kernel {
        ""
    } else {
        "; others share the commands' user, for whom the kernel counts watches of files, signals and descriptors on their \
         way, and the machine's terminals"
    };
    enforcement.hold(Control::ExecutorIdentity, held, format!("{how}{shared}"));
    match (&privileges.security_profile, engine.modules.apparmor, engine.modules.selinux) {
        (SecurityProfile::Auto, false, false) => {}
        (SecurityProfile::Auto, true, _) => {
            enforcement.hold(Control::SecurityModule, Held::Kernel, "AppArmor: the engine's own profile");
        }
        (SecurityProfile::Auto, false, true) => {
            enforcement.hold(Control::SecurityModule, Held::Kernel, "SELinux: the engine's own label");
        }
        (SecurityProfile::Named(name), false, false) => {
            let how = format!("the profile `{name}` is named, and the engine has neither AppArmor nor SELinux");
            enforcement.hold(Control::SecurityModule, Held::None, how);
        }
        (SecurityProfile::Named(name), apparmor, _) => {
            let module = if apparmor { "AppArmor" } else { "SELinux" };
            enforcement.hold(Control::SecurityModule, Held::Kernel, format!("{module}: {name}"));
        }
    }
}

fn network(spec: &SandboxSpec, engine: &Nature) -> String {
    let runtime = spec.policy.privileges.runtime.as_deref();
    let mut own = match engine.is_gvisor(runtime) {
        true => "gVisor's own network, with loopback only; every port in it is free, and nobody else is there",
        false => "own network namespace with loopback only",
    }
    .to_owned();
    if engine.reach(runtime) == Reach::Streams {
        own.push_str("; the name of the executor's socket is seen, which opens to nobody who does not know a secret");
    }
    if !spec.has_way_out() {
        return own;
    }
    if is_transparent(spec, engine) {
        return format!("{own}; whatever is connected to anywhere ends with us, and we decide");
    }
    format!("{own}; our proxy is the only way out, for programs that know one: nothing is redirected here")
}

/// Whether connections to anywhere come to us: where we may enter the container's network.
pub fn is_transparent(spec: &SandboxSpec, engine: &Nature) -> bool {
    let socket = engine.reach(spec.policy.privileges.runtime.as_deref()) == Reach::Socket;
    spec.has_way_out() && engine.enters_networks && socket
}

/// Whether commands are the machine's own root, as far as files and accounts go.
fn is_machines_root(spec: &SandboxSpec, engine: &Nature) -> bool {
    let privileges = &spec.policy.privileges;
    let is_apart = engine.user_namespaces || engine.own_kernel(privileges.runtime.as_deref());
    privileges.user == User::Root && !is_apart
}

fn filesystem(spec: &SandboxSpec, engine: &Nature) -> String {
    let runtime = engine.runtime(spec.policy.privileges.runtime.as_deref()).map_or("", |(name, _)| name);
    let root = match spec.policy.filesystem.root {
        Root::ReadOnly => "read-only",
        Root::Writable => "a layer of its own",
    };
    // Podman's Docker interface has no way to ask for a namespace of cgroups, which it gives by itself with version 2 only.
    let seen = engine.kind == Kind::Podman && engine.cgroup == 1;
    let names = match (seen, engine.rootless) {
        (true, true) => "; the names of the engine's own cgroups are seen",
        (true, false) => "; the name of its cgroup is seen",
        (false, _) => "",
    };
    let of_root = match is_machines_root(spec, engine) {
        true => {
            "; root inside may change its /dev, which is in memory, and opens files of /proc for writing that take nothing"
        }
        false => "",
    };
    format!(
        "{} container ({runtime}), root {root}; of this machine only our program and socket are in it{names}; device files \
         lead to the few devices that the engine allows{of_root}",
        engine.kind.name()
    )
}

/// Only where something is to be held: an explanation that comes before a command is no wall.
fn of_commands(enforcement: &mut Enforcement, spec: &SandboxSpec, covered: Option<&Covered>) {
    let commands = &spec.policy.commands;
    if commands.allow.is_some() {
        let how = match spec.policy.filesystem.root {
            Root::Writable => {
                "what may be executed cannot be held where the root may be changed: a listed program could be replaced"
            }
            Root::ReadOnly => "an engine cannot hold a list of the only programs that may be executed",
        };
        enforcement.hold(Control::Commands, Held::None, how);
    } else if commands.denied_programs == DeniedPrograms::Removed {
        match covered {
            Some(Covered { files, left }) => {
                let mut how = format!("{} denied programs have a stub mounted over them", files.len());
                let mut held = Held::Kernel;
                if *left > 0 {
                    how.push_str(&format!("; {left} are links to shared programs, which an engine cannot cover"));
                    // Commands by these names are explained and not started, and nobody holds who calls them otherwise.
                    held = Held::Supervised;
                }
                enforcement.hold(Control::Commands, held, how);
            }
            None => {
                let how = "denied programs can be covered only by an engine on this machine";
                enforcement.hold(Control::Commands, Held::None, how);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use sandbox_core::{Image, Policy, SessionId, UserId};

    use super::*;
    use crate::nature::{Holds, Modules, tests::docker};

    fn spec(policy: Policy) -> SandboxSpec {
        let owner = UserId::local();
        let id = SessionId::random(&owner).unwrap();
        SandboxSpec {
            id,
            owner,
            image: Image::Host,
            policy,
            persistent: false,
            env: Default::default(),
            certificates: None,
            tools: Vec::new(),
        }
    }

    fn held(policy: Policy, engine: &Nature, control: Control) -> Held {
        of(&spec(policy), engine, "calls", Some(&Covered::default())).0[&control].held
    }

    #[test]
    fn what_no_cgroup_holds_is_said_and_refused_by_name() {
        let holds = Holds { memory: false, cpu: false, pids: false };
        let engine = Nature { holds, rootless: true, cgroup: 1, ..docker() };
        let policy = Policy::default();
        let enforcement = of(&spec(policy.clone()), &engine, "calls", None);
        let refused = enforcement.satisfies(&policy).unwrap_err().to_string();
        assert!(refused.contains("memory (not held here") && refused.contains("cpu (not held here"), "{refused}");
        assert!(refused.contains("pids (not held here"), "{refused}");
        assert!(of(&spec(policy.clone()), &docker(), "calls", None).satisfies(&policy).is_ok());
    }

    #[test]
    fn every_preset_is_held_by_docker() {
        for name in sandbox_core::policy::PRESETS {
            let policy = Policy::preset(name).unwrap();
            if policy.privileges.capabilities.is_within(Capabilities::EXTENDED) {
                let enforcement = of(&spec(policy.clone()), &docker(), "calls", Some(&Covered::default()));
                assert!(enforcement.satisfies(&policy).is_ok(), "{name}: {enforcement:?}");
            }
        }
    }

    #[test]
    fn privileges_over_the_machine_need_a_namespace_or_a_kernel_of_ones_own() {
        let mut policy = Policy::default();
        policy.privileges.capabilities = Capabilities::from_names(["sys_admin"]).unwrap();
        assert_eq!(held(policy.clone(), &docker(), Control::Privileges), Held::None);
        let mapped = Nature { user_namespaces: true, ..docker() };
        assert_eq!(held(policy.clone(), &mapped, Control::Privileges), Held::Kernel);
        policy.privileges.runtime = Some("runsc".into());
        assert_eq!(held(policy, &docker(), Control::Privileges), Held::Kernel);
    }

    #[test]
    fn an_executor_that_can_be_looked_at_is_refused_by_name() {
        let mut policy = Policy::default();
        assert_eq!(held(policy.clone(), &docker(), Control::ExecutorIdentity), Held::Kernel);
        policy.privileges.runtime = Some("runsc".into());
        assert_eq!(held(policy.clone(), &docker(), Control::ExecutorIdentity), Held::Kernel);
        policy.privileges.capabilities = Capabilities::from_names(["sys_ptrace"]).unwrap();
        assert_eq!(held(policy, &docker(), Control::ExecutorIdentity), Held::None);
    }

    #[test]
    fn a_named_profile_needs_its_module() {
        let mut policy = Policy::default();
        policy.privileges.security_profile = SecurityProfile::Named("mine".into());
        assert_eq!(held(policy.clone(), &docker(), Control::SecurityModule), Held::None);
        let engine = Nature { modules: Modules { apparmor: true, selinux: false }, ..docker() };
        assert_eq!(held(policy, &engine, Control::SecurityModule), Held::Kernel);
    }

    #[test]
    fn a_list_of_programs_is_refused_by_name() {
        let mut policy = Policy::default();
        policy.commands.allow = Some(["sh".to_owned()].into());
        assert_eq!(held(policy, &docker(), Control::Commands), Held::None);
    }

    #[test]
    fn the_label_said_that_engines_were_told_what_they_were_not() {
        let says = |engine: &Nature, runtime: Option<&str>| {
            let mut policy = Policy::default();
            policy.privileges.runtime = runtime.map(str::to_owned);
            of(&spec(policy), engine, "calls", None).0[&Control::SystemCalls].by.contains("told to the engine")
        };
        let podman = Nature { kind: Kind::Podman, ..docker() };
        assert!(says(&docker(), None) && says(&podman, None));
        assert!(says(&Nature { here: false, ..docker() }, None), "Docker is told in the request");
        assert!(!says(&docker(), Some("runsc")) && !says(&docker(), Some("kata")));
        assert!(!says(&Nature { here: false, ..podman }, None));
    }

    #[test]
    fn everything_is_redirected_only_where_we_may_enter_the_network() {
        let policy = Policy::default();
        let says = |engine: &Nature| of(&spec(policy.clone()), engine, "calls", None).0[&Control::Network].by.clone();
        assert!(says(&docker()).contains("ends with us"));
        assert!(says(&Nature { enters_networks: false, ..docker() }).contains("our proxy is the only way out"));
        assert!(says(&Nature { here: false, ..docker() }).contains("our proxy is the only way out"));
    }
}
