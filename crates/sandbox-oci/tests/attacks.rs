//! The attack suite on an OCI runtime, the one that SANDBOX_TESTS_OCI_RUNTIME names (runsc). Arguments: a part of an attack's
//! name, and policies after `--policy`.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

mod support;

use std::{fs, path::Path, sync::Arc};

use sandbox_attacks::{Group, Outcome, Subject};
use sandbox_core::{Backend, Image, Policy, policy::Root};

/// What gVisor's own kernel grants and leads nowhere, or what cannot be judged from inside of it. The reasons are in
/// docs/gvisor.md. Whoever mends one removes it here.
const KNOWN_OF_GVISOR: &[&str] = &[
    // Devices of gVisor's own: a node can be made without the right to, and reaches nothing of this machine.
    "device_files",
    "make_character_device",
    "make_block_device",
    // It does not tell in statfs(2) what is read-only; writing is refused all the same, by gVisor and by the mounts beneath.
    "root_mounted_writable",
    // Its own memory, which is held with its 256 MiB.
    "memory_in_pipes",
    "memory_in_sockets",
    // Its own scheduler and memory killer: neither priority nor score is seen outside.
    "raise_priority",
    "protect_from_oom",
    // The cgroup that holds the number of processes, in its own tree.
    "cgroup_path",
    // Its own network, in which nobody else is.
    "low_ports",
    "socket_privileges",
    // Its count comes late, see `enforcement`.
    "fork_bomb",
    "fork_tree",
    "zombie_flood",
    // Its clocks go on while it stands still, so inside it looks like more than was used.
    "cpu_by_processes",
    "cpu_by_threads",
];

/// What is seen with a runtime that has this machine's kernel beneath it.
const KNOWN_OF_OTHERS: &[&str] = &[
    // The executor's connection to its keeper, whose name leads nowhere.
    "socket_table",
];

fn main() {
    let Some(stage) = support::begin("SECRET_OF_THE_SERVER") else { return };
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut policies: Vec<&str> =
        words.windows(2).filter(|pair| pair[0] == "--policy").map(|pair| pair[1].as_str()).collect();
    let filter = words.first().filter(|word| !word.starts_with('-')).map_or("", String::as_str);
    if policies.is_empty() {
        policies = vec!["yolo-3", "user_added", "build"];
    }
    let known = if stage.is_gvisor() { KNOWN_OF_GVISOR } else { KNOWN_OF_OTHERS };
    let failed = stage.runtime().block_on(async {
        let backend: Arc<dyn Backend> = Arc::new(stage.backend());
        let mut failed = 0;
        for name in policies {
            let policy = Policy::preset(name).expect("a preset");
            failed += attack(backend.clone(), policy, image(stage.folder(), name), filter, known).await;
        }
        failed
    });
    stage.end(failed)
}

/// A root that can be changed starts from an image of its own: here one with nothing in it at all.
fn image(folder: &Path, policy: &str) -> Image {
    let writable = Policy::preset(policy).is_some_and(|policy| policy.filesystem.root == Root::Writable);
    let empty = folder.join("empty");
    fs::create_dir_all(&empty).expect("a folder for the image");
    if writable { Image::Folder(empty) } else { Image::Host }
}

async fn attack(backend: Arc<dyn Backend>, policy: Policy, image: Image, filter: &str, known: &[&str]) -> usize {
    let name = policy.name.clone();
    let subject = Subject { backend, backend_name: sandbox_oci::BACKEND.into(), image, policy };
    let report = sandbox_attacks::run(subject, &Group::ALL, filter, &|_| {}).await.expect("the suite runs");
    let (mut held, mut unexpected) = (0, 0);
    for record in &report.records {
        let known = known.contains(&record.attack.as_str());
        let word = match (record.outcome, record.is_breach()) {
            (_, true) if known => "KNOWN",
            (_, true) => {
                unexpected += 1;
                "BREACH"
            }
            (Outcome::BrokeThrough, false) => "allowed",
            (Outcome::NotApplicable, _) => "n/a",
            _ => {
                held += 1;
                "held"
            }
        };
        println!(
            "{name} {word:<8} {:<12} {:<34} {:>6} ms  {}",
            record.group.to_string(),
            record.attack,
            record.milliseconds,
            record.detail
        );
    }
    println!("{name}: {} attacks, {:?}, {} ms", report.records.len(), report.bystander, report.milliseconds);
    println!("test result: {}. {held} passed; {unexpected} failed", if unexpected == 0 { "ok" } else { "FAILED" });
    unexpected
}
