//! From a policy to what an engine is told, computed before anything is done. Pure: every field has its test.

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
};

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount, MountType,
    MountVolumeOptions, ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};
use sandbox_core::{
    Error, Result, SandboxSpec,
    policy::{Capabilities, Root, SecurityProfile},
};
use sandbox_executor::boot::{DIAL_ROLE, STREAMS_ROLE};
use sandbox_linux::{
    HOME, WORKSPACE,
    steps::{FROZEN, MASKED},
    way_out,
};

use crate::{
    labels, meeting,
    nature::{Kind, Nature, Reach},
};

/// The executor's program in our folder.
pub const PROGRAM: &str = "executor";
/// Where programs look for certificates.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Names of hosts.
const HOSTS: &str = "/etc/hosts";
/// What the executor needs to start commands as another user and to end them; and, given up at once, to give that user
/// folders, and to give up the rest for good.
const EXECUTORS: [&str; 5] = ["CHOWN", "KILL", "SETGID", "SETPCAP", "SETUID"];
/// Over gVisor's own kernel, and given up at once: there the executor holds the number of processes itself, and covers what
/// is told about it.
const GVISORS_CAPABILITIES: [&str; 2] = ["DAC_OVERRIDE", "SYS_ADMIN"];
/// Memory of gVisor's own, beside that of commands.
pub const GVISORS_MEMORY: u64 = 256 << 20;
/// This machine's threads that gVisor may have, whatever number of processes is in it.
const GVISORS_THREADS: i64 = 16_384;
/// Memory that processes share by name.
const SHARED_MEMORY: i64 = 64 << 20;
/// Signals that may wait for one process; the kernel counts them for a user.
const SIGNALS: i64 = 2048;
/// How an empty folder is mounted.
const EMPTY: &str = "ro,noexec,nosuid,nodev,mode=755,size=65536";
/// Temporary files that outlive a restart elsewhere, and here do not.
const VAR_TMP: u64 = 64 << 20;

/// What engines hide beside what every sandbox of ours lacks. Without a user namespace root inside may read what this
/// machine's root may.
const MASKED_TOO: [&str; 12] = [
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/pagetypeinfo",
    "/proc/pressure",
    "/proc/slabinfo",
    "/proc/swaps",
    "/proc/sysrq-trigger",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/sys/firmware",
    "/sys",
];

fn masked() -> Vec<String> {
    let in_proc = MASKED.map(|name| format!("/proc/{name}"));
    in_proc.into_iter().chain(MASKED_TOO.map(String::from)).collect()
}

/// What can be read and not written. What is masked needs it not.
fn read_only_paths() -> Vec<String> {
    let paths = FROZEN.map(|name| format!("/proc/{name}"));
    paths.into_iter().filter(|path| !MASKED_TOO.contains(&path.as_str())).collect()
}

/// What is mounted as our folder, which holds the executor's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A folder of this machine, in which our socket is too.
    Folder(PathBuf),
    /// A volume of the engine.
    Volume(String),
}

/// How an engine is told which system calls may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// In the request.
    Document(String),
    /// As a file on the engine's machine.
    File(PathBuf),
    /// Not at all: it has its own, and the executor installs ours.
    Engines,
}

/// What there is for one sandbox, beside its policy and the engine.
#[derive(Clone, Debug)]
pub struct Ground<'a> {
    /// What tells our state folder from others.
    pub state: &'a str,
    /// The image as the engine knows it.
    pub image: &'a Image,
    /// Our folder.
    pub program: Source,
    /// A file with certificates to trust.
    pub certificates: Option<&'a Path>,
    /// The file with names of hosts, where the engine's own would tell the machine's name.
    pub hosts: Option<&'a Path>,
    /// Files inside that are covered, because the policy takes those programs away; with what covers them.
    pub covered: Option<(&'a Path, &'a [String])>,
    /// The filter for system calls.
    pub filter: Filter,
}

