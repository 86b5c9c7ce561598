//! What a runtime is told about a sandbox: the `config.json` of its bundle. Pure.

use std::collections::HashSet;

use oci_spec::{
    OciSpecError,
    runtime::{
        Capability, LinuxBuilder, LinuxCapabilitiesBuilder, LinuxCpuBuilder, LinuxDeviceCgroupBuilder, LinuxIdMapping,
        LinuxIdMappingBuilder, LinuxMemoryBuilder, LinuxNamespace, LinuxNamespaceBuilder, LinuxNamespaceType,
        LinuxPidsBuilder, LinuxResources, LinuxResourcesBuilder, Mount, MountBuilder, PosixRlimit, PosixRlimitBuilder,
        PosixRlimitType, ProcessBuilder, RootBuilder, Spec, SpecBuilder, UserBuilder,
    },
};
use sandbox_core::{Bytes, policy::Capabilities};
use sandbox_executor::boot::FILE_ROLE;
use sandbox_linux::{
    cgroup::CgroupLimits,
    counts::Counts,
    ids::IdMap,
    steps::{FROZEN, MASKED},
};

use crate::{runtime::Kind, view};

/// The executor's folder inside: its program, what it is told, and the door to its keeper.
pub const INNER: &str = "/.sandbox";
/// The socket that it calls.
pub const DOOR: &str = "door";
/// The socket behind which the way out's proxy is.
pub const OUT: &str = "out";
/// What it is told.
pub const BOOT: &str = "boot";
/// The program.
pub const EXECUTOR: &str = "executor";
/// Why commands were ended.
pub const VERDICTS: &str = "verdicts";

/// What matters for a bundle.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// What the sandbox runs on.
    pub kind: Kind,
    /// Its ids.
    pub ids: IdMap,
    /// What the executor starts with, as a bit set.
    pub capabilities: u64,
    /// Size of `/tmp`.
    pub tmp: Bytes,
    /// Open files and waiting signals.
    pub counts: Counts,
    /// The only folders of the root that may be written; all, if not said.
    pub writable: Option<Vec<String>>,
    /// The sandbox's name and limits, where the runtime makes its cgroup.
    pub cgroup: Option<(String, CgroupLimits)>,
}

/// Where a runtime makes the cgroup of a sandbox, in every tree.
pub fn cgroup_path(name: &str) -> String {
    format!("/sandbox-mcp-oci/{name}")
}

/// The whole of it. It fails only where the builder is used wrongly, which a test would show.
pub fn config(wanted: &Wanted) -> Result<Spec, OciSpecError> {
    let executor = [format!("{INNER}/{EXECUTOR}"), FILE_ROLE.to_owned(), format!("{INNER}/{BOOT}")];
    let granted = capabilities(wanted.capabilities)?;
    let none = HashSet::new();
    let process = ProcessBuilder::default()
        .terminal(false)
        .user(UserBuilder::default().uid(0u32).gid(0u32).build()?)
        .args(executor)
        .env(Vec::<String>::new())
        .cwd("/")
        .no_new_privileges(true)
        .capabilities(
            LinuxCapabilitiesBuilder::default()
                .bounding(granted.clone())
                .effective(granted.clone())
                .permitted(granted)
                .inheritable(none.clone())
                .ambient(none)
                .build()?,
        )
        .rlimits(limits(&wanted.counts)?)
        .build()?;
    let mappings = mappings(&wanted.ids)?;
    let mut linux =
        LinuxBuilder::default().namespaces(namespaces(wanted)?).uid_mappings(mappings.clone()).gid_mappings(mappings);
    if let Some((name, limits)) = &wanted.cgroup {
        linux = linux.cgroups_path(cgroup_path(name)).resources(resources(limits)?);
    }
    linux = match wanted.kind {
        // gVisor shows its own kernel there.
        Kind::Gvisor => linux.masked_paths(Vec::new()).readonly_paths(Vec::new()),
        Kind::Plain => linux.masked_paths(masked()).readonly_paths(in_proc(&FROZEN)),
    };
    SpecBuilder::default()
        .version("1.0.2")
        // What of it may be written is said by the mounts that it is made of, and once more here.
        .root(RootBuilder::default().path(view::ROOT).readonly(wanted.writable.is_some()).build()?)
        .hostname("sandbox")
        .process(process)
        .mounts(mounts(wanted)?)
        .linux(linux.build()?)
        .build()
}

