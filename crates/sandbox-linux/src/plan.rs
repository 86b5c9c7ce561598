//! What will be done to make one sandbox, computed before anything is done. Pure.
//!
//! [`crate::enact`] walks the result; it has no decisions left to make.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use sandbox_core::{
    Bytes, Control, Enforcement, Held, Image, Result, SandboxSpec,
    policy::{Capabilities, Root, User},
};
use sandbox_executor::boot::{Attachment, Boot, Identity, OomCounter};
use serde::{Deserialize, Serialize};

use crate::{
    cgroup::CgroupLimits,
    counts::{Counts, Memory},
    holdings,
    host::Host,
    ids::{IdMap, IdSource, SANDBOX_ID},
    images::{self, Named},
    layers::Layers,
    network::Kind,
    prepared::Prepared,
    root,
    seccomp::{Chosen, Filter, Narrowing},
    security_module::Label,
    steps::{self, Step},
    wall::{self, Wall},
    way_out,
};

/// Where commands start, inside.
pub const WORKSPACE: &str = "/workspace";
/// HOME, inside. Never in the workspace, so that caches are not results.
pub const HOME: &str = "/home/sandbox";
/// Kept output of each job.
pub const HISTORY: Bytes = Bytes::mib(4);

/// One sandbox, ready to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The sandbox's name, for its cgroup.
    pub name: String,
    /// Its folder outside.
    pub folder: PathBuf,
    /// Folders to be made in it, with their owner as the launcher counts.
    pub folders: Vec<(String, u32)>,
    /// What of the cache its layers stand on; it is kept as long as the sandbox has a link to it.
    pub ground: Option<PathBuf>,
    /// The same of images, where it starts from one that has a name.
    pub image: Option<PathBuf>,
    /// User and group ids.
    pub ids: IdMap,
    /// The id that the first process takes inside.
    pub first_id: u32,
    /// Its share of what the kernel counts for a user.
    pub counts: Counts,
    /// What its network is for.
    pub network: Kind,
    /// Limits for its cgroup, where there is one.
    pub cgroup: CgroupLimits,
    /// The root file system.
    pub root: RootSource,
    /// The empty folder that it is mounted on, in a mount namespace where nobody else sees it.
    pub point: PathBuf,
    /// What is done to the root file system, in this order.
    pub steps: Vec<Step>,
    /// What the first process may do.
    pub confinement: Confinement,
    /// What we have to watch ourselves.
    pub watch: Watch,
    /// What the executor is told.
    pub boot: Boot,
}

/// What `/` is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RootSource {
    /// An empty file system in memory.
    Empty,
    /// A folder as it is, which nobody can change and which has every place where something is mounted.
    Bound {
        /// Where it is.
        folder: PathBuf,
        /// Owners in it are ids of this machine and have to be mapped.
        map_ids: bool,
    },
    /// Folders, with a layer of the sandbox's own above them.
    Layers(Layers),
}

impl Plan {
    /// All overlays, in the order in which they are mounted.
    pub fn layers(&self) -> impl Iterator<Item = &Layers> {
        let root = match &self.root {
            RootSource::Empty | RootSource::Bound { .. } => None,
            RootSource::Layers(layers) => Some(layers),
        };
        let steps = self.steps.iter().filter_map(|step| match step {
            Step::Layers { layers, .. } => Some(layers),
            _ => None,
        });
        root.into_iter().chain(steps)
    }
}

/// What the first process may do, and so everything after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Capabilities that stay, as a bit set.
    pub capabilities: u64,
    /// Folders beneath which anything may be written, where the rest may not: said to Landlock once more, so that a
    /// slip in the mounts alone opens nothing.
    pub writable: Option<Vec<String>>,
    /// The only files, or folders of files, that may be executed; any, if not said.
    pub executable: Option<Vec<String>>,
    /// Processors that may be used, where no cgroup limits them.
    pub processors: Option<usize>,
    /// Which system calls may be made.
    pub system_calls: Filter,
    /// Die with the launcher, because nobody else would hold the limits.
    pub die_with_launcher: bool,
    /// What AppArmor or SELinux knows it as.
    pub label: Option<Label>,
}

/// Limits that the launcher watches, because no cgroup holds them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Sum over all processes.
    pub memory: Option<Bytes>,
    /// Thousandths of a processor, where it is not a whole number.
    pub cpu_millis: Option<u32>,
    /// Processes and threads of all users inside.
    pub pids: Option<u32>,
    /// Files in these folders of the sandbox's folder.
    pub disk: Option<Bytes>,
}

impl Watch {
    /// Without what is left out in tests.
    fn standing(self) -> Self {
        Self {
            memory: self.memory.filter(|_| wall::stands(Wall::MemoryLimit)),
            cpu_millis: self.cpu_millis.filter(|_| wall::stands(Wall::CpuLimit)),
            pids: self.pids.filter(|_| wall::stands(Wall::PidLimit)),
            disk: self.disk.filter(|_| wall::stands(Wall::DiskWatch)),
        }
    }