/// What is known of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// The engine's name for it, which never means another one.
    pub id: String,
    /// Variables of all its containers.
    pub env: Vec<String>,
    /// Folders that get a volume in every container.
    pub volumes: Vec<String>,
}

/// One volume of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its name at the engine.
    pub volume: String,
    /// Where it is mounted.
    pub target: String,
}

/// Our folder inside a container. Root goes back to what lies there (a bridge, a socket to dial), so it must be ours whoever
/// made the image and whoever may change the root: no image has a name in it that is chosen afterwards and by chance, so no
/// link leads away from it, and what is mounted directly in `/` can be neither renamed nor removed (EBUSY, see rename(2)).
pub fn our_folder(container: &str) -> String {
    format!("/.{container}")
}

/// The executor's program, inside a container.
pub fn program(container: &str) -> String {
    format!("{}/{PROGRAM}", our_folder(container))
}

/// The folders that a sandbox keeps files in.
pub fn kept(spec: &SandboxSpec) -> Vec<Kept> {
    let places = spec.policy.filesystem.writable.iter().filter(|place| !is_within_ours(place));
    let places = places.enumerate().map(|(number, place)| (format!("place-{number}"), place.clone()));
    let ours = [("workspace".to_owned(), WORKSPACE.to_owned()), ("home".to_owned(), HOME.to_owned())];
    let kept = ours.into_iter().chain(places);
    kept.map(|(what, target)| Kept { volume: labels::volume(&spec.id, &what), target }).collect()
}

fn is_within_ours(place: &str) -> bool {
    [WORKSPACE, HOME, "/tmp"].iter().any(|ours| Path::new(place).starts_with(ours))
}

/// A place that cannot be a folder of its own, or in which something of ours lies.
pub fn check_places(spec: &SandboxSpec) -> Result<()> {
    for place in &spec.policy.filesystem.writable {
        let path = Path::new(place);
        let kernels = ["/proc", "/sys", "/dev", "/opt/sandbox"].iter().any(|one| path.starts_with(one));
        let above = [WORKSPACE, HOME, "/proc", "/opt/sandbox"]
            .iter()
            .find(|ours| Path::new(ours).starts_with(path) && **ours != place);
        let why = match (kernels, above) {
            (true, _) => "it belongs to the kernel or to us".to_owned(),
            (_, Some(ours)) => format!("{ours} lies in it"),
            _ => continue,
        };
        return Err(Error::Invalid {
            what: format!("the folder {place} of `writable` cannot be made writable: {why}"),
            fix: "Name a folder further down, or use a policy with a writable root".into(),
        });
    }
    Ok(())
}

/// What the engine is asked to make.
pub fn body(spec: &SandboxSpec, engine: &Nature, ground: &Ground<'_>) -> ContainerCreateBody {
    let reach = engine.reach(spec.policy.privileges.runtime.as_deref());
    let container = labels::container(&spec.id);
    let role = match reach {
        Reach::Socket => vec![DIAL_ROLE.to_owned(), format!("{}/{}", our_folder(&container), meeting::SOCKET)],
        Reach::Streams => vec![STREAMS_ROLE.to_owned()],
    };
    let streams = reach == Reach::Streams;
    ContainerCreateBody {
        image: Some(ground.image.id.clone()),
        hostname: Some("sandbox".into()),
        user: Some("0:0".into()),
        working_dir: Some("/".into()),
        entrypoint: Some(vec![program(&container)]),
        cmd: Some(role),
        env: Some(Vec::new()),
        tty: Some(false),
        attach_stdin: Some(streams),
        attach_stdout: Some(streams),
        attach_stderr: Some(false),
        open_stdin: Some(streams),
        stdin_once: Some(streams),
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".into()]), ..HealthConfig::default() }),
        labels: Some(labels::of(spec, ground.state)),
        stop_timeout: Some(1),
        host_config: Some(host_config(spec, engine, ground)),
        ..ContainerCreateBody::default()
    }
}

