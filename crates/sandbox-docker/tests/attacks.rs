//! The attack suite on the engine that `SANDBOX_TEST_ENGINE` names, as the conformance suite has it. Arguments: a part of an
//! attack's name, and policies after `--policy`.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

use std::{collections::BTreeSet, fs, os::unix::fs::DirBuilderExt, sync::Arc};

use sandbox_attacks::{Group, Outcome, Record, Subject};
use sandbox_core::{Backend, Control, Image, Policy, Reference};
use sandbox_docker::{DockerBackend, Options};

fn main() {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(engine) = variable("SANDBOX_TEST_ENGINE") else {
        println!("skipped: SANDBOX_TEST_ENGINE names no engine (tests/engines/run starts some)");
        return;
    };
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut policies: Vec<&str> =
        words.windows(2).filter(|pair| pair[0] == "--policy").map(|pair| pair[1].as_str()).collect();
    let filter = words.first().filter(|word| !word.starts_with('-')).map_or("", String::as_str);
    if policies.is_empty() {
        policies = vec!["yolo-3", "user_added"];
    }
    let image: Reference = variable("SANDBOX_TEST_IMAGE")
        .expect("SANDBOX_TEST_IMAGE names an image")
        .parse()
        .expect("the name of an image");
    let unheld = variable("SANDBOX_TEST_UNHELD").unwrap_or_default();
    let unheld: BTreeSet<Control> = unheld.split(',').filter(|name| !name.is_empty()).map(control).collect();
    let folder = tempfile::tempdir().expect("a folder for the state");
    let state = folder.path().join("state");
    fs::DirBuilder::new().mode(0o700).create(&state).expect("a folder for the state");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let failed = runtime.block_on(async {
        let options = Options { address: Some(engine), image: Some(image.clone()) };
        let backend: Arc<dyn Backend> = Arc::new(DockerBackend::new(&state, options).expect("the backend starts"));
        let mut failed = 0;
        for name in policies {
            let mut policy = Policy::preset(name).expect("a preset");
            policy.allow_unenforced.extend(&unheld);
            failed += attack(backend.clone(), policy, Image::Reference(image.clone()), filter).await;
        }
        failed
    });
    std::process::exit(i32::from(failed > 0));
}

fn control(name: &str) -> Control {
    serde_json::from_value(name.into()).unwrap_or_else(|_| panic!("{name} is not a limit or wall"))
}

async fn attack(backend: Arc<dyn Backend>, policy: Policy, image: Image, filter: &str) -> usize {
    let name = policy.name.clone();
    let subject = Subject { backend, backend_name: sandbox_docker::BACKEND.into(), image, policy };
    let report = sandbox_attacks::run(subject, &Group::ALL, filter, &|_| {}).await.expect("the suite runs");
    let (mut held, mut unpromised) = (0, 0);
    for record in &report.records {
        let word = match record.outcome {
            _ if record.is_breach() => "BREACH",
            Outcome::BrokeThrough => "allowed",
            Outcome::NotApplicable => "n/a",
            _ => "held",
        };
        held += usize::from(word == "held");
        unpromised += usize::from(word == "allowed");
        say(&name, word, record);
    }
    let broken = report.breaches().count();
    println!("{name}: {} attacks, {unpromised} allowed, {:?}", report.records.len(), report.bystander);
    println!(
        "test result: {}. {name}: {held} held; {broken} failed; finished in {:.1}s",
        if broken == 0 { "ok" } else { "FAILED" },
        report.milliseconds as f64 / 1000.0
    );
    broken
}

fn say(policy: &str, word: &str, record: &Record) {
    let group = record.group.to_string();
    println!("{policy} {word:<8} {group:<12} {:<34} {:>6} ms  {}", record.attack, record.milliseconds, record.detail);
}