/// Covered where `/proc` is this machine's kernel's.
fn masked() -> Vec<String> {
    in_proc(&MASKED).into_iter().chain(["/sys/firmware".to_owned()]).collect()
}

fn in_proc(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("/proc/{name}")).collect()
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Each of its own.
fn namespaces(wanted: &Wanted) -> Result<Vec<LinuxNamespace>, OciSpecError> {
    use LinuxNamespaceType::{Cgroup, Ipc, Mount, Network, Pid, User, Uts};
    let always = [Pid, Network, Ipc, Uts, Mount, User];
    let more = (wanted.kind == Kind::Plain).then_some(Cgroup);
    always.into_iter().chain(more).map(|kind| LinuxNamespaceBuilder::default().typ(kind).build()).collect()
}

/// Nothing but the usual devices, which the runtime adds.
fn resources(limits: &CgroupLimits) -> Result<LinuxResources, OciSpecError> {
    const PERIOD: u64 = 100_000;
    let quota = u64::from(limits.cpu_millis) * PERIOD / 1000;
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let no_device = LinuxDeviceCgroupBuilder::default().allow(false).access("rwm").build()?;
    LinuxResourcesBuilder::default()
        .devices(vec![no_device])
        .memory(LinuxMemoryBuilder::default().limit(signed(limits.memory)).build()?)
        .cpu(LinuxCpuBuilder::default().quota(signed(quota)).period(PERIOD).build()?)
        .pids(LinuxPidsBuilder::default().limit(i64::from(limits.pids)).build()?)
        .build()
}

/// As the kernel would read them from `uid_map`.
fn mappings(ids: &IdMap) -> Result<Vec<LinuxIdMapping>, OciSpecError> {
    let number = |word: Option<&str>| word.and_then(|word| word.parse::<u32>().ok()).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split(' ');
        LinuxIdMappingBuilder::default()
            .container_id(number(words.next()))
            .host_id(number(words.next()))
            .size(number(words.next()))
            .build()
    };
    ids.lines().lines().map(line).collect()
}

fn capabilities(bits: u64) -> Result<HashSet<Capability>, OciSpecError> {
    let names = Capabilities::from_bits(bits).names();
    let known = |name: &str| {
        let name = serde_json::Value::String(format!("CAP_{}", name.to_uppercase()));
        serde_json::from_value(name).map_err(|error| OciSpecError::Other(error.to_string()))
    };
    names.into_iter().map(known).collect()
}

fn limits(counts: &Counts) -> Result<Vec<PosixRlimit>, OciSpecError> {
    let limit = |kind, most: u64| PosixRlimitBuilder::default().typ(kind).soft(most).hard(most).build();
    Ok(vec![limit(PosixRlimitType::RlimitCore, 0)?, limit(PosixRlimitType::RlimitSigpending, counts.queued_signals)?])
}