    /// Whether processes have to be looked at.
    pub fn processes(&self) -> bool {
        self.memory.is_some() || self.cpu_millis.is_some() || self.pids.is_some()
    }
}

/// Plans a sandbox. Fails where the policy promises what this host cannot hold. `calls` is what the policy's set of
/// system calls was found to be.
pub fn plan(
    spec: &SandboxSpec,
    calls: &Chosen,
    host: &Host,
    prepared: &Prepared,
    slot: u32,
    lease: Duration,
) -> Result<(Plan, Enforcement)> {
    let policy = &spec.policy;
    let (user, network) = (user_id(spec), kind_of_network(spec));
    let ids = id_map(spec, host, slot, user);
    let single = host.ids == IdSource::Single;
    let mut env = environment(spec, network, prepared.named.as_ref());
    if network == Kind::Wired && matches!(host.way_out, Some(way_out::Reach::Proxy { .. })) {
        tell_jvm(&mut env);
    }
    let (mut enforcement, watch) = holdings::of_limits(spec, host, &ids);
    enforcement.hold(Control::SystemCalls, Held::Kernel, calls.to_string());
    let label = host.security.choose(spec, &mut enforcement);
    holdings::of_commands(&mut enforcement, spec, host, prepared);
    enforcement.satisfies(policy)?;
    let first_id = if single { user } else { 0 };
    // Whoever uses files for commands has to own them.
    let owner = ids.outside(if wall::stands(Wall::ExecutorIdentity) { user } else { first_id });
    let (root, steps) = (root::source(spec, host, prepared), steps::steps(spec, host, prepared));
    let cgroup = host.cgroup.covers();
    let supervised_memory = watch.memory.is_some();
    let processors =
        (!cgroup.cpu && wall::stands(Wall::CpuLimit)).then_some(policy.limits.cpu_millis.div_ceil(1000) as usize);
    let narrowing = Narrowing {
        visible_memory_only: supervised_memory && wall::stands(Wall::VisibleMemory),
        fixed_processors: processors.is_some(),
        lenient_kernel: None,
    };
    let counts =
        Counts::new(host.inotify, policy.limits.pids, if supervised_memory { Memory::Summed } else { Memory::Counted });
    let mut plan = Plan {
        name: spec.id.to_string(),
        folder: host.state.join("sandboxes").join(spec.id.as_str()),
        folders: ["workspace", "home"].map(|name| (name.to_owned(), owner)).into(),
        ground: prepared.ground.clone(),
        image: prepared.named.as_ref().map(|named| named.link.clone()),
        ids,
        first_id,
        counts,
        network,
        cgroup: CgroupLimits {
            memory: if wall::stands(Wall::MemoryLimit) { policy.limits.memory.0 } else { 1 << 50 },
            cpu_millis: if wall::stands(Wall::CpuLimit) { policy.limits.cpu_millis } else { 1_000_000 },
            pids: if wall::stands(Wall::PidLimit) { policy.limits.pids } else { 1 << 20 },
        },
        root,
        point: host.etc.join("root"),
        steps,
        confinement: Confinement {
            capabilities: if wall::stands(Wall::Capabilities) {
                capabilities(policy.privileges.capabilities, single)
            } else {
                Capabilities::ALL.bits()
            },
            writable: (policy.filesystem.root == Root::ReadOnly && wall::stands(Wall::Landlock))
                .then(|| with_places(&[WORKSPACE, HOME, "/tmp", "/dev", "/proc"], prepared)),
            executable: prepared.executable.clone().filter(|_| host.landlock && wall::stands(Wall::ProgramList)),
            processors,
            system_calls: calls.filter(narrowing),
            die_with_launcher: watch.processes(),
            label,
        },
        boot: Boot {
            attachment: Attachment::Listen,
            user: match (single, wall::stands(Wall::ExecutorIdentity)) {
                (false, true) => Identity::Drop { uid: user, gid: user },
                _ => Identity::Same,
            },
            capabilities: policy.privileges.capabilities.bits(),
            workspace: WORKSPACE.into(),
            places: match policy.filesystem.root {
                Root::ReadOnly => with_places(&[WORKSPACE, HOME, "/tmp"], prepared),
                Root::Writable => vec!["/".into()],
            },
            env,
            lease: (!spec.persistent).then_some(lease),
            history: HISTORY,
            pids: (!cgroup.pids && wall::stands(Wall::PidLimit)).then_some(policy.limits.pids),
            process_memory: (supervised_memory && wall::stands(Wall::MemoryLimit)).then_some(policy.limits.memory),
            file_size: wall::stands(Wall::FileSize).then_some(policy.limits.disk),
            descriptors: counts.descriptors_of_commands(),
            oom: if cgroup.memory { OomCounter::Cgroup } else { OomCounter::None },
            refused_processes: cgroup.pids,
            supervised: true,
            counts: if host.bwrap.is_some() { counts.of_user_namespace() } else { Vec::new() },
            die_with_parent: watch.processes(),
            // bwrap makes the network, so nobody outside can make anything in it.
            proxy: (host.bwrap.is_some() && network == Kind::Wired).then_some(way_out::PROXY_PORT),
            itself: Default::default(),
        },
        watch: watch.standing(),
    };
    plan.folders.extend(root::layer_folders(&plan, ids.outside(plan.first_id)));
    plan.folders.extend(root::place_folders(&plan, owner));
    plan.folders.extend(listed_folders(prepared.executable.as_deref().unwrap_or_default(), owner));
    Ok((plan, enforcement))
}

