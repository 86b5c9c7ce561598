//! What will be done to make one sandbox, computed before anything is done. Pure.
//!
//! The keeper walks the result; it has no decisions left to make.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use sandbox_core::{Bytes, Control, Enforcement, Error, Held, Image, Result, SandboxSpec, policy::Root};
use sandbox_executor::boot::{self, Attachment, Boot, Carries, Identity, Itself, OomCounter, Outward};
use sandbox_linux::{
    HOME, WORKSPACE,
    cgroup::{CgroupHost, CgroupLimits},
    counts::{Counts, Memory},
    host::Host,
    ids::IdMap,
    images::Named,
    network::Kind as Network,
    plan::{self, HISTORY, RootSource, Watch},
    prepared::Prepared,
    root,
    seccomp::{Chosen, Filters, Narrowing, to_bytes},
    steps::{self, Access, Step},
    way_out::PROXY_PORT,
};
use serde::{Deserialize, Serialize};

use crate::{
    bundle::{self, DOOR, INNER, OUT, VERDICTS, Wanted},
    holdings,
    runtime::{Kind, Runtime},
};

/// What gVisor's own processes may use beside what commands may, before the kernel ends them.
pub const GVISORS_OWN: Bytes = Bytes::mib(256);
/// gVisor's own threads are counted by the machine's kernel too, and there are several for each of a command's.
const GVISORS_THREADS: u32 = 8192;
/// What the executor needs to hold the number of processes in gVisor, and gives up: dac_override, setpcap, sys_admin.
const FOR_GROUNDWORK: u64 = 1 << 1 | 1 << 8 | 1 << 21;

/// One sandbox, ready to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Its name, for its cgroup and for the runtime.
    pub name: String,
    /// The state folder.
    pub state: PathBuf,
    /// Its folder outside.
    pub folder: PathBuf,
    /// Folders to be made in it, with their owner as the keeper counts.
    pub folders: Vec<(String, u32)>,
    /// What of the cache its layers stand on.
    pub ground: Option<PathBuf>,
    /// The image that it stands on; it is kept as long as the sandbox has a link to it.
    pub image: Option<PathBuf>,
    /// User and group ids.
    pub ids: IdMap,
    /// The root file system.
    pub root: RootSource,
    /// What is done to it, in this order.
    pub steps: Vec<Step>,
    /// Who runs it.
    pub runtime: Runtime,
    /// What that is told.
    pub config: String,
    /// Where its cgroup can be.
    pub cgroup: CgroupHost,
    /// Limits for it.
    pub limits: CgroupLimits,
    /// Processors that it may use, where no cgroup limits them.
    pub processors: Option<usize>,
    /// Its share of what the kernel counts for a user: names in `/proc/sys/user` of its user namespace.
    pub counts: Vec<(String, u64)>,
    /// What the keeper has to watch.
    pub watch: Watch,
    /// What the executor is told.
    pub boot: Boot,
    /// Time to become ready.
    pub patience: Duration,
}