/// What the root that the keeper has built does not have: what lives in memory, and what the kernel makes up.
fn mounts(wanted: &Wanted) -> Result<Vec<Mount>, OciSpecError> {
    let shm = wanted.tmp.0.min(64 << 20);
    let memory = |target: &str, size: u64, mode: &str| {
        mount(target, "tmpfs", &["nosuid", "nodev", &format!("size={size}"), &format!("mode={mode}")])
    };
    let mut mounts = Vec::new();
    if wanted.kind == Kind::Gvisor {
        // It knows no paths that are only to be read, and what it has there is root's to write.
        mounts.push(mount("/proc", "proc", &["nosuid", "nodev", "noexec", "ro"])?);
    } else {
        mounts.push(mount("/proc", "proc", &["nosuid", "nodev", "noexec"])?);
        mounts.push(mount("/dev", "tmpfs", &["nosuid", "noexec", "size=65536", "mode=755"])?);
        let terminals = format!("max={}", sandbox_linux::counts::TERMINALS);
        let options = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", &terminals];
        mounts.push(mount("/dev/pts", "devpts", &options)?);
    }
    // gVisor would show its own there, and this machine's kernel has none that belongs to nobody inside.
    mounts.push(mount("/sys", "tmpfs", &["nosuid", "nodev", "noexec", "ro", "size=4096", "mode=555"])?);
    mounts.push(memory("/dev/shm", shm, "1777")?);
    mounts.push(memory("/tmp", wanted.tmp.0, "1777")?);
    for place in wanted.writable.iter().flatten() {
        let source = format!("{}{place}", view::ROOT);
        let options = owned(&["rbind", "rw", "nosuid", "nodev"]);
        mounts.push(MountBuilder::default().destination(place).typ("bind").source(source).options(options).build()?);
    }
    Ok(mounts)
}