/// Folders of programs that will be made later: Landlock's rules are about what is there. With those above them.
fn listed_folders(executable: &[String], owner: u32) -> Vec<(String, u32)> {
    let mut folders = BTreeSet::new();
    for path in executable {
        let inside = [(WORKSPACE, "workspace"), (HOME, "home")]
            .into_iter()
            .find_map(|(place, name)| Some((name, path.strip_prefix(place)?.strip_prefix('/')?)));
        let Some((name, rest)) = inside else { continue };
        let ends = rest.match_indices('/').map(|(at, _)| at).chain([rest.len()]);
        folders.extend(ends.map(|end| format!("{name}/{}", &rest[..end])));
    }
    folders.into_iter().map(|folder| (folder, owner)).collect()
}

/// Who commands are, inside.
pub fn user_id(spec: &SandboxSpec) -> u32 {
    match spec.policy.privileges.user {
        User::Sandbox => SANDBOX_ID,
        User::Root => 0,
    }
}

/// What a sandbox's network is for.
pub fn kind_of_network(spec: &SandboxSpec) -> Kind {
    if spec.has_way_out() { Kind::Wired } else { Kind::Sealed }
}

/// Files of an image may belong to the commands' user, so only where there are none that user can be another one
/// outside for each sandbox.
pub fn id_map(spec: &SandboxSpec, host: &Host, slot: u32, user: u32) -> IdMap {
    let ids = IdMap::new(host.ids, slot, user);
    if spec.image == Image::Host && wall::stands(Wall::OwnUser) { ids.with_own_user(slot) } else { ids }
}

/// Folders that may be written.
pub fn with_places(known: &[&str], prepared: &Prepared) -> Vec<String> {
    known.iter().map(|place| (*place).to_owned()).chain(prepared.places.iter().cloned()).collect()
}

/// Every spelling that programs look for. Names are left to the proxy, which knows them.
fn proxy_variables() -> impl Iterator<Item = (&'static str, String)> {
    let proxy = format!("http://127.0.0.1:{}", way_out::PROXY_PORT);
    let to_it = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
    let not_to_it = ["no_proxy", "NO_PROXY"].map(|name| (name, "localhost,127.0.0.1,::1".to_owned()));
    let node = ("NODE_USE_ENV_PROXY", "1".to_owned());
    to_it.into_iter().map(move |name| (name, proxy.clone())).chain(not_to_it).chain([node])
}

/// Tells a JVM of the proxy, where that is the only way out: it does not know the other variables. On each start it prints
/// what it took from this one, so where connections are redirected it is not told. What is there already has the last word.
pub fn tell_jvm(env: &mut BTreeMap<String, String>) {
    let of = |scheme| format!("-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={}", way_out::PROXY_PORT);
    let options = env.entry("JAVA_TOOL_OPTIONS".to_owned()).or_default();
    let own = std::mem::take(options);
    *options = [of("http"), of("https"), own].join(" ").trim_end().to_owned();
}

/// The variables that every command of such a sandbox starts with, on any backend.
pub fn variables(spec: &SandboxSpec, image: Option<&Named>) -> BTreeMap<String, String> {
    environment(spec, kind_of_network(spec), image)
}

fn environment(spec: &SandboxSpec, network: Kind, image: Option<&Named>) -> BTreeMap<String, String> {
    let path = format!(
        "{HOME}/.venv/bin:{HOME}/.local/bin:/opt/sandbox/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    );
    let local = format!("{HOME}/.local");
    let own = [
        ("HOME", HOME),
        ("PATH", &path),
        ("USER", "sandbox"),
        ("LOGNAME", "sandbox"),
        ("SHELL", "/bin/sh"),
        ("LANG", "C.UTF-8"),
        ("TERM", "xterm-256color"),
        ("TMPDIR", "/tmp"),
        ("NPM_CONFIG_PREFIX", &local),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
    ];
    let mut env: BTreeMap<String, String> = own.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    if !wall::stands(Wall::Environment) {
        env.extend(std::env::vars());
    }
    if network == Kind::Wired {
        env.extend(proxy_variables().map(|(name, value)| (name.to_owned(), value)));
    }
    if let Some(named) = image {
        env = images::beneath(env, &named.env, HOME);
    }
    env.extend(spec.env.clone());
    env
}

/// What the first process keeps: what it needs to start commands as another user and to end them, and what the policy
/// grants to commands.
pub fn capabilities(granted: Capabilities, single: bool) -> u64 {
    const KILL: u64 = 1 << 5;
    const SETGID: u64 = 1 << 6;
    const SETUID: u64 = 1 << 7;
    let own = if single { 0 } else { KILL | SETGID | SETUID };
    own | granted.bits()
}