fn host_config(spec: &SandboxSpec, engine: &Nature, ground: &Ground<'_>) -> HostConfig {
    let policy = &spec.policy;
    let limits = &policy.limits;
    let gvisor = engine.is_gvisor(policy.privileges.runtime.as_deref());
    let memory = limits.memory.0.saturating_add(if gvisor { GVISORS_MEMORY } else { 0 });
    let memory = i64::try_from(memory).unwrap_or(i64::MAX);
    let pids = if gvisor { GVISORS_THREADS } else { i64::from(limits.pids) };
    HostConfig {
        memory: engine.holds.memory.then_some(memory),
        // Memory and swap together, so none of the latter.
        memory_swap: engine.holds.memory.then_some(memory),
        nano_cpus: engine.holds.cpu.then_some(i64::from(limits.cpu_millis) * 1_000_000),
        ulimits: Some(ulimits(engine)),
        pids_limit: engine.holds.pids.then_some(pids),
        oom_kill_disable: Some(false),
        storage_opt: (engine.sizes_layers() && policy.filesystem.root == Root::Writable)
            .then(|| HashMap::from([("size".to_owned(), limits.disk.0.to_string())])),
        readonly_rootfs: Some(policy.filesystem.root == Root::ReadOnly),
        tmpfs: Some(tmpfs(spec, engine, ground.image)),
        shm_size: Some(SHARED_MEMORY),
        mounts: Some(mounts(spec, ground)),
        cap_drop: Some(vec!["ALL".into()]),
        cap_add: Some(capabilities(policy.privileges.capabilities, gvisor)),
        security_opt: Some(security_options(spec, engine, &ground.filter)),
        masked_paths: Some(masked()),
        readonly_paths: Some(read_only_paths()),
        network_mode: Some("none".into()),
        sysctls: (!engine.own_kernel(policy.privileges.runtime.as_deref())).then(sysctls),
        dns: spec.has_way_out().then(|| vec![way_out::DNS_SERVER.to_string()]),
        ipc_mode: Some("private".into()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        privileged: Some(false),
        init: Some(false),
        auto_remove: Some(false),
        restart_policy: Some(RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None }),
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
        runtime: policy.privileges.runtime.clone().filter(|_| engine.kind == Kind::Docker),
        ..HostConfig::default()
    }
}

fn ulimits(engine: &Nature) -> Vec<ResourcesUlimits> {
    let limit =
        |(name, most): (&str, i64)| ResourcesUlimits { name: Some(name.into()), soft: Some(most), hard: Some(most) };
    [("sigpending", SIGNALS)].into_iter().chain(engine.rlimits.iter().copied()).map(limit).collect()
}

/// Docker lets everybody listen on low ports, which only a capability gives.
fn sysctls() -> HashMap<String, String> {
    HashMap::from([("net.ipv4.ip_unprivileged_port_start".to_owned(), "1024".to_owned())])
}

/// Folders in memory, each with a size. What an image wants a volume for is one too, or nobody would bound it.
fn tmpfs(spec: &SandboxSpec, engine: &Nature, image: &Image) -> HashMap<String, String> {
    let tmp = spec.policy.limits.tmp.0;
    let sized = |target: String| {
        let size = if target == "/var/tmp" { tmp.min(VAR_TMP) } else { tmp };
        (target, format!("rw,exec,nosuid,nodev,mode=1777,size={size}"))
    };
    let empty = empty(spec, engine).iter().map(|target| ((*target).to_owned(), EMPTY.to_owned()));
    in_memory(spec, image).into_iter().map(sized).chain(empty).collect()
}

/// Folders in memory that everybody may write to.
pub fn in_memory(spec: &SandboxSpec, image: &Image) -> Vec<String> {
    let taken: BTreeSet<String> = kept(spec).into_iter().map(|kept| kept.target).collect();
    let own = ["/tmp", "/var/tmp"];
    let wanted = image.volumes.iter().filter(|target| !taken.contains(*target) && !own.contains(&target.as_str()));
    wanted.cloned().chain(own.map(str::to_owned)).collect()
}

