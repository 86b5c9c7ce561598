//! An engine through the suite that every backend passes. Which engine and images, variables say; `tests/engines/run`
//! sets them. Without `SANDBOX_TEST_ENGINE` there is none to try.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

use std::{
    collections::BTreeSet,
    fs,
    os::unix::{fs::DirBuilderExt, process::CommandExt},
    process::Command,
    sync::Arc,
};

use sandbox_conformance::{Programs, Subject};
use sandbox_core::{Control, Image, Reference};
use sandbox_docker::{DockerBackend, Options};

fn main() {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(engine) = variable("SANDBOX_TEST_ENGINE") else {
        let required = variable("SANDBOX_TESTS_REQUIRE").unwrap_or_default();
        assert!(
            !required.split(',').any(|one| one == "docker"),
            "SANDBOX_TEST_ENGINE names no engine, and one is required"
        );
        println!("skipped: SANDBOX_TEST_ENGINE names no engine (tests/engines/run starts some)");
        return;
    };
    if std::env::var_os(sandbox_conformance::SECRET).is_none() {
        let again = Command::new("/proc/self/exe")
            .args(std::env::args_os().skip(1))
            .env(sandbox_conformance::SECRET, "x")
            .exec();
        panic!("starting again failed: {again}");
    }
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let image = |name: &str| variable(name).map(|image| image.parse::<Reference>().expect("the name of an image"));
    let controls = variable("SANDBOX_TEST_UNHELD").unwrap_or_default();
    let unheld = controls.split(',').filter(|name| !name.is_empty());
    let unheld: BTreeSet<Control> = unheld.map(control).collect();
    let folder = tempfile::tempdir().expect("a folder for the state");
    let state = folder.path().join("state");
    fs::DirBuilder::new().mode(0o700).create(&state).expect("a folder for the state");
    let failed = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime").block_on(async {
        let options = Options { address: Some(engine), image: image("SANDBOX_TEST_IMAGE") };
        let backend = DockerBackend::new(&state, options).expect("the backend starts");
        let subject = Subject {
            backend: Arc::new(backend),
            image: image("SANDBOX_TEST_SMALL_IMAGE").map(Image::Reference),
            programs: Programs::OfAnImage,
            unheld,
            terminals: 4096,
        };
        sandbox_conformance::run(subject, &filter).await
    });
    std::process::exit(i32::from(failed > 0));
}

fn control(name: &str) -> Control {
    serde_json::from_value(name.into()).unwrap_or_else(|_| panic!("{name} is not a limit or wall"))
}