fn mount(target: &str, kind: &str, options: &[&str]) -> Result<Mount, OciSpecError> {
    MountBuilder::default().destination(target).typ(kind).source(kind).options(owned(options)).build()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use sandbox_linux::{
        counts::{Inotify, Memory},
        ids::IdSource,
    };
    use serde_json::{Value, json};

    use super::*;

    fn wanted(kind: Kind, source: IdSource) -> Wanted {
        Wanted {
            kind,
            ids: IdMap::new(source, 1, 1000),
            capabilities: 1 << 5 | 1 << 6 | 1 << 7,
            tmp: Bytes::mib(100),
            counts: Counts::new(Inotify { instances: 128, watches: 8192 }, 64, Memory::Counted),
            writable: Some(vec!["/workspace".into()]),
            cgroup: None,
        }
    }

    fn told(wanted: &Wanted) -> Value {
        serde_json::to_value(config(wanted).unwrap()).unwrap()
    }

    #[test]
    fn the_executor_is_the_first_process_and_can_gain_nothing() {
        let process = &told(&wanted(Kind::Gvisor, IdSource::Ranges))["process"];
        assert_eq!(process["args"], json!(["/.sandbox/executor", "file", "/.sandbox/boot"]));
        assert_eq!(process["user"]["uid"], 0);
        assert_eq!(process["noNewPrivileges"], true);
        assert_eq!(process["terminal"], false);
        assert_eq!(process["env"], json!([]), "nothing of the server's environment");
        for set in ["bounding", "effective", "permitted"] {
            let mut names: Vec<String> = serde_json::from_value(process["capabilities"][set].clone()).unwrap();
            names.sort();
            assert_eq!(names, ["CAP_KILL", "CAP_SETGID", "CAP_SETUID"], "{set}");
        }
        for set in ["inheritable", "ambient"] {
            assert_eq!(process["capabilities"][set], json!([]), "{set}");
        }
        let limits = process["rlimits"].as_array().unwrap();
        assert!(limits.iter().any(|one| one["type"] == "RLIMIT_CORE" && one["hard"] == 0), "{limits:?}");
        assert!(limits.iter().any(|one| one["type"] == "RLIMIT_SIGPENDING" && one["hard"] == 1024), "{limits:?}");
    }

    #[test]
    fn every_namespace_is_its_own() {
        let kinds = |told: &Value| -> Vec<String> {
            let namespaces = told["linux"]["namespaces"].as_array().unwrap();
            assert!(namespaces.iter().all(|one| one.get("path").is_none()), "none is joined: {namespaces:?}");
            namespaces.iter().map(|one| one["type"].as_str().unwrap().to_owned()).collect()
        };
        let gvisors = ["pid", "network", "ipc", "uts", "mount", "user"];
        assert_eq!(kinds(&told(&wanted(Kind::Gvisor, IdSource::Ranges))), gvisors);
        let plain = kinds(&told(&wanted(Kind::Plain, IdSource::Ranges)));
        assert_eq!(plain, ["pid", "network", "ipc", "uts", "mount", "user", "cgroup"]);
    }

    #[test]
    fn as_root_a_sandbox_has_a_range_of_its_own() {
        let linux = &told(&wanted(Kind::Gvisor, IdSource::Ranges))["linux"];
        let range = json!([{"containerID": 0, "hostID": 0x1000_0000 + 65_536, "size": 65_536}]);
        assert_eq!((&linux["uidMappings"], &linux["gidMappings"]), (&range, &range));
    }

    #[test]
    fn nothing_of_this_machine_is_mounted_but_the_view() {
        for kind in [Kind::Gvisor, Kind::Plain] {
            let told = told(&wanted(kind, IdSource::Ranges));
            assert_eq!((&told["root"]["path"], &told["root"]["readonly"]), (&json!(view::ROOT), &json!(true)));
            for mount in told["mounts"].as_array().unwrap() {
                let of_view = mount["source"].as_str().is_some_and(|source| source.starts_with(view::ROOT));
                assert!(["proc", "tmpfs", "devpts"].iter().any(|kind| mount["type"] == *kind) || of_view, "{mount}");
            }
        }
    }

    #[test]
    fn only_named_places_can_be_written_where_the_root_cannot() {
        let told = told(&wanted(Kind::Gvisor, IdSource::Ranges));
        let bound: Vec<_> =
            told["mounts"].as_array().unwrap().iter().filter(|mount| mount["type"] == "bind").cloned().collect();
        assert_eq!(
            bound,
            [json!({"destination": "/workspace", "type": "bind", "source": format!("{}/workspace", view::ROOT),
                "options": ["rbind", "rw", "nosuid", "nodev"]})]
        );
        let all = Wanted { writable: None, ..wanted(Kind::Gvisor, IdSource::Ranges) };
        assert_eq!(self::told(&all)["root"]["readonly"], false);
    }

    #[test]
    fn what_lives_in_memory_has_a_size() {
        let told = told(&wanted(Kind::Gvisor, IdSource::Ranges));
        let of = |target: &str| {
            let mounts = told["mounts"].as_array().unwrap();
            mounts.iter().find(|one| one["destination"] == target).unwrap()["options"].clone()
        };
        assert_eq!(of("/tmp"), json!(["nosuid", "nodev", "size=104857600", "mode=1777"]));
        assert_eq!(of("/dev/shm"), json!(["nosuid", "nodev", "size=67108864", "mode=1777"]));
    }

    #[test]
    fn limits_are_the_runtimes_to_hold_where_it_makes_the_cgroup() {
        let limits = CgroupLimits { memory: 1 << 30, cpu_millis: 1500, pids: 64 };
        let some = Wanted { cgroup: Some(("x".into(), limits)), ..wanted(Kind::Plain, IdSource::Ranges) };
        let linux = &told(&some)["linux"];
        assert_eq!(linux["cgroupsPath"], "/sandbox-mcp-oci/x");
        assert_eq!(linux["resources"]["memory"]["limit"], 1 << 30);
        assert_eq!(linux["resources"]["cpu"], json!({"quota": 150_000, "period": 100_000}));
        assert_eq!(linux["resources"]["pids"]["limit"], 64);
        assert_eq!(linux["resources"]["devices"], json!([{"allow": false, "access": "rwm"}]));
    }

    #[test]
    fn on_this_machines_kernel_its_secrets_are_covered() {
        let linux = &told(&wanted(Kind::Plain, IdSource::Ranges))["linux"];
        for path in ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"] {
            assert!(linux["maskedPaths"].as_array().unwrap().iter().any(|found| found == path), "{path}");
        }
        assert_eq!(linux["readonlyPaths"], json!(in_proc(&FROZEN)));
        assert!(linux.get("devices").is_none_or(Value::is_null), "no device beyond the usual ones: {linux}");
    }
}
