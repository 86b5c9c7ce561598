//! Field by field: what an engine is told for a policy.

#![allow(clippy::unwrap_used)]

use sandbox_core::{Bytes, Image as Wanted, Policy, SessionId, UserId};

use super::*;
use crate::nature::{Modules, Storage, tests::docker};

fn spec(preset: &str) -> SandboxSpec {
    let owner = UserId::local();
    SandboxSpec {
        id: SessionId::random(&owner).unwrap(),
        owner,
        image: Wanted::Host,
        policy: Policy::preset(preset).unwrap(),
        persistent: false,
        env: Default::default(),
        certificates: None,
        tools: Vec::new(),
    }
}

fn planned(spec: &SandboxSpec, engine: &Nature) -> (ContainerCreateBody, HostConfig) {
    let image = Image { id: "sha256:1".into(), env: Vec::new(), volumes: vec!["/var/lib/db".into()] };
    let ground = Ground {
        state: "mine",
        image: &image,
        program: Source::Folder("/state/sandboxes/x/meeting".into()),
        hosts: None,
        certificates: None,
        covered: None,
        filter: Filter::Document("{}".into()),
    };
    let body = body(spec, engine, &ground);
    let host = body.host_config.clone().unwrap();
    (body, host)
}

fn host(spec: &SandboxSpec) -> HostConfig {
    planned(spec, &docker()).1
}

#[test]
fn limits_are_the_policys() {
    let mut spec = spec("yolo-3");
    spec.policy.limits.memory = Bytes::mib(256);
    spec.policy.limits.cpu_millis = 1500;
    spec.policy.limits.pids = 77;
    let host = host(&spec);
    assert_eq!((host.memory, host.memory_swap), (Some(256 << 20), Some(256 << 20)), "no swap");
    assert_eq!((host.nano_cpus, host.pids_limit), (Some(1_500_000_000), Some(77)));
    assert_eq!(host.oom_kill_disable, Some(false));
    let signals = &host.ulimits.unwrap()[0];
    assert_eq!((signals.name.as_deref(), signals.hard), (Some("sigpending"), Some(2048)));
}

#[test]
fn limits_that_the_engine_cannot_hold_are_not_asked_of_it() {
    let mut engine = docker();
    engine.holds = crate::nature::Holds { memory: false, cpu: false, pids: false };
    let host = planned(&spec("yolo-3"), &engine).1;
    assert_eq!((host.memory, host.memory_swap, host.nano_cpus, host.pids_limit), (None, None, None, None));
}

#[test]
fn only_a_layer_that_can_have_a_size_gets_one() {
    let writable = spec("yolo-4");
    assert_eq!(host(&writable).storage_opt, None);
    let xfs = Storage { driver: "overlay2".into(), backing: "xfs".into() };
    let engine = Nature { storage: xfs, ..docker() };
    let size = writable.policy.limits.disk.0.to_string();
    assert_eq!(planned(&writable, &engine).1.storage_opt.unwrap()["size"], size);
    assert_eq!(planned(&spec("yolo-3"), &engine).1.storage_opt, None, "nothing is written to it");
}

#[test]
fn the_root_is_as_the_policy_says() {
    assert_eq!(host(&spec("yolo-3")).readonly_rootfs, Some(true));
    assert_eq!(host(&spec("yolo-4")).readonly_rootfs, Some(false));
}

#[test]
fn folders_in_memory_have_sizes_and_an_images_volumes_are_among_them() {
    let spec = spec("yolo-3");
    let tmpfs = host(&spec).tmpfs.unwrap();
    let size = spec.policy.limits.tmp.0;
    assert_eq!(tmpfs["/tmp"], format!("rw,exec,nosuid,nodev,mode=1777,size={size}"));
    assert_eq!(tmpfs["/var/lib/db"], tmpfs["/tmp"]);
    assert_eq!(tmpfs.len(), 3);
}

