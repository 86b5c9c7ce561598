//! The suite can fail: for each wall that is left out, together with what backs it up, an attack breaks through.
//! `cargo test -p sandbox-attacks --features breakable --test missing_walls`

#![allow(clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

use std::{fs, os::unix::fs::DirBuilderExt, process::Command, sync::Arc};

use sandbox_attacks::{Group, Subject};
use sandbox_core::{Backend, Image, Policy};
use sandbox_linux::LinuxBackend;

/// Names of walls that are left out; see `wall.rs` of the embedded backend.
const VARIABLE: &str = "SANDBOX_MCP_WITHOUT";

/// Walls with what backs them up, and the attack that notices.
const CASES: &[(&str, &str)] = &[
    ("seccomp", "unfiltered"),
    ("seccomp", "io_uring"),
    ("seccomp", "crypto_sockets"),
    ("seccomp,user_namespace_count", "unshare_user"),
    ("read_only_root,landlock", "root_mounted_writable"),
    // The filter and Landlock cannot be had without it.
    ("no_new_privs,landlock,seccomp", "gain_by_exec"),
    ("capabilities,command_capabilities", "hold_capabilities"),
    ("masks", "interrupts"),
    ("frozen_proc", "kernel_settings"),
    ("old_root", "host_canary_file"),
    ("network", "host_loopback_tcp"),
    ("network", "other_interfaces"),
    ("ipc_namespace", "shared_memory_segment"),
    ("uts_namespace", "host_name"),
    ("cgroup_namespace", "cgroup_path"),
    ("session", "controlling_terminal"),
    ("environment", "environment"),
    ("pid_limit", "fork_bomb"),
    ("memory_limit", "memory_private"),
    ("disk_watch,file_size", "disk_by_name"),
    ("tmp_size", "tmp_beyond_its_size"),
    ("inotify_counts", "inotify_instances"),
    ("queued_signals", "queued_signals"),
];

fn main() {
    sandbox_linux::run_role_if_asked();
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [role, attack] = &words[..]
        && role == "try"
    {
        std::process::exit(i32::from(!breaks_through(attack)));
    }
    let filter = words.first().filter(|word| !word.starts_with('-')).map_or("", String::as_str);
    let mut unnoticed = Vec::new();
    for (walls, attack) in CASES.iter().filter(|(walls, attack)| walls.contains(filter) || attack.contains(filter)) {
        // A process for each: walls are read from the environment once.
        let mut command = Command::new("/proc/self/exe");
        command.args(["try", attack]).env(VARIABLE, walls).env("SECRET_OF_THE_SERVER", "only the server's");
        let noticed = command.status().expect("it starts").success();
        println!("without {walls}: {attack} {}", if noticed { "breaks through" } else { "DID NOT NOTICE" });
        if !noticed {
            unnoticed.push((walls, attack));
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}

fn breaks_through(attack: &str) -> bool {
    let folder = tempfile::tempdir().expect("a folder for the state");
    let state = folder.path().join("state");
    fs::DirBuilder::new().mode(0o700).create(&state).expect("a folder for the state");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let report = runtime.block_on(async {
        let backend: Arc<dyn Backend> = Arc::new(LinuxBackend::start(&state).expect("the backend starts"));
        let subject = Subject { backend, backend_name: "linux".into(), image: Image::Host, policy: Policy::default() };
        sandbox_attacks::run(subject, &Group::ALL, attack, &|_| {}).await.expect("the suite runs")
    });
    for record in report.records.iter().filter(|record| !record.is_breach()) {
        println!("    {}: {:?}, {}", record.attack, record.outcome, record.detail);
    }
    report.breaches().any(|record| record.attack == attack)
}