/// Plans a sandbox. Fails where the policy promises what cannot be held here.
pub fn plan(
    spec: &SandboxSpec,
    calls: &Chosen,
    host: &Host,
    runtime: &Runtime,
    prepared: &Prepared,
    named: Option<&Named>,
    lease: Duration,
) -> Result<(Plan, Enforcement)> {
    let (policy, gvisor) = (&spec.policy, runtime.kind == Kind::Gvisor);
    let (mut enforcement, watch) = holdings::of_limits(spec, host, runtime);
    enforcement.hold(Control::SystemCalls, Held::Kernel, calls.to_string());
    holdings::of_commands(&mut enforcement, spec, prepared);
    enforcement.satisfies(policy)?;
    let user = plan::user_id(spec);
    let ids = plan::id_map(spec, host, sandbox_linux::slot(&spec.id), user);
    let owner = |id: u32| ids.outside(id);
    let covers = host.cgroup.covers();
    let processors = (!covers.cpu).then_some(policy.limits.cpu_millis.div_ceil(1000) as usize);
    let kept = plan::capabilities(policy.privileges.capabilities, false);
    let counts = Counts::new(host.inotify, policy.limits.pids, Memory::Counted);
    let limits = CgroupLimits {
        memory: policy.limits.memory.0 + if gvisor { GVISORS_OWN.0 } else { 0 },
        cpu_millis: policy.limits.cpu_millis,
        pids: if gvisor { GVISORS_THREADS } else { policy.limits.pids },
    };
    let wanted = Wanted {
        cgroup: (!gvisor).then(|| (spec.id.to_string(), limits)),
        kind: runtime.kind,
        ids,
        capabilities: if gvisor { kept | FOR_GROUNDWORK } else { kept },
        tmp: policy.limits.tmp,
        counts,
        // Said once more to gVisor, which has a file system of its own; but links of an image lead elsewhere from outside.
        writable: (gvisor
            && policy.filesystem.root == Root::ReadOnly
            && (prepared.places.is_empty() || spec.image == Image::Host))
            .then(|| plan::with_places(&[WORKSPACE, HOME], prepared)),
    };
    let config = bundle::config(&wanted).ok().and_then(|config| serde_json::to_string(&config).ok());
    let config =
        config.ok_or_else(|| Error::Step { step: "describing the sandbox".into(), why: "no bundle".into() })?;
    let folder = host.state.join("sandboxes").join(spec.id.as_str());
    let root = root::source(spec, host, prepared);
    let steps = view_steps(steps::steps(spec, host, prepared), &folder, owner);
    let folders = folders(&root, &steps, &folder, owner(user), owner(0));
    let narrowing = Narrowing {
        visible_memory_only: false,
        fixed_processors: processors.is_some() && !gvisor,
        lenient_kernel: gvisor.then_some(policy.privileges.capabilities.bits()),
    };
    let mut env = plan::variables(spec, named);
    if spec.has_way_out() {
        plan::tell_jvm(&mut env);
    }
    let plan = Plan {
        name: spec.id.to_string(),
        state: host.state.clone(),
        folder,
        folders,
        ground: prepared.ground.clone(),
        image: named.map(|named| named.link.clone()),
        ids,
        root,
        steps,
        runtime: runtime.clone(),
        config,
        cgroup: host.cgroup.clone(),
        // Beside the container itself there are the runtime's own processes.
        limits: if gvisor { limits } else { CgroupLimits { pids: GVISORS_THREADS, ..limits } },
        processors,
        // gVisor counts for itself.
        counts: if gvisor { Vec::new() } else { counts.of_user_namespace() },
        watch,
        boot: Boot {
            attachment: Attachment::Call {
                path: format!("{INNER}/{DOOR}"),
                carries: if gvisor { Carries::Bytes } else { Carries::Descriptors },
            },
            user: Identity::Drop { uid: user, gid: user },
            capabilities: policy.privileges.capabilities.bits(),
            workspace: WORKSPACE.into(),
            places: match policy.filesystem.root {
                Root::ReadOnly => plan::with_places(&[WORKSPACE, HOME, "/tmp"], prepared),
                Root::Writable => vec!["/".into()],
            },
            env,
            lease: (!spec.persistent).then_some(lease),
            history: HISTORY,
            pids: gvisor.then_some(boot::processes_of_user(policy.limits.pids, user == 0)),
            process_memory: None,
            file_size: Some(policy.limits.disk),
            descriptors: counts.descriptors_of_commands(),
            oom: OomCounter::None,
            refused_processes: false,
            supervised: true,
            counts: Vec::new(),
            die_with_parent: false,
            proxy: None,
            itself: Itself {
                keep: Some(kept),
                filter: to_bytes(&Filters::default().instructions(&calls.filter(narrowing))),
                pids: gvisor.then_some(policy.limits.pids),
                verdicts: Some(format!("{INNER}/{VERDICTS}")),
                outward: (plan::kind_of_network(spec) == Network::Wired)
                    .then(|| Outward { port: PROXY_PORT, path: format!("{INNER}/{OUT}") }),
                ..Itself::default()
            },
        },
        patience: policy.limits.start,
    };
    Ok((plan, enforcement))
}

/// What is built before the runtime starts. What lives in memory and what the kernel makes up is the runtime's to mount.
fn view_steps(all: Vec<Step>, folder: &Path, outside: impl Fn(u32) -> u32) -> Vec<Step> {
    let ours = |step: &Step| match step {
        Step::Folder { target, .. } | Step::Link { target, .. } => !target.starts_with("dev/"),
        Step::Freeze { target } => target == ".",
        Step::Bind { .. } | Step::Layers { .. } | Step::Place { .. } | Step::Cover { .. } => true,
        _ => false,
    };
    let inner = INNER.trim_start_matches('/').to_owned();
    let own = [
        Step::Folder { target: "sys".into(), mode: 0o555 },
        Step::Folder { target: inner.clone(), mode: 0o755 },
        Step::Bind { source: folder.join("inner"), target: inner, access: Access::Read },
    ];
    // The keeper is outside, and counts ids as there.
    let counted = |step: Step| match step {
        Step::Place { source, target, owner } => Step::Place { source, target, owner: outside(owner) },
        // runc gives what it mounts the mode of what it mounts it on.
        Step::Folder { target, .. } if target == "tmp" => Step::Folder { target, mode: 0o1777 },
        other => other,
    };
    own.into_iter().chain(all.into_iter().filter(ours).map(counted)).collect()
}

/// Folders of the sandbox's own, with who they belong to.
fn folders(root: &RootSource, steps: &[Step], folder: &Path, user: u32, first: u32) -> Vec<(String, u32)> {
    let mut folders = vec![("workspace".into(), user), ("home".into(), user), ("inner".into(), first)];
    let layered = steps.iter().filter_map(|step| match step {
        Step::Layers { layers, .. } => Some(layers),
        _ => None,
    });
    let root = match root {
        RootSource::Layers(layers) => Some(layers),
        RootSource::Empty | RootSource::Bound { .. } => None,
    };
    let names: Vec<&str> = root.into_iter().chain(layered).map(|layers| layers.name.as_str()).collect();
    if !names.is_empty() {
        for kind in ["upper", "work"] {
            folders.push((kind.into(), first));
            folders.extend(names.iter().map(|name| (format!("{kind}/{name}"), first)));
        }
    }
    let places: Vec<String> = steps
        .iter()
        .filter_map(|step| match step {
            Step::Place { source: Some(source), .. } => Some(source.strip_prefix(folder).ok()?.to_str()?.to_owned()),
            _ => None,
        })
        .collect();
    if !places.is_empty() && names.is_empty() {
        folders.push(("upper".into(), 0));
    }
    folders.extend(places.into_iter().map(|name| (name, user)));
    folders
}
