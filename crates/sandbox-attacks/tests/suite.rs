//! The attack suite on the embedded backend. Arguments: a part of an attack's name, policies after `--policy`, and the
//! folder of an image after `--image`; without one the policies that need an image get a small one.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

use std::{
    fs,
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    path::Path,
    process::Command,
    sync::Arc,
};

use sandbox_attacks::{Group, Outcome, Subject};
use sandbox_core::{Backend, Image, Policy, policy::Root};
use sandbox_linux::LinuxBackend;

/// A variable that the server has and no sandbox may see.
const SECRET: &str = "SECRET_OF_THE_SERVER";

/// Attacks that break through today. Whoever mends one removes it here.
const KNOWN: &[&str] = &[];

fn main() {
    sandbox_linux::run_role_if_asked();
    if std::env::var_os(SECRET).is_none() {
        let again =
            Command::new("/proc/self/exe").args(std::env::args_os().skip(1)).env(SECRET, "only the server's").exec();
        panic!("starting again failed: {again}");
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut policies: Vec<&str> =
        words.windows(2).filter(|pair| pair[0] == "--policy").map(|pair| pair[1].as_str()).collect();
    let filter = words.first().filter(|word| !word.starts_with('-')).map_or("", String::as_str);
    if policies.is_empty() {
        policies = vec!["yolo-3", "user_added", "development", "build"];
    }
    let folder = tempfile::tempdir().expect("a folder for the state");
    let state = folder.path().join("state");
    fs::DirBuilder::new().mode(0o700).create(&state).expect("a folder for the state");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let failed = runtime.block_on(async {
        let backend: Arc<dyn Backend> = Arc::new(LinuxBackend::start(&state).expect("the backend starts"));
        let mut failed = 0;
        for name in policies {
            failed +=
                attack(backend.clone(), Policy::preset(name).expect("a preset"), image(folder.path(), name), filter)
                    .await;
        }
        failed
    });
    remove(folder);
    std::process::exit(i32::from(failed > 0));
}

/// Once the launcher has ended, which takes a moment.
fn remove(folder: tempfile::TempDir) {
    let path = folder.keep();
    let removed = || fs::remove_dir_all(&path).is_ok();
    for _ in (0..30).take_while(|_| !removed()) {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// A root that can be changed starts from an image of its own: here one with nothing in it at all.
fn image(folder: &Path, policy: &str) -> Image {
    let words: Vec<String> = std::env::args().collect();
    let named = words.windows(2).find(|pair| pair[0] == "--image").map(|pair| Image::Folder((&pair[1]).into()));
    let writable = Policy::preset(policy).is_some_and(|policy| policy.filesystem.root == Root::Writable);
    let empty = folder.join("image");
    fs::create_dir_all(&empty).expect("a folder for the image");
    named.unwrap_or(if writable { Image::Folder(empty) } else { Image::Host })
}

async fn attack(backend: Arc<dyn Backend>, policy: Policy, image: Image, filter: &str) -> usize {
    let name = policy.name.clone();
    let subject = Subject { backend, backend_name: "linux".into(), image, policy };
    let report = sandbox_attacks::run(subject, &Group::ALL, filter, &|_| {}).await.expect("the suite runs");
    let mut unexpected = 0;
    for record in &report.records {
        let known = KNOWN.contains(&record.attack.as_str());
        let word = match (record.outcome, record.is_breach()) {
            (_, true) if known => "KNOWN",
            (_, true) => {
                unexpected += 1;
                "BREACH"
            }
            (Outcome::BrokeThrough, false) => "allowed",
            (Outcome::NotApplicable, _) => "n/a",
            _ => "held",
        };
        println!(
            "{name} {word:<8} {:<12} {:<34} {:>6} ms  {}",
            record.group.to_string(),
            record.attack,
            record.milliseconds,
            record.detail
        );
    }
    println!(
        "{name}: {} attacks, {unexpected} breaches, {:?}, {} ms",
        report.records.len(),
        report.bystander,
        report.milliseconds
    );
    unexpected
}