/// What has something over it that is empty and cannot be written. gVisor hides nothing that it is told to hide, and Podman
/// puts a folder there that can be written and has no size.
fn empty(spec: &SandboxSpec, engine: &Nature) -> &'static [&'static str] {
    if engine.is_gvisor(spec.policy.privileges.runtime.as_deref()) {
        &["/sys", "/sys/fs/cgroup"]
    } else if engine.kind == Kind::Podman && spec.policy.filesystem.root == Root::ReadOnly {
        &["/run"]
    } else {
        &[]
    }
}

fn mounts(spec: &SandboxSpec, ground: &Ground<'_>) -> Vec<Mount> {
    let kept = kept(spec).into_iter().map(|kept| Mount {
        target: Some(kept.target),
        source: Some(kept.volume),
        typ: Some(MountType::VOLUME),
        read_only: Some(false),
        volume_options: Some(MountVolumeOptions {
            labels: Some(labels::of(spec, ground.state)),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    });
    let ours = our_folder(&labels::container(&spec.id));
    let program = match &ground.program {
        Source::Folder(path) => read_only(MountType::BIND, &path.to_string_lossy(), &ours),
        // All sandboxes share it, so no image may put anything into it.
        Source::Volume(name) => {
            Mount { volume_options: Some(never_filled()), ..read_only(MountType::VOLUME, name, &ours) }
        }
    };
    let file = |path: &Path, target: &str| read_only(MountType::BIND, &path.to_string_lossy(), target);
    let certificates = ground.certificates.map(|path| file(path, CERTIFICATES));
    let hosts = ground.hosts.map(|path| file(path, HOSTS));
    let covered =
        ground.covered.into_iter().flat_map(|(stub, targets)| targets.iter().map(move |target| (stub, target)));
    let covered = covered.map(|(stub, target)| file(stub, target));
    // An engine elsewhere does not have them; whoever needs them copies them.
    let tools = if matches!(ground.program, Source::Folder(_)) { &spec.tools[..] } else { &[] };
    let tools = tools.iter().map(|tool| file(&tool.source, &tool.target));
    kept.chain([program]).chain(certificates).chain(hosts).chain(covered).chain(tools).collect()
}

/// Engines fill a new volume with what the image has at the place where it is mounted first.
pub fn never_filled() -> MountVolumeOptions {
    MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }
}

fn read_only(typ: MountType, source: &str, target: &str) -> Mount {
    Mount {
        target: Some(target.into()),
        source: Some(source.into()),
        typ: Some(typ),
        read_only: Some(true),
        ..Mount::default()
    }
}

/// What the policy grants, and what the executor needs.
fn capabilities(granted: Capabilities, gvisor: bool) -> Vec<String> {
    let granted = granted.names().into_iter().map(str::to_ascii_uppercase);
    let more = gvisor.then_some(GVISORS_CAPABILITIES.map(String::from)).into_iter().flatten();
    let all: BTreeSet<String> = granted.chain(EXECUTORS.map(String::from)).chain(more).collect();
    all.into_iter().collect()
}

fn security_options(spec: &SandboxSpec, engine: &Nature, filter: &Filter) -> Vec<String> {
    let mut options = vec!["no-new-privileges".to_owned()];
    match filter {
        Filter::Document(text) => options.push(format!("seccomp={text}")),
        Filter::File(path) => options.push(format!("seccomp={}", path.display())),
        Filter::Engines => {}
    }
    if engine.kind == Kind::Podman {
        // It takes no list of its own for these, but options.
        options.push(format!("mask={}", masked().join(":")));
    }
    if let SecurityProfile::Named(name) = &spec.policy.privileges.security_profile {
        if engine.modules.apparmor {
            options.push(format!("apparmor={name}"));
        } else if engine.modules.selinux {
            options.push(format!("label=type:{name}"));
        }
    }
    options
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