#[test]
fn files_are_kept_in_volumes_of_the_sandboxs_own() {
    let mut spec = spec("yolo-3");
    spec.policy.filesystem.writable = ["/data", "/workspace/inner"].map(String::from).into();
    let mounts = host(&spec).mounts.unwrap();
    let volumes: Vec<_> = mounts.iter().filter(|mount| mount.typ == Some(MountType::VOLUME)).collect();
    let targets: Vec<_> = volumes.iter().map(|mount| mount.target.clone().unwrap()).collect();
    assert_eq!(targets, ["/workspace", "/home/sandbox", "/data"]);
    for volume in volumes {
        assert!(volume.source.as_ref().unwrap().starts_with(&format!("sandbox-mcp-{}-", spec.id)));
        let labels = volume.volume_options.as_ref().unwrap().labels.as_ref().unwrap();
        assert_eq!((&*labels[labels::SESSION], &*labels[labels::STATE]), (spec.id.as_str(), "mine"));
        assert_eq!(volume.read_only, Some(false));
    }
}

#[test]
fn of_this_machine_only_our_program_and_socket_are_mounted_and_nothing_can_be_written() {
    let host = host(&spec("production"));
    let binds: Vec<_> = host.mounts.unwrap().into_iter().filter(|mount| mount.typ == Some(MountType::BIND)).collect();
    let sources: Vec<_> = binds.iter().map(|mount| mount.source.as_deref().unwrap()).collect();
    assert_eq!(sources, ["/state/sandboxes/x/meeting"], "our program is in it too");
    assert!(binds.iter().all(|mount| mount.read_only == Some(true)));
    assert_eq!((host.binds, host.devices, host.volumes_from, host.device_requests), (None, None, None, None));
}

#[test]
fn capabilities_are_the_policys_and_what_the_executor_needs() {
    let needed = ["CHOWN", "KILL", "SETGID", "SETPCAP", "SETUID"];
    let none = host(&spec("yolo-3"));
    assert_eq!(none.cap_drop.unwrap(), ["ALL"]);
    assert_eq!(none.cap_add.unwrap(), needed);
    let mut some = spec("yolo-3");
    some.policy.privileges.capabilities = Capabilities::from_names(["net_bind_service", "kill"]).unwrap();
    assert_eq!(host(&some).cap_add.unwrap(), ["CHOWN", "KILL", "NET_BIND_SERVICE", "SETGID", "SETPCAP", "SETUID"]);
}

#[test]
fn privileges_cannot_be_gained_and_system_calls_are_filtered() {
    let options = host(&spec("yolo-3")).security_opt.unwrap();
    assert_eq!(options, ["no-new-privileges", "seccomp={}"]);
}

#[test]
fn a_named_profile_goes_to_the_module_that_there_is() {
    let mut spec = spec("yolo-3");
    spec.policy.privileges.security_profile = SecurityProfile::Named("strict".into());
    let with = |modules| planned(&spec, &Nature { modules, ..docker() }).1.security_opt.unwrap();
    assert!(with(Modules { apparmor: true, selinux: false }).contains(&"apparmor=strict".to_owned()));
    assert!(with(Modules { apparmor: false, selinux: true }).contains(&"label=type:strict".to_owned()));
    assert_eq!(with(Modules::default()).len(), 2);
}

#[test]
fn no_policy_makes_a_container_privileged_or_joins_it_with_others() {
    for preset in sandbox_core::policy::PRESETS {
        let (body, host) = planned(&spec(preset), &docker());
        assert_eq!(host.privileged, Some(false));
        assert_eq!(host.network_mode.as_deref(), Some("none"));
        assert_eq!(host.ipc_mode.as_deref(), Some("private"));
        assert_eq!(host.cgroupns_mode, Some(HostConfigCgroupnsModeEnum::PRIVATE));
        assert_eq!((host.pid_mode, host.uts_mode, host.userns_mode, host.cgroup_parent), (None, None, None, None));
        assert_eq!((host.port_bindings, host.publish_all_ports, host.links), (None, None, None));
        let sysctls = host.sysctls.unwrap();
        assert_eq!(sysctls.len(), 1, "{sysctls:?}");
        assert_eq!(sysctls["net.ipv4.ip_unprivileged_port_start"], "1024", "low ports take a capability");
        assert_eq!((host.init, host.auto_remove), (Some(false), Some(false)));
        assert!(host.masked_paths.unwrap().contains(&"/proc/kcore".to_owned()));
        assert!(host.readonly_paths.unwrap().contains(&"/proc/sys".to_owned()));
        assert_eq!(body.user.as_deref(), Some("0:0"), "the executor's; commands are the policy's user");
    }
}

