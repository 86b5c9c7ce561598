//! The attack suite on an OCI runtime, the one that SANDBOX_TESTS_OCI_RUNTIME names (runsc). Arguments: a part of an attack's
//! name, and policies after `--policy`.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

mod support;

use std::{fs, path::Path, sync::Arc};

use sandbox_attacks::{Group, Outcome, Subject};
use sandbox_core::{Backend, Image, Policy, policy::Root};

fn main() {
    let Some(stage) = support::begin("SECRET_OF_THE_SERVER") else { return };
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut policies: Vec<&str> =
        words.windows(2).filter(|pair| pair[0] == "--policy").map(|pair| pair[1].as_str()).collect();
    let filter = words.first().filter(|word| !word.starts_with('-')).map_or("", String::as_str);
    if policies.is_empty() {
        policies = vec!["yolo-3", "user_added", "build"];
    }
    let failed = stage.runtime().block_on(async {
        let backend: Arc<dyn Backend> = Arc::new(stage.backend());
        let mut failed = 0;
        for name in policies {
            let policy = Policy::preset(name).expect("a preset");
            failed += attack(backend.clone(), policy, image(stage.folder(), name), filter).await;
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

async fn attack(backend: Arc<dyn Backend>, policy: Policy, image: Image, filter: &str) -> usize {
    let name = policy.name.clone();
    let subject = Subject { backend, backend_name: sandbox_oci::BACKEND.into(), image, policy };
    let report = sandbox_attacks::run(subject, &Group::ALL, filter, &|_| {}).await.expect("the suite runs");
    let (mut held, mut unexpected) = (0, 0);
    for record in &report.records {
        let word = match (record.outcome, record.is_breach()) {
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