#[test]
fn the_executor_is_the_first_process_whatever_the_image_says() {
    let spec = spec("yolo-3");
    let (body, host) = planned(&spec, &docker());
    let ours = format!("/.sandbox-mcp-{}", spec.id);
    assert_eq!(body.entrypoint.unwrap(), [format!("{ours}/executor")]);
    assert_eq!(body.cmd.unwrap(), ["dial".to_owned(), format!("{ours}/socket")]);
    assert_eq!(body.env.unwrap(), [""; 0]);
    assert_eq!(body.healthcheck.unwrap().test.unwrap(), ["NONE"]);
    assert_eq!(host.log_config.unwrap().typ.as_deref(), Some("none"));
    assert_eq!(body.open_stdin, Some(false));
}

#[test]
fn elsewhere_the_standard_streams_carry_everything() {
    let (body, host) = planned(&spec("yolo-3"), &Nature { here: false, ..docker() });
    assert_eq!(body.cmd.unwrap(), ["streams"]);
    assert_eq!((body.open_stdin, body.stdin_once, body.attach_stdout), (Some(true), Some(true), Some(true)));
    assert_eq!(body.tty, Some(false));
    assert_eq!(host.runtime, None);
}

#[test]
fn the_runtime_is_the_policys() {
    let mut spec = spec("yolo-3");
    spec.policy.privileges.runtime = Some("runsc".into());
    assert_eq!(host(&spec).runtime.as_deref(), Some("runsc"));
}

#[test]
fn labels_say_whose_it_is() {
    let spec = spec("yolo-3");
    let labels = planned(&spec, &docker()).0.labels.unwrap();
    assert_eq!(labels[labels::SESSION], spec.id.as_str());
    assert_eq!(labels[labels::OWNER], spec.owner.as_str());
    assert_eq!(labels[labels::STATE], "mine");
}

#[test]
fn what_is_covered_cannot_be_written() {
    let image = Image::default();
    let covered = ["/usr/bin/su".to_owned()];
    let ground = Ground {
        state: "mine",
        image: &image,
        program: Source::Volume("programs".into()),
        hosts: None,
        certificates: Some(Path::new("/state/certificates.pem")),
        covered: Some((Path::new("/state/stub"), &covered)),
        filter: Filter::Engines,
    };
    let spec = spec("yolo-3");
    let ours = our_folder(&labels::container(&spec.id));
    let mounts = body(&spec, &docker(), &ground).host_config.unwrap().mounts.unwrap();
    let found = |target: &str| mounts.iter().find(|mount| mount.target.as_deref() == Some(target)).unwrap();
    assert_eq!(found("/usr/bin/su").source.as_deref(), Some("/state/stub"));
    assert_eq!(found(&ours).source.as_deref(), Some("programs"));
    for target in ["/usr/bin/su", &ours, CERTIFICATES] {
        assert_eq!(found(target).read_only, Some(true), "{target}");
    }
}

#[test]
fn an_image_filled_the_volume_that_all_sandboxes_start_from() {
    let image = Image::default();
    let ground = Ground {
        state: "mine",
        image: &image,
        program: Source::Volume("programs".into()),
        hosts: None,
        certificates: None,
        covered: None,
        filter: Filter::Engines,
    };
    let mounts = body(&spec("yolo-3"), &docker(), &ground).host_config.unwrap().mounts.unwrap();
    let program = mounts.into_iter().find(|mount| mount.source.as_deref() == Some("programs")).unwrap();
    assert_eq!(program.volume_options.unwrap().no_copy, Some(true));
}

/// A folder above a mount can be renamed, and a link in an image can lead anywhere.
#[test]
fn our_folder_had_parents_that_others_could_move() {
    let (one, other) = (spec("yolo-4"), spec("yolo-4"));
    let folder = |spec: &SandboxSpec| our_folder(&labels::container(&spec.id));
    assert_eq!(Path::new(&folder(&one)).parent(), Some(Path::new("/")));
    assert_ne!(folder(&one), folder(&other), "no image can have it already");
    let target = |spec: &SandboxSpec| planned(spec, &docker()).1.mounts.unwrap()[2].target.clone().unwrap();
    assert_eq!(target(&one), folder(&one));
}

#[test]
fn the_machines_file_with_names_of_hosts_could_be_written() {
    let image = Image::default();
    let ground = Ground {
        state: "mine",
        image: &image,
        program: Source::Folder("/state/sandboxes/x/meeting".into()),
        hosts: Some(Path::new("/state/sandboxes/x/hosts")),
        certificates: None,
        covered: None,
        filter: Filter::Engines,
    };
    for preset in sandbox_core::policy::PRESETS {
        let podman = Nature { kind: Kind::Podman, ..docker() };
        let mounts = body(&spec(preset), &podman, &ground).host_config.unwrap().mounts.unwrap();
        let binds = mounts.iter().filter(|mount| mount.typ == Some(MountType::BIND));
        assert!(binds.into_iter().all(|mount| mount.read_only == Some(true)), "{preset}");
    }
}

#[test]
fn places_that_are_not_ours_to_give_are_refused() {
    let refused = |place: &str| {
        let mut spec = spec("yolo-3");
        spec.policy.filesystem.writable = [place.to_owned()].into();
        check_places(&spec).is_err()
    };
    for place in ["/", "/proc", "/proc/sys", "/sys/fs", "/dev/shm", "/home", "/opt/sandbox/program", "/opt"] {
        assert!(refused(place), "{place}");
    }
    for place in ["/data", "/home/sandbox/x", "/workspace", "/var/lib/mine", "/etc/ssl"] {
        assert!(!refused(place), "{place}");
    }
}

#[test]
fn gvisor_has_room_of_its_own_and_nothing_to_look_at() {
    let mut wanted = spec("yolo-3");
    wanted.policy.privileges.runtime = Some("runsc".into());
    let (_, host) = planned(&wanted, &docker());
    assert_eq!(host.memory, Some((wanted.policy.limits.memory.0 + (256 << 20)) as i64));
    assert_eq!((host.pids_limit, host.sysctls), (Some(16_384), None), "the executor holds the number of processes");
    let added = host.cap_add.unwrap();
    assert!(added.contains(&"SYS_ADMIN".to_owned()) && added.contains(&"DAC_OVERRIDE".to_owned()), "{added:?}");
    let tmpfs = host.tmpfs.unwrap();
    assert!(tmpfs["/sys"].starts_with("ro,") && tmpfs["/sys/fs/cgroup"].starts_with("ro,"), "{tmpfs:?}");
    let plain = planned(&spec("yolo-3"), &docker()).1;
    assert!(!plain.cap_add.unwrap().contains(&"SYS_ADMIN".to_owned()));
    assert!(!plain.tmpfs.unwrap().contains_key("/sys"));
}

#[test]
fn podmans_own_folder_in_memory_cannot_be_written() {
    let podman = Nature { kind: Kind::Podman, ..docker() };
    assert!(planned(&spec("yolo-3"), &podman).1.tmpfs.unwrap()["/run"].starts_with("ro,"));
    assert!(!planned(&spec("yolo-4"), &podman).1.tmpfs.unwrap().contains_key("/run"));
}
